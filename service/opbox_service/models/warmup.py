"""Warm-up: what a model runs before it is ready, so that no request waits for a plan to be compiled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field

from opbox_protocol.datatypes import DATATYPES, dtype_of
from opbox_protocol.errors import BadRequestError

from ..validation import Strict

if TYPE_CHECKING:
    from .model_signature import ServedTensor

__all__ = ["Warmup", "WarmupInput", "known_shapes", "warmup_tensors"]

Array: TypeAlias = "np.ndarray[Any, Any]"
Shapes: TypeAlias = "dict[str, tuple[tuple[int, ...], Any]]"


class WarmupInput(Strict):
    """Values of an input."""

    shape: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None, description="Lengths of its axes; by default the model's, with every size of runs."
    )
    datatype: Literal[tuple(DATATYPES)] | None = Field(  # type: ignore[valid-type]  # a table's, which no checker reads
        default=None, description="By default the model's."
    )
    data: Literal["zero", "random"] = Field(default="zero", description="Zeros, or the same random values each time.")


class Warmup(Strict):
    """A request that a model runs before it is ready."""

    name: str = Field(default="", description="For errors.")
    inputs: Mapping[str, WarmupInput] = Field(default={}, description="By input; those that are left out are zeros.")
    count: int = Field(default=1, ge=1, le=1000, description="How many times it runs.")


def known_shapes(inputs: Sequence[ServedTensor], axis: int | None, size: int) -> Shapes | None:
    """Shapes and types of inputs with `size` examples along `axis`; None where another axis varies."""
    shapes: Shapes = {}
    for tensor in inputs:
        if tensor.shape is None:
            return None
        shape = tuple(size if i == axis and n == -1 else n for i, n in enumerate(tensor.shape))
        if -1 in shape:
            return None
        shapes[tensor.name] = shape, dtype_of(tensor.datatype)
    return shapes


def warmup_tensors(
    warmup: Warmup, inputs: Sequence[ServedTensor], axis: int | None, sizes: Sequence[int]
) -> Iterator[dict[str, Array]]:
    """The requests of a warm-up: one, or one for each size where it leaves that open.

    Args:
        warmup: what the model's file says.
        inputs: of the model.
        axis: counts examples; None where none does.
        sizes: numbers of examples of the model's runs.

    Raises:
        BadRequestError: it names what is no input, or no shape where that cannot be known.
    """
    where = f"warmup {warmup.name!r}" if warmup.name else "warmup"
    names = [tensor.name for tensor in inputs]
    unknown = [name for name in warmup.inputs if name not in names]
    if unknown:
        raise BadRequestError(f"{where}: inputs: {unknown[0]!r}: expected one of {', '.join(names) or 'none'}")
    stated = [one.shape for one in warmup.inputs.values() if one.shape is not None]
    for size in sizes if not stated else sizes[:1]:
        shapes = known_shapes([tensor for tensor in inputs if _shape(warmup, tensor.name) is None], axis, size)
        if shapes is None:
            raise BadRequestError(
                f"{where}: inputs: expected shapes, as an axis beside the batch axis varies, got none"
            )
        rng = np.random.default_rng(0)
        tensors = {}
        for tensor in inputs:
            one = warmup.inputs.get(tensor.name, WarmupInput())
            shape = shapes[tensor.name][0] if one.shape is None else tuple(one.shape)
            dtype = dtype_of(one.datatype or tensor.datatype)
            tensors[tensor.name] = np.zeros(shape, dtype) if one.data == "zero" else _random(rng, shape, dtype)
        yield from itertools.repeat(tensors, warmup.count)


def _shape(warmup: Warmup, name: str) -> list[int] | None:
    one = warmup.inputs.get(name)
    return None if one is None else one.shape


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Values that any model takes: normal numbers, or zeros and ones where a type has no others."""
    if dtype.kind in "biu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)
