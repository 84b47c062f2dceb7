"""Steps of the recurrent cells in C by a processor's matrix unit, all of a call at once, forward and back.

What `steps` and `gradients` compute, with the products' sums as `blocked_product` says. Numbers below 2^-126 are taken
for zero in all of it. Sigmoids halve their sums and not the weights; tanh is NumPy's own loop or one that gives its
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...bound_calls import place_of
from ...compute import Array
from ...expression.numpy_loops import Loop, loop_of
from ...rnn.layout import Sizes
from ..runtime import c_compiler
from ..runtime.kernel_text import kernel_text
from .blocked_product import STEP, ProductSizes, has_matrix_unit

__all__ = ["TEXT", "UnitSteps", "compiled", "fits", "packed_numbers", "scratch_numbers", "unit_steps"]

TEXT = kernel_text("unit_steps.c")

_MODES = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}
_MIN_HIDDEN = 128
"""Minimum number of rows of a gate: the strips of fewer are lower than those that the kernel reads."""
_PARTS = 3
"""Of a number, as in the C."""


class _Steps(Structure):
    _fields_ = [
        (name, c_long)
        for name in (
            *("mode", "hidden", "batch", "time", "count", "first", "by", "stored", "keeps", "x_row", "begin"),
            *("state_row", "state_step", "gout_row", "gout_step", "before_row"),
        )
    ]


def _places(*names: str) -> type[Structure]:
    return type("Places", (Structure,), {"_fields_": [(name, c_void_p) for name in names]})


_Arrays = _places(
    *("packed", "x", "bias", "of_new", "before", "cell_before", "valid", "gates", "extra", "states", "scratch")
)
_Gradients = _places(
    *("packed", "gates", "extra", "states", "first", "first_cell", "gout", "gstate", "gcell", "ggates", "gagain"),
    "scratch",
)


def _blocks(count: int) -> int:
    return -(-count // STEP)


def fits(sizes: Sizes) -> bool:
    """Whether the matrix unit computes such steps, of float32 and neither clipped nor projected."""
    product = ProductSizes(sizes.gates, sizes.outputs, sizes.batch, (False, True), packs_a=True)
    return sizes.hidden >= _MIN_HIDDEN and not sizes.projected and product.splits


def packed_numbers(sizes: Sizes) -> int:
    """Numbers of a recurrent weight when it is packed: three of two bytes for each, and one for a strip."""
    blocks = _blocks(sizes.hidden)
    return sizes.gates // sizes.hidden * blocks * (blocks * STEP * STEP * _PARTS // 2 + 1)


def scratch_numbers(sizes: Sizes, *, back: bool = False) -> int:
    """Numbers that steps work in: two of what a step passes on in parts, a state, and one number for some samples."""
    pieces, panels = _blocks(sizes.hidden) * _blocks(sizes.batch), _blocks(sizes.batch)
    passed = sizes.gates // sizes.hidden if back else 1
    return pieces * STEP * STEP * (_PARTS * passed + 1) + panels


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """The compiled functions. Arrays are of float32, and contiguous unless said otherwise."""

    _steps: Any
    _pack: Any
    _back: Any
    _pack_back: Any
    _tanh: Loop

    def pack(self, mode: str, weight: Array, target: Array, *, back: bool = False) -> None:
        """Write the packed recurrent weight (gates, hidden) to `target`, for `run`, or for `back`: `packed_numbers`."""
        assert weight.flags.c_contiguous
        steps = _Steps(mode=_MODES[mode], hidden=weight.shape[1])
        (self._pack_back if back else self._pack)(place_of(weight), place_of(target), byref(steps))

    def run(self, mode: str, arrays: Mapping[str, Array], times: range, begin: int) -> None:
        """Compute the steps at `times`, one after the other.

        Args:
            mode: the cell.
            arrays: by name:
                packed: by `pack`;
                x: (gates, steps, batch), products of the weights with the inputs of steps from `begin` on;
                bias: (gates,), what is added to them;
                of_new: (hidden,), gru's bias within the reset;
                before, cell_before: (batch, hidden), rows apart, and (hidden, batch): state and lstm's cell before;
                valid: booleans (time, 1, batch); None: all steps count;
                gates: (stored, gates, batch), or of no step, written;
                extra: (stored, hidden, batch), written; None where the cell has none;
                states: (time, batch, hidden), rows apart, written;
                scratch: of `scratch_numbers`.
            times: steps that follow one another, forwards or backwards.
            begin: the first step of x.
        """
        x, before = arrays["x"], arrays["before"]
        steps = _steps_of(mode, arrays, times)
        steps.x_row, steps.begin, steps.before_row = _step_of(x, 0), begin, _step_of(before, 0)
        self._steps(byref(_places_of(_Arrays, arrays)), byref(steps), byref(self._tanh))

    def back(self, mode: str, arrays: Mapping[str, Array], times: range) -> None:
        """Compute the gradients of the steps at `times`, against the order that `run` has computed them in.

        Args:
            mode: the cell.
            arrays: by name:
                packed: by `pack`, for this;
                gates, extra, states: of all steps, as `run` has written them;
                first, first_cell: (batch, hidden), rows apart, and (hidden, batch): state and lstm's cell before all;
                gout: (time, batch, hidden), rows apart, the gradients of the states but for what other steps have;
                gstate, gcell: (batch, hidden) and (hidden, batch), what the step behind `times` has, and lstm's cell;
                    the same of these is written in their place;
                ggates: (gates, time, batch), written;
                gagain: (hidden, time, batch), the gradients of gru's extra, written;
                scratch: of `scratch_numbers`, for this.
            times: steps that follow one another, the last one first where `run` has gone forwards.
        """
        gout, first, ggates = (arrays[name] for name in ("gout", "first", "ggates"))
        steps = _steps_of(mode, arrays, times)
        steps.gout_row, steps.gout_step = _step_of(gout, 1), _step_of(gout, 0)
        steps.x_row, steps.before_row = _step_of(ggates, 0), _step_of(first, 0)
        self._back(byref(_places_of(_Gradients, arrays)), byref(steps), byref(self._tanh))


def _step_of(array: Array, axis: int) -> int:
    return int(array.strides[axis]) // 4


def _steps_of(mode: str, arrays: Mapping[str, Array], times: range) -> _Steps:
    states, gates, extra = (arrays[name] for name in ("states", "gates", "extra"))
    time, batch, hidden = states.shape
    stored = len(extra) if extra is not None else max(1, len(gates))
    numbers = _MODES[mode], hidden, batch, time, len(times), times[0], times.step, stored, len(gates) > 0
    return _Steps(*numbers, state_row=_step_of(states, 1), state_step=_step_of(states, 0))


def _places_of(kind: type[Structure], arrays: Mapping[str, Array]) -> Structure:
    return kind(**{name: place_of(array) for name, array in arrays.items()})


def unit_steps() -> UnitSteps | None:
    """The compiled functions; None without a compiler or a matrix unit."""
    return compiled(TEXT) if has_matrix_unit() else None


@cache
def compiled(text: str) -> UnitSteps | None:
    """The functions of a text like `TEXT`; None where it cannot be compiled."""
    tanh = loop_of("tanh", np.dtype(np.float32))
    types = {"opbox_unit_steps": 3, "opbox_unit_pack": 3, "opbox_unit_back": 3, "opbox_unit_pack_back": 3}
    functions = c_compiler.compiled_functions(text, {name: [c_void_p] * count for name, count in types.items()})
    if functions is None or tanh is None:
        return None
    steps, pack, back, pack_back = functions
    return UnitSteps(steps, pack, back, pack_back, tanh)
