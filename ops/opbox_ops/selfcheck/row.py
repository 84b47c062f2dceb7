"""A row of the self-check: an operator's call on a small odd shape and on one of many blocks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["CHECKED_TYPES", "Drawn", "Input", "Row", "draw"]

CHECKED_TYPES = ("float32", "float16", "float64", "bfloat16")
"""The element types of each row, in the order they are checked; a type that no compute takes is passed over."""


@dataclass(frozen=True)
class Input:
    """An input that is not of numbers between -1 and 1 in the checked type.

    Attributes:
        shape: its dimensions.
        low, high: its numbers are between these.
        kind: "float"; "int": whole numbers; "distinct": all numbers of a row (the last axis) differ; "boxes": corners;
            "scored": class, score and corners; "labelled": class and corners; "regions": image, then corners;
            "definite": symmetric and positive definite matrices; "dominant": matrices whose diagonal is large.
        dtype: the element type, where it is not the checked one.
    """

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    kind: str = "float"
    dtype: str | None = None


Drawn = Input | tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """An operator's calls; its gradient is checked with it.

    Attributes:
        op: the operator's name.
        small, large: its inputs in order; a shape stands for numbers between -1 and 1.
        attrs: its parameters; "{dtype}" in one stands for the checked type.
        large_attrs: those that differ for the large call.
        compares: "values": each number with NumPy's; "draws": mean and deviation of random numbers; "order": the
            sorted numbers; "finite": nothing but that the numbers are finite, and the same in a second run.
        slack: how many times the usual tolerance is allowed, where rounding errors grow in the computation.
        gradient: whether the gradient is checked too.
        is_train: the mode.
        types: the element types.
        why: the reason for a slack, or for what is left out.
    """

    op: str
    small: Sequence[Drawn]
    large: Sequence[Drawn]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    large_attrs: Mapping[str, Any] = field(default_factory=dict)
    compares: str = "values"
    slack: float = 1.0
    gradient: bool = True
    is_train: bool = True
    types: tuple[str, ...] = CHECKED_TYPES
    why: str = ""

    def calls(self, dtype: str) -> list[tuple[dict[str, str], list[Input]]]:
        """The parameters and inputs of both calls, in a type."""
        sizes: tuple[tuple[Sequence[Drawn], Mapping[str, Any]], ...]
        sizes = ((self.small, {}), (self.large, self.large_attrs))
        return [
            (
                {key: str(value).replace("{dtype}", dtype) for key, value in {**self.attrs, **further}.items()},
                [one if isinstance(one, Input) else Input(one) for one in inputs],
            )
            for inputs, further in sizes
        ]


def draw(spec: Input, dtype: str, *seed: Any) -> np.ndarray[Any, Any]:
    """An input's numbers: the same ones for the same words, rounded to its type."""
    rng = np.random.default_rng(zlib.crc32(repr((spec, seed)).encode()))
    return np.asarray(_numbers(spec, rng)).astype(spec.dtype or dtype)


def _numbers(spec: Input, rng: np.random.Generator) -> Any:
    shape, low, high = spec.shape, spec.low, spec.high
    if spec.kind == "int":
        return rng.integers(int(low), int(high) + 1, shape)
    if spec.kind == "distinct":
        count = shape[-1] if shape else 1
        order = rng.permuted(np.broadcast_to(np.arange(count), shape), axis=-1)
        return low + (high - low) * order / 2 ** math.ceil(math.log2(max(count, 2)))
    if spec.kind in ("boxes", "scored", "labelled", "regions"):
        corners = _corners(shape[:-1], low, high, rng)
        if spec.kind == "boxes":
            return corners
        if spec.kind == "regions":
            return np.concatenate([rng.integers(0, 2, (*shape[:-1], 1)), corners], -1)
        if spec.kind == "labelled":
            return np.concatenate([rng.integers(0, 3, (*shape[:-1], 1)), corners], -1)
        scores = rng.permutation(math.prod(shape[:-1])).reshape(*shape[:-1], 1)
        classes = rng.integers(0, 3, (*shape[:-1], 1))
        return np.concatenate([classes, scores / 2 ** math.ceil(math.log2(max(scores.size, 2))), corners], -1)
    numbers = rng.uniform(low, high, shape)
    if spec.kind == "definite":
        return np.matmul(numbers, np.swapaxes(numbers, -1, -2)) / shape[-1] + 2 * np.eye(shape[-1])
    if spec.kind == "dominant":
        return numbers / shape[-1] + np.eye(shape[-2], shape[-1])
    return numbers


def _corners(shape: tuple[int, ...], low: float, high: float, rng: np.random.Generator) -> Any:
    """Left, top, right, bottom, in 64ths of the range: a right that is left of the left has no area."""
    places = low + (high - low) * rng.integers(0, 33, (*shape, 2)) / 64
    sizes = (high - low) * rng.integers(8, 32, (*shape, 2)) / 64
    return np.concatenate([places, places + sizes], -1)
