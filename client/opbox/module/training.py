"""The optimizer of a module, and its states' files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from .. import optimizer as opt
from ..base import user_level, value_text
from ..file_errors import file_errors, path_of
from .executors import Executors
from .names import ArgumentNames

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
    """

    def __init__(self, optimizer: Any, params: Any, symbol: Any, names: ArgumentNames, batch_size: int) -> None:
        self._indices = {name: index for index, name in enumerate(names.parameters)}
        rescale_grad = 1.0 / batch_size
        by_index = dict(enumerate(names.parameters))
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
        self.updater: opt.Updater = opt.get_updater(optimizer)

    def update(self, bound: Executors, parameters: Sequence[str]) -> None:
        """Update the parameters that have gradients, by one command.

        Args:
            bound: the arrays of a module that the optimizer works for.
            parameters: that module's; those that the others lack get indices of their own.
        """
        trained = [name for name in parameters if name in bound.grads]
        self.updater(
            [self._index(name) for name in trained],
            [bound.grads[name] for name in trained],
            [bound.args[name] for name in trained],
        )

    def _index(self, name: str) -> int:
        """The optimizer's index of a parameter, given to it now if it has none."""
        index = self._indices.get(name)
        if index is None:
            index = self._indices[name] = len(self._indices)
            self.optimizer.idx2name.setdefault(index, name)
        return index

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
        self.updater.set_states(states)
