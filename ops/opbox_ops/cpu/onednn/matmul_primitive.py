"""oneDNN's matmul, made from sizes and bound to arrays."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ..runtime.memory_format import MemoryFormat
from .cache import MAX_CACHED_KERNELS
from .library import ArgumentNumber, Query
from .primitive import Operand, PrimitiveKernel

__all__ = ["Sizes", "if_fast", "matmul_primitive"]

SINGLE = 1 << 22
"""Multiplications up to which a product runs in one thread: waking another takes as long as it would save."""

_FLOAT32 = np.dtype(np.float32)
Sizes: TypeAlias = tuple[int, int, int]
"""Rows, summed and columns of a product."""


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def matmul_primitive(
    sizes: Sizes,
    bias: bool,
    transposed: tuple[bool, bool],
    free: bool = False,
    adds: bool = False,
    dtype: np.dtype[Any] = _FLOAT32,
    batch: int | None = None,
) -> PrimitiveKernel | None:
    """out = a @ b, where `transposed` says whose arrays lie as the transposed matrix, `free` that b is reordered.

    With `adds`, out += a @ b. Arrays are of `dtype`; the bias of a product of float16 is of float32. With `batch` each
    array has so many matrices.
    """
    rows, summed, columns = sizes
    lead = () if batch is None else (batch,)
    swap = (1, 0) if batch is None else (0, 2, 1)
    factors = [
        MemoryFormat.plain((*lead, *(height, width)[:: -1 if swapped else 1]), dtype, swap if swapped else None)
        for height, width, swapped in ((rows, summed, transposed[0]), (summed, columns, transposed[1]))
    ]
    operands = [
        Operand(ArgumentNumber.SOURCE, factors[0]),
        Operand(ArgumentNumber.WEIGHTS, factors[1], Query.WEIGHTS, free),
        Operand(ArgumentNumber.DESTINATION, MemoryFormat.plain((*lead, rows, columns), dtype), written=True),
    ]
    if bias:
        of_bias = _FLOAT32 if dtype == np.float16 else dtype
        operands.append(Operand(ArgumentNumber.BIAS, MemoryFormat.plain((1, columns), of_bias)))

    def arguments(a: int, b: int, out: int, bias: int | None = None) -> tuple[Any, ...]:
        return (a, b, bias, out)

    return PrimitiveKernel.of("matmul", operands, arguments, single=math.prod((*lead, *sizes)) <= SINGLE, adds=adds)


def if_fast(primitive: PrimitiveKernel | None) -> PrimitiveKernel | None:
    """The primitive, if it runs by a kernel for AVX-512; else None."""
    return primitive if primitive is not None and primitive.implementation.startswith("brg:avx512") else None
