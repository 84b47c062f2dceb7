"""The optimizer of a module, the store that its devices exchange gradients by, and the states' files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from .. import optimizer as opt
from ..base import user_level, value_text
from ..file_errors import content_errors, file_errors, path_of
from ..kvstore import KVStore, KVStoreBase
from .executors import Executors
from .names import ArgumentNames
from .updates import initialize_kvstore, update_params, update_params_on_kvstore

__all__ = ["Training"]


def _arguments(params: Any) -> dict[str, Any]:
    """An optimizer's arguments by name, from a dict or pairs; TypeError for anything else."""
    try:
        return dict(params)
    except (TypeError, ValueError):
        example = "{'learning_rate': 0.1}"
        raise TypeError(f"optimizer_params: expected a dict such as {example}, got {value_text(params)}") from None


class Training:
    """An optimizer at work on the parameters of one module, or of several that share them.

    Args:
        optimizer: a name, or an `Optimizer`.
        params: the arguments for a name: a dict, or pairs.
        symbol: the network, whose attributes may scale rates.
        names: its arguments; the parameters' positions among them are the optimizer's indices.
        batch_size: gradients are rescaled by its inverse, unless `params` or the optimizer say otherwise.
        devices: on how many devices the modules are.
        store: adds the devices' gradients up; None where nothing is to be exchanged.
        on_store: whether the store updates the weights, once for all devices.

    Attributes:
        optimizer, store, on_store: they.
        updater: the optimizer with its states; the store's own where that updates.
    """

    def __init__(
        self,
        optimizer: Any,
        params: Any,
        symbol: Any,
        names: ArgumentNames,
        batch_size: int,
        devices: int = 1,
        store: KVStoreBase | None = None,
        on_store: bool = False,
    ) -> None:
        self.store, self.on_store, self._devices = store, on_store, devices
        self._indices = {name: index for index, name in enumerate(names.parameters)}
        if store is not None and "dist" in store.type and "_sync" in store.type:
            batch_size *= store.num_workers
        rescale_grad = 1.0 / batch_size
        copies = 1 if on_store else devices
        by_index = {i * copies + k: name for i, name in enumerate(names.parameters) for k in range(copies)}
        if isinstance(optimizer, str):
            params = {"rescale_grad": rescale_grad, **_arguments(params)}
            optimizer = opt.create(optimizer, sym=symbol, param_idx2name=by_index, **params)
        elif not isinstance(optimizer, opt.Optimizer):
            raise AssertionError(
                f"optimizer: expected a name, or one such as mx.optimizer.SGD(), got {value_text(optimizer)}"
            )
        else:
            if optimizer.rescale_grad != rescale_grad:
                warnings.warn(
                    f"init_optimizer: rescale_grad of the optimizer given is {optimizer.rescale_grad:g}; "
                    f"the mean over a batch would be {rescale_grad:g}",
                    stacklevel=user_level(),
                )
            if not optimizer.idx2name:
                optimizer.idx2name = by_index
        self.optimizer: opt.Optimizer = optimizer
        if on_store:
            setting: Any = store
            setting.set_optimizer(optimizer)
        own = store._updater if on_store and isinstance(store, KVStore) else None
        self.updater: opt.Updater = own if isinstance(own, opt.Updater) else opt.get_updater(optimizer)

    def begin(self, replicas: Sequence[Executors], parameters: Sequence[str]) -> None:
        """Give the parameters to the store, if there is one.

        Args:
            replicas: the arrays of a module on each device.
            parameters: that module's.
        """
        if self.store is not None:
            arrays = [[replica.args[name] for replica in replicas] for name in parameters]
            first = {name: values[0] for name, values in zip(parameters, arrays, strict=True)}
            initialize_kvstore(self.store, arrays, first, parameters, self.on_store)

    def update(self, replicas: Sequence[Executors], parameters: Sequence[str]) -> None:
        """Update the parameters that have gradients: an optimizer's updates are one command.

        Args:
            replicas: the arrays of a module that the optimizer works for, on each device.
            parameters: that module's; those that the others lack get indices of their own.
        """
        new = [name for name in parameters if name not in self._indices]
        for name in new:
            self._add_index(name)
        self.begin(replicas, new)
        arrays = [[replica.args.get(name) for replica in replicas] for name in self._indices]
        grads = [[replica.grads.get(name) for replica in replicas] for name in self._indices]
        names = list(self._indices)
        if self.on_store:
            update_params_on_kvstore(arrays, grads, self.store, names)
        else:
            update_params(arrays, grads, self.updater, self._devices, self.store, names)

    def _add_index(self, name: str) -> None:
        """Give a parameter an index of the optimizer's."""
        index = self._indices[name] = len(self._indices)
        for device in range(self._devices):
            self.optimizer.idx2name.setdefault(index * self._devices + device, name)

    def save_states(self, fname: str) -> None:
        """Write the optimizer's states to a file (see `optimizer.Updater.get_states`)."""
        path = path_of(fname, "save_optimizer_states: fname")
        with file_errors(path, "written"):
            path.write_bytes(self.updater.get_states())

    def load_states(self, fname: str) -> None:
        """Take the optimizer's states from a file."""
        path = path_of(fname, "load_optimizer_states: fname")
        with file_errors(path, "read"):
            states = path.read_bytes()
        with content_errors(path):
            self.updater.set_states(states)
