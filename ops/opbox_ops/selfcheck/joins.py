"""Rows of arrays that are joined, of slices that are taken, and of axes in another order."""

from __future__ import annotations

from .row import Row

__all__ = ["ROWS"]

_SMALL, _LARGE = (3, 10, 5), (70, 130, 33)

ROWS = [
    Row("Concat", [(3, 2, 5), (3, 8, 5)], [(70, 96, 33), (70, 7, 33)], {"num_args": 2, "dim": 1}),
    Row("_rnn_param_concat", [(3, 5), (2, 5)], [(300, 64), (77, 64)], {"num_args": 2, "dim": 0}),
    Row("_npi_concatenate", [(3, 2), (4, 2)], [(300, 96), (77, 96)], {"num_args": 2, "axis": 0}),
    Row("stack", [(3, 5), (3, 5)], [(300, 64), (300, 64)], {"num_args": 2, "axis": 1}),
    Row("SliceChannel", [_SMALL], [_LARGE], {"num_outputs": 5, "axis": 1}),
    Row("_split_v2", [_SMALL], [_LARGE], {"indices": (0, 3, 8), "axis": 1}),
    Row("slice_axis", [_SMALL], [_LARGE], {"axis": 1, "begin": 2, "end": 9}),
    Row("slice", [_SMALL], [_LARGE], {"begin": (1, 2), "end": (3, 9)}),
    Row("transpose", [(3, 2, 5)], [(3, 70, 133)], {"axes": (0, 2, 1)}),
    Row("SwapAxis", [(3, 5)], [(70, 133)], {"dim1": 0, "dim2": 1}),
    Row("_np_moveaxis", [(3, 2, 5)], [(3, 70, 133)], {"source": 1, "destination": 2}),
    Row("slice_like", [_SMALL, (2, 8, 5)], [_LARGE, (50, 96, 33)]),
]
