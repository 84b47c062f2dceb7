"""The numbers that a row is run on: the same ones here and in MXNet's environment, whatever NumPy is there.

Values come from RandomState, whose stream NumPy never changes, seeded by the row and the argument. Drawn numbers are
odd multiples of a power of two that float16 holds: every float type then computes on exactly the same inputs, and none
of them sits on a kink (0, 1, a half), where a gradient would be a matter of taste.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .case import Arg, Case

__all__ = ["arg_dtype", "arguments", "as_arg", "head_gradient", "inputs", "is_float", "stream"]

Array = Any
FLOAT_BITS = 10  # of a float16's fraction
DEFAULT = (Arg((1,)).low, Arg((1,)).high)
INTEGERS = (-6, 6)  # for integer types, where a row leaves the range to us


def is_float(dtype: Any) -> bool:
    """Whether it is float16, float32, float64 (or bfloat16)."""
    return np.dtype(dtype).kind == "f" or np.dtype(dtype).name == "bfloat16"


def as_arg(shape: Arg | tuple[int, ...]) -> Arg:
    """A plain shape stands for a float argument of that shape."""
    return shape if isinstance(shape, Arg) else Arg(tuple(shape))


def arguments(case: Case) -> dict[str, Arg]:
    """The row's inputs, all as Arg."""
    return {name: as_arg(shape) for name, shape in case.inputs.items()}


def arg_dtype(arg: Arg, dtype: str) -> str:
    """The element type of an argument when its row is run in `dtype`."""
    return arg.dtype or dtype


def stream(*seed: Any) -> np.random.RandomState:
    """A random stream for these words."""
    return np.random.RandomState(zlib.crc32(repr(seed).encode()))


def inputs(case: Case, dtype: str, shapes: dict[str, tuple[int, ...]] | None = None) -> dict[str, Array]:
    """The row's input arrays in `dtype`, in the operator's order; of other `shapes` if given."""
    arrays = {}
    for name, arg in arguments(case).items():
        shape = tuple(arg.shape) if shapes is None else shapes[name]
        arrays[name] = _draw(arg, shape, np.dtype(arg_dtype(arg, dtype)), stream(case.id, name))
    return arrays


def head_gradient(case: Case, index: int, shape: Sequence[int], dtype: Any) -> Array:
    """The gradient that is fed into output `index` (its numbers do not depend on the type)."""
    return _odd_multiples(stream(case.id, "head", index), -1.0, 1.0, tuple(shape)).astype(dtype)


def _draw(arg: Arg, shape: tuple[int, ...], dtype: np.dtype[Any], rng: np.random.RandomState) -> Array:
    if arg.values is not None:
        values = np.asarray(arg.values)
        if shape != tuple(arg.shape):
            return np.resize(values, shape).astype(dtype)
        return values.reshape(shape).astype(dtype)
    if dtype.kind == "b":
        return rng.randint(0, 2, shape).astype(dtype)
    low, high = arg.low, arg.high
    whole = not is_float(dtype)
    if whole and arg.kind != "int" and (low, high) == DEFAULT:
        low, high = INTEGERS
    if dtype.kind == "u":
        low, high = max(low, 0), max(high, 0)
    if arg.kind == "distinct":
        return _distinct(rng, low, high, shape, whole).astype(dtype)
    if whole or arg.kind == "int":
        first = int(np.ceil(low))
        return rng.randint(first, max(first, int(np.floor(high))) + 1, shape).astype(dtype)
    return _odd_multiples(rng, low, high, shape).astype(dtype)


def _grid(low: float, high: float) -> float:
    """The least step of float16 at the larger of the two numbers."""
    largest = max(abs(low), abs(high), 2.0**-6)
    return float(2.0 ** (np.ceil(np.log2(largest)) - FLOAT_BITS))


def _odd_multiples(rng: np.random.RandomState, low: float, high: float, shape: tuple[int, ...]) -> Array:
    step = _grid(low, high)
    first, last = int(np.ceil((low / step - 1) / 2)), int(np.floor((high / step - 1) / 2))
    return (2 * rng.randint(first, max(last, first) + 1, shape) + 1) * step


def _distinct(rng: np.random.RandomState, low: float, high: float, shape: tuple[int, ...], whole: bool) -> Array:
    """A shuffle of evenly spaced numbers; for integer types consecutive ones from `low` on."""
    size = int(np.prod(shape, dtype=int))
    order = rng.permutation(size).reshape(shape)
    if whole:
        return order + int(np.ceil(low))
    step = _grid(low, high)
    apart = max(2.0, np.floor((high - low) / step / max(size, 1)))
    return (np.floor(low / step) + 1 + order * apart) * step
