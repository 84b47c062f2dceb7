"""Functions under the names that older MXNet versions had."""

from __future__ import annotations

import warnings
from typing import Any

from .. import symbol
from ..base import user_level
from .cell import BaseRNNCell, States

__all__ = ["rnn_unroll"]


def rnn_unroll(
    cell: BaseRNNCell,
    length: int,
    inputs: Any = None,
    begin_state: States | None = None,
    layout: str = "NTC",
) -> tuple[Any, States]:
    """Do what `cell.unroll` does, under its old name.

    Args:
        cell: to be unrolled.
        length, begin_state, layout: as of `BaseRNNCell.unroll`.
        inputs: as there; None for variables `t0_data`, `t1_data`, …
    """
    warnings.warn("mx.rnn.rnn_unroll is an old name: call cell.unroll", stacklevel=user_level())
    if inputs is None:
        inputs = [symbol.Variable(f"t{i}_data") for i in range(length)]
    return cell.unroll(length, inputs, begin_state, layout)
