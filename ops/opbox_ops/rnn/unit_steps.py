"""Steps of the recurrent cells in C by a processor's matrix unit, all of a call at once: products, gates and states.

What `steps` computes, with the products' sums as `blocked_product` says. Numbers below 2^-126 are taken for zero in all
of it. Sigmoids halve their sums and not the weights; tanh is NumPy's own loop or one that gives its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .. import c_compiler
from ..bound_calls import place_of
from ..compute import Array
from ..expression.numpy_loops import LOOP, Loop, loop_of
from ..nn.blocked_product import SPLIT_TEXT, STEP, ProductSizes, has_matrix_unit
from .layout import Sizes
from .unit_steps_text import UNIT_STEPS

__all__ = ["TEXT", "UnitSteps", "compiled", "fits", "packed_numbers", "room_numbers", "unit_steps"]

TEXT = SPLIT_TEXT + LOOP + UNIT_STEPS

_MODES = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}
_LEAST_HIDDEN = 128
"""Rows of a gate from which on its strips are those that the text reads: a matrix of fewer has lower ones."""
_PARTS = 3
"""Of a number, as in the text."""


class _Steps(Structure):
    _fields_ = [
        (name, c_long)
        for name in (
            *("mode", "hidden", "batch", "count", "first", "by", "stored", "keeps", "begin", "x_row"),
            *("state_row", "state_step", "before_row"),
        )
    ]


class _Arrays(Structure):
    _fields_ = [
        (name, c_void_p)
        for name in (
            *("packed", "x", "bias", "of_new", "before", "cell_before", "valid", "gates", "extra", "states", "room"),
        )
    ]


def _blocks(count: int) -> int:
    return -(-count // STEP)


def fits(sizes: Sizes) -> bool:
    """Whether the matrix unit computes such steps, of float32 and neither clipped nor projected."""
    product = ProductSizes(sizes.gates, sizes.outputs, sizes.batch, (False, True), packs_a=True)
    return sizes.hidden >= _LEAST_HIDDEN and not sizes.projected and product.splits


def packed_numbers(sizes: Sizes) -> int:
    """Numbers of a recurrent weight when it is packed: three of two bytes for each, and one for a strip."""
    blocks = _blocks(sizes.hidden)
    return sizes.gates // sizes.hidden * blocks * (blocks * STEP * STEP * _PARTS // 2 + 1)


def room_numbers(sizes: Sizes) -> int:
    """Numbers that the steps work in: two states in parts, one as it is, and one number for so many samples."""
    pieces, panels = _blocks(sizes.hidden) * _blocks(sizes.batch), _blocks(sizes.batch)
    return pieces * STEP * STEP * (_PARTS + 1) + panels


@dataclass(frozen=True, slots=True)
class UnitSteps:
    """The compiled functions."""

    _steps: Any
    _pack: Any
    _tanh: Loop

    def pack(self, mode: str, weight: Array, target: Array) -> None:
        """Write the packed recurrent weight (gates, hidden), which lies together, to `target`."""
        assert weight.flags.c_contiguous
        steps = _Steps(mode=_MODES[mode], hidden=weight.shape[1])
        self._pack(place_of(weight), place_of(target), byref(steps))

    def run(self, mode: str, arrays: Mapping[str, Array | None], times: range, begin: int) -> None:
        """Compute the steps at `times`, one after the other.

        Args:
            mode: the cell.
            arrays: by name, of float32, each contiguous unless said otherwise:
                packed: by `pack`;
                x: (gates, steps, batch), products of the weights with the inputs of steps from `begin` on;
                bias: (gates,), what is added to them;
                of_new: (hidden,), gru's bias within the reset;
                before, cell_before: (batch, hidden), rows apart, and (hidden, batch): state and lstm's cell before;
                valid: booleans (time, 1, batch); None: all steps count;
                gates: (stored, gates, batch), or of no step, written;
                extra: (stored, hidden, batch), written; None where the cell has none;
                states: (time, batch, hidden), rows apart, written;
                room: of `room_numbers`.
            times: steps that follow one another, forwards or backwards.
            begin: the first step of x.
        """
        x, gates, states, before = (arrays[name] for name in ("x", "gates", "states", "before"))
        assert x is not None
        assert gates is not None
        assert states is not None
        assert before is not None
        extra, keeps = arrays["extra"], len(gates) > 0
        stored = len(extra) if extra is not None else max(1, len(gates))
        steps = _Steps(
            *(_MODES[mode], states.shape[2], states.shape[1], len(times), times[0], times.step, stored, keeps),
            *(begin, x.strides[0] // 4, states.strides[1] // 4, states.strides[0] // 4, before.strides[0] // 4),
        )
        places = _Arrays(**{name: place_of(array) for name, array in arrays.items()})
        self._steps(byref(places), byref(steps), byref(self._tanh))


def unit_steps() -> UnitSteps | None:
    """The compiled functions; None without a compiler or a matrix unit."""
    return compiled(TEXT) if has_matrix_unit() else None


@cache
def compiled(text: str) -> UnitSteps | None:
    """The functions of a text like `TEXT`; None where it cannot be compiled."""
    tanh = loop_of("tanh", np.dtype(np.float32))
    types = {"opbox_unit_steps": [c_void_p] * 3, "opbox_unit_pack": [c_void_p] * 3}
    functions = c_compiler.compiled_functions(text, types)
    if functions is None or tanh is None:
        return None
    steps, pack = functions
    return UnitSteps(steps, pack, tanh)
