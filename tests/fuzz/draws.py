"""Choices that are read from bytes, so that a generator of bytes, guided by coverage or not, makes the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tests.cases import Arg, Case

__all__ = ["Draws", "arrays_of", "hostile_array", "hostile_value"]

T = TypeVar("T")

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 63, 1 << 70, -(1 << 70)),
    *(0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), "nan", "inf", "-inf", "None", "True", ""),
    *("cpu", "cpu:7", "cpu:x", "gpu:0"),
    *("float32", "int8", "bool", "bfloat16", "null", "\ud800", "é" * 40, "(1, 2)", "(0,)", "()", "[-1]", "1e400"),
    *((), (0,), (1,), (-1,), (2, 3), (0, 0), (1 << 40,), (1 << 20, 1 << 20), (None,), (-2, -4, -1), (1,) * 33),
)
"""For a parameter, whatever it is."""
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 255.0, -7.0, 1e10, 1e30, -1e30, 1e-30, np.nan, np.inf, -np.inf)
"""For an element; types that have no such number get what a cast makes of it."""
DTYPES = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool", "uint64")
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (0,),
    (1,),
    (3,),
    (1, 0),
    (2, 3),
    (1, 1, 1),
    (2, 1, 4),
    (1, 2, 3, 3),
    (1,) * 9,
)
MAX_ELEMENTS = 4096
"""Maximum number of elements of an array."""


class Draws:
    """Reads choices from bytes; when they are used up, every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, count: int) -> int:
        """A number from 0 to count - 1."""
        size = 1 if count <= 256 else 4
        piece = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(piece, "little") % count

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def sometimes(self, once_in: int) -> bool:
        return self.below(once_in) == 1

    def rest(self) -> bytes:
        """The bytes that are left."""
        piece, self._at = self._data[self._at :], len(self._data)
        return piece


def hostile_value(draws: Draws, usual: Any) -> Any:
    """A value that the parameter may not be ready for; near the usual one half of the time."""
    if draws.sometimes(2):
        if isinstance(usual, bool) or usual is None:
            return draws.one(VALUES)
        if isinstance(usual, int | float):
            return draws.one((usual + 1, usual - 1, -usual, usual * 1000, 0, usual / 2))
        if isinstance(usual, tuple) and usual:
            changed = list(usual)
            changed[draws.below(len(changed))] = draws.one((0, -1, 1, 2, 100, 1 << 33, None))
            return tuple(draws.one((changed, changed[1:], [*changed, 1], changed[::-1])))
    return draws.one(VALUES)


def hostile_array(draws: Draws, array: np.ndarray) -> np.ndarray:
    """An array like `array`, but for its values, shape or type."""
    kind = draws.below(4)
    with np.errstate(all="ignore"):
        if kind == 0 and array.size:
            changed = array.copy()
            for _ in range(1 + draws.below(4)):
                changed.reshape(-1)[draws.below(array.size)] = np.asarray(draws.one(NUMBERS)).astype(array.dtype)
            return changed
        if kind == 1:
            return np.resize(array, draws.one(SHAPES)).astype(array.dtype)
        if kind == 2:
            return array.astype(draws.one(DTYPES))
        shape = list(array.shape)
        if shape:
            at = draws.below(len(shape))
            shape[at] = max(0, shape[at] + draws.one((-1, 1, 2)))
        return np.resize(array, shape if np.prod(shape) <= MAX_ELEMENTS else (1,)).astype(array.dtype)


def arrays_of(case: Case, draws: Draws) -> dict[str, np.ndarray]:
    """Inputs for a row of the operator table."""
    generator = np.random.default_rng(draws.below(256))
    arrays = {}
    for name, value in case.inputs.items():
        arg = value if isinstance(value, Arg) else Arg(tuple(value))
        dtype = arg.dtype or case.dtypes[0]
        if arg.values is not None:
            drawn = np.asarray(arg.values).reshape(arg.shape)
        elif arg.kind == "int":
            drawn = generator.integers(int(arg.low), int(arg.high) + 1, arg.shape)
        else:
            drawn = generator.uniform(arg.low, arg.high, arg.shape)
        if drawn.size <= MAX_ELEMENTS and dtype in DTYPES:
            arrays[name] = drawn.astype(dtype)
        else:
            arrays[name] = np.ones((1,), np.float32)
    return arrays
