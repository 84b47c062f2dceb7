"""Checkpoints of recurrent networks, with the cells' weights unpacked: one array a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..checkpoint import load_checkpoint, save_checkpoint
from .cell import BaseRNNCell

__all__ = ["do_rnn_checkpoint", "load_rnn_checkpoint", "save_rnn_checkpoint"]

Cells = BaseRNNCell | Sequence[BaseRNNCell]


def _listed(cells: Cells) -> Sequence[BaseRNNCell]:
    return [cells] if isinstance(cells, BaseRNNCell) else cells


def save_rnn_checkpoint(
    cells: Cells,
    prefix: str,
    epoch: int,
    symbol: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
) -> None:
    """As `model.save_checkpoint`, with the weights of `cells` unpacked."""
    for cell in _listed(cells):
        arg_params = cell.unpack_weights(arg_params)
    save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(cells: Cells, prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """As `model.load_checkpoint`, with the weights of `cells` packed again."""
    symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
    for cell in _listed(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(cells: Cells, prefix: str, period: int = 1) -> Callable[..., None]:
    """An epoch-end callback that calls `save_rnn_checkpoint` every `period` epochs."""
    period = int(max(1, period))

    def save(iter_no: int, sym: Any = None, arg: Any = None, aux: Any = None) -> None:
        if (iter_no + 1) % period == 0:
            save_rnn_checkpoint(cells, prefix, iter_no + 1, sym, arg, aux)

    return save
