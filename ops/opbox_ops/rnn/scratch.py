"""The temporaries of RNN's computes, by name: what is planned for a call, and the arrays that the call gets.

Each is flat or in the shape that most of its uses have; one that a call does not need has no elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ..cache import CACHE_BYTES
from ..compute import Arrays, Temp
from ..cpu.algorithms.blocked_product import ProductSizes, padded
from ..cpu.algorithms.unit_steps import packed_numbers, scratch_numbers
from .layout import Sizes, reserve_size

__all__ = ["UNIT_COLUMNS", "Scratch", "packed_sizes", "backward_temps", "forward_temps", "scratch"]

Scratch: TypeAlias = Mapping[str, Any]
"""The arrays of a call's temporaries."""

_COLUMNS, UNIT_COLUMNS = 128, 640
"""Columns of the products with inputs that are made at a time: for these and more OpenBLAS is at its best. By a matrix
unit two layers of LSTM, 35 steps of 32 samples, take 9.6 ms by 256 columns, 8.7 by 448, 8.2 by 640 and by all 1,120."""

_SETS = 1024
_APART = 16
"""Further numbers of a row of the recurrent weights turned over: rows a multiple of _SETS numbers apart share few sets
of a cache, and evict one another."""


def _piece(sizes: Sizes, columns: int) -> int:
    """Return the number of steps whose inputs one product takes."""
    return max(1, min(sizes.time, columns // max(sizes.batch, 1)))


def _cached(sizes: Sizes, itemsize: int) -> int:
    """Return the number of steps whose gates, their gradients and two arrays of states fit the cache."""
    return max(1, min(sizes.time, CACHE_BYTES // max(2 * (sizes.gates + sizes.hidden) * sizes.batch * itemsize, 1)))


def packed_sizes(sizes: Sizes) -> list[tuple[int, int]]:
    """Return how many numbers the recurrent weight and those of the inputs take, packed, of each layer."""
    columns = _piece(sizes, UNIT_COLUMNS) * sizes.batch
    inputs = [sizes.layer_inputs(layer) for layer in range(sizes.layers)]
    products = [ProductSizes(sizes.gates, count, columns, (False, True), packs_a=True) for count in inputs]
    return [(packed_numbers(sizes), product.packed if product.splits else 0) for product in products]


def _of_row(sizes: Sizes) -> int:
    """Return how far rows of the recurrent weight lie apart when it is turned over."""
    return sizes.gates + (0 if sizes.gates % _SETS else _APART)


def _packed_numbers(sizes: Sizes, dtype: Any) -> int:
    """Return the numbers of the recurrent weight turned over, or packed for the gradient of a state: whole rows."""
    numbers, of_row = padded(sizes.outputs) * _of_row(sizes), _of_row(sizes)
    if dtype == np.float32:
        product = ProductSizes(sizes.batch, sizes.gates, sizes.outputs, (True, False), reads_packed=True)
        numbers = max(numbers, product.packed)
    return -(-numbers // of_row) * of_row


def scratch(temps: Mapping[str, Temp], arrays: Arrays) -> Scratch:
    """The arrays that a call got for `temps`, by their names."""
    return dict(zip(temps, arrays, strict=True))


def _shared(sizes: Sizes, dtype: Any, *, lengths: bool, narrow: bool) -> dict[str, Temp]:
    """Temporaries shared by both directions: inputs in `dtype`, and the steps that count."""
    steps = sizes.time if lengths else 0
    outputs = sizes.directions * sizes.outputs
    count = sizes.layers * sizes.directions * sizes.batch if narrow else 0
    between = sizes.dropout and sizes.layers > 1
    return {
        "data": Temp((sizes.time * sizes.batch * sizes.inputs if narrow else 0,), dtype),
        "parameters": Temp((sizes.parameters if narrow else 0,), dtype),
        "state": Temp((count * sizes.outputs,), dtype),
        "cell": Temp((count * sizes.hidden if sizes.mode == "lstm" else 0,), dtype),
        "numbers": Temp((steps,), "int64"),
        "valid": Temp((steps, 1, sizes.batch), "bool"),
        "beyond": Temp((steps, 1, sizes.batch), "bool"),
        "passed": Temp((sizes.time if lengths or between else 0, sizes.batch, outputs), dtype),
    }


def forward_temps(
    sizes: Sizes, dtype: Any, *, lengths: bool, narrow: bool, reserve: bool, by_unit: bool
) -> dict[str, Temp]:
    """For `RNN`.

    Args:
        sizes: the call's.
        dtype: the type that is computed in.
        lengths: whether sequences have lengths.
        narrow: whether inputs are of another type.
        reserve: whether nobody wants the output reserve.
        by_unit: whether all of a step is computed by a matrix unit.
    """
    length = _piece(sizes, UNIT_COLUMNS if by_unit else _COLUMNS)
    temps = {
        **_shared(sizes, dtype, lengths=lengths, narrow=narrow),
        "reserve": Temp((reserve_size(sizes) if reserve else 0,), dtype),
        "pieces": Temp((sizes.gates, length, sizes.batch), dtype),
        "small": Temp((sizes.hidden, sizes.batch), dtype),
    }
    if by_unit:
        packed = packed_sizes(sizes)
        return temps | {
            "bias": Temp((sizes.gates,), dtype),
            "packed": Temp((max(map(sum, packed)),), dtype),
            "all_packed": Temp((sizes.directions * sum(map(sum, packed)),), dtype, only_packed=True),
            "scratch": Temp((scratch_numbers(sizes),), dtype),
        }
    widest = max(sizes.layer_inputs(layer) for layer in range(sizes.layers))
    halved = sizes.gates if sizes.mode in ("lstm", "gru") else 0
    return temps | {
        "i2h": Temp((sizes.gates * (widest + 1),), dtype),
        "inputs": Temp((length * sizes.batch * (widest + 1),), dtype),
        "h2h": Temp((halved, sizes.outputs), dtype),
        "product": Temp((sizes.gates, sizes.batch), dtype),
        "projected": Temp((sizes.outputs if sizes.projected else 0, sizes.batch), dtype),
    }


def backward_temps(sizes: Sizes, dtype: Any, *, lengths: bool, narrow: bool, by_unit: bool) -> dict[str, Temp]:
    """For `_backward_RNN`; arguments as of `forward_temps`."""
    outputs, count = sizes.directions * sizes.outputs, sizes.layers * sizes.directions * sizes.batch if narrow else 0
    steps, lstm, gru = (sizes.time, sizes.batch), sizes.mode == "lstm", sizes.mode == "gru"
    widest = max(sizes.layer_inputs(layer) for layer in range(sizes.layers))
    layers = min(2, sizes.layers - 1 + (1 if lengths else 0))
    temps = {
        **_shared(sizes, dtype, lengths=lengths, narrow=narrow),
        "gout": Temp((*steps, outputs) if narrow else (0,), dtype),
        "gstate_last": Temp((count * sizes.outputs,), dtype),
        "gcell_last": Temp((count * sizes.hidden if lstm else 0,), dtype),
        "gdata": Temp((*steps, sizes.inputs) if narrow else (0,), dtype),
        "gparameters": Temp((sizes.parameters if narrow else 0,), dtype),
        "glayers": Temp((layers, *steps, outputs), dtype),
        "gother": Temp((sizes.time * sizes.batch * widest if sizes.directions > 1 else 0,), dtype),
        "before": Temp((*steps, sizes.outputs), dtype),
        "ones": Temp((sizes.time * sizes.batch, 1), dtype),
        "ggates": Temp((sizes.gates, *steps), dtype),
        "gagain": Temp((sizes.hidden if gru else 0, *steps), dtype),
        "gstate": Temp((sizes.outputs, sizes.batch), dtype),
        "gcell": Temp((sizes.hidden if lstm else 0, sizes.batch), dtype),
    }
    if by_unit:
        return temps | {
            "packed": Temp((packed_numbers(sizes),), dtype),
            "first_cell": Temp((sizes.hidden if lstm else 0, sizes.batch), dtype),
            "scratch": Temp((scratch_numbers(sizes, back=True),), dtype),
        }
    projected, length, of_row = sizes.projected, _cached(sizes, dtype.itemsize), _of_row(sizes)
    return temps | {
        "h2h": Temp((_packed_numbers(sizes, dtype) // of_row, of_row), dtype),
        "factors": Temp((length, sizes.gates, sizes.batch), dtype),
        "total": Temp((sizes.outputs, sizes.batch), dtype),
        "through": Temp((sizes.outputs if lengths or gru else 0, sizes.batch), dtype),
        "inner": Temp((sizes.hidden if lstm or gru else 0, sizes.batch), dtype),
        "small": Temp((length if lstm or gru else 0, sizes.hidden, sizes.batch), dtype),
        "inside": Temp((sizes.hidden if lstm else 0, sizes.batch), "bool"),
        "ghidden": Temp((sizes.hidden if projected else 0, sizes.batch), dtype),
        "gprojected": Temp((sizes.outputs if projected else 0, *steps), dtype),
        "hidden": Temp((sizes.hidden if projected else 0, *steps), dtype),
    }
