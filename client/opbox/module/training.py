"""The optimizer of a module, and its states' files."""

from __future__ import annotations

import warnings
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
        self._names = names
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

    def update(self, bound: Executors) -> None:
        """Update all parameters that have gradients, by one command."""
        trained = [(index, name) for index, name in enumerate(self._names.parameters) if name in bound.grads]
        self.updater(
            [index for index, _ in trained],
            [bound.grads[name] for _, name in trained],
            [bound.args[name] for _, name in trained],
        )

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
