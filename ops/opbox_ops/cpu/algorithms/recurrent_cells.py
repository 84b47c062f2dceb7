"""A step of the recurrent cells in C, in threads: all that is computed element by element between two products.

The operations are those of `steps` and `gradients`, in their order, and tanh is NumPy's own loop or one that gives its
numbers (`numpy_loops`): the bits are the same. A step in several calls of NumPy's takes one thread so long that the
others sleep, and each product wakes them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_long, c_void_p
from functools import cache
from typing import Any

import numpy as np

from ...bound_calls import place_of
from ...compute import Array
from ...expression.numpy_loops import Loop, loop_of
from ..runtime import c_compiler
from ..runtime.kernel_text import kernel_text

__all__ = ["Cells", "compiled_cells"]

TEXT = kernel_text("recurrent_cells.c")
_ARRAYS = {
    "opbox_lstm_step": 9,
    "opbox_gru_step": 10,
    "opbox_rnn_step": 6,
    "opbox_lstm_back_step": 13,
    "opbox_gru_back_step": 14,
}
"""Functions of the text, and how many arguments they have: all are pointers."""


class _Step(Structure):
    _fields_ = [
        (name, c_long)
        for name in ("hidden", "batch", "x_row", "state_row", "before_unit", "before_sample", "gstate_row")
    ]


class Cells:
    """The compiled functions. Arrays are of float32; matrices are (units, batch), contiguous unless said otherwise.

    Args:
        functions: by name.
        tanh: a loop that gives NumPy's numbers.
    """

    def __init__(self, functions: dict[str, Any], tanh: Loop) -> None:
        self._functions, self._tanh = functions, tanh

    def lstm(self, arrays: Sequence[Array]) -> None:
        """Fill gates (gates, batch), cell and state (batch, units; a row's numbers lie together) of a step.

        Args:
            arrays: the product with the state, x (rows apart), gates, the cell before (as it lies), cell, a temporary,
                and state.
        """
        _, x, _, before, cell, _, state = arrays
        step = _step_of(cell, state, x, before)
        self._functions["opbox_lstm_step"](*map(place_of, arrays), byref(step), byref(self._tanh))

    def gru(self, arrays: Sequence[Array], bias: Array) -> None:
        """The same; in place of the cells the state before (as it lies), and what reset multiplies, with its `bias`."""
        _, x, _, before, again, _, state = arrays
        step = _step_of(again, state, x, before)
        self._functions["opbox_gru_step"](*map(place_of, arrays), byref(step), byref(self._tanh), place_of(bias))

    def rnn(self, arrays: Sequence[Array], relu: bool) -> None:
        """Fill gates and state: of the product with the state, x, gates and state."""
        _, x, gates, state = arrays
        step = _step_of(gates, state, x, gates)
        tanh = None if relu else byref(self._tanh)
        self._functions["opbox_rnn_step"](*map(place_of, arrays), byref(step), tanh)

    def lstm_back(self, arrays: Sequence[Array], gstate_row: int = 0) -> None:
        """Write a step's gradients of the gates, and leave gcell for the step before.

        Args:
            arrays: gout (batch, units; a row's numbers lie together), gstate, total and two more temporaries, gcell,
                factors (gates, batch), which is written and lies together, gates, cell, the cell before (as it lies),
                and the gates' gradients (rows apart), which is written.
            gstate_row: numbers of a row of gstate, which is (batch, units); 0: it is (units, batch).
        """
        gout, total, before, ggates = arrays[0], arrays[2], arrays[9], arrays[10]
        step = _step_of(total, gout, ggates, before, gstate_row)
        self._functions["opbox_lstm_back_step"](*map(place_of, arrays), byref(step), byref(self._tanh))

    def gru_back(self, arrays: Sequence[Array], passed: Array | None = None, gstate_row: int = 0) -> None:
        """The same for gru.

        In place of gcell what passes the gates by, which is written, in place of the cell what reset multiplies, and
        last the gradient of that, of all steps as the gates'. `passed`, what passed by the gates of the step behind, is
        added to gstate.
        """
        gout, total, before, ggates = arrays[0], arrays[2], arrays[9], arrays[10]
        step = _step_of(total, gout, ggates, before, gstate_row)
        self._functions["opbox_gru_back_step"](*map(place_of, arrays), byref(step), place_of(passed))


def _step_of(matrix: Array, state: Array, x: Array, before: Array, gstate_row: int = 0) -> _Step:
    steps = x.strides[0], state.strides[0], *before.strides
    return _Step(*matrix.shape, *[step // 4 for step in steps], gstate_row)


@cache
def compiled_cells() -> Cells | None:
    """The compiled functions; None without a compiler."""
    tanh = loop_of("tanh", np.dtype(np.float32))
    functions = c_compiler.compiled_functions(TEXT, {name: [c_void_p] * count for name, count in _ARRAYS.items()})
    if tanh is None or functions is None:
        return None
    return Cells(dict(zip(_ARRAYS, functions, strict=True)), tanh)
