"""A module's files: checkpoints, and the optimizer's states. `Module` has these functions as its methods."""

from __future__ import annotations

import logging
from typing import Any

from ..checkpoint import checkpoint_file

__all__ = ["load_optimizer_states", "save_checkpoint", "save_optimizer_states"]


def save_checkpoint(
    self: Any, prefix: str, epoch: int, save_optimizer_states: bool = False, remove_amp_cast: bool = True
) -> None:
    """Write `<prefix>-symbol.json` and `<prefix>-<epoch>.params`, and if asked `.states`."""
    self._symbol.save(f"{prefix}-symbol.json")
    param_name = checkpoint_file(prefix, epoch, "params")
    self.save_params(param_name)
    logging.info("checkpoint written: %s", param_name)
    if save_optimizer_states:
        state_name = checkpoint_file(prefix, epoch, "states")
        self.save_optimizer_states(state_name)
        logging.info("optimizer states written: %s", state_name)


def save_optimizer_states(self: Any, fname: str) -> None:
    """Write the optimizer's states to a file (see `optimizer.Updater.get_states`)."""
    self._trained.save_states(fname)


def load_optimizer_states(self: Any, fname: str) -> None:
    """Take the optimizer's states from a file."""
    self._trained.load_states(fname)
