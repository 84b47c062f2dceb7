"""Matrix products of float32 that are not left to NumPy's BLAS, and their kernels.

From MIN_MULTIPLICATIONS on they run in blocks (`blocked_product_kernel`), or by oneDNN's matmul where it has kernels
for AVX-512 and the product is a large gradient of a weight, or there is no compiler for blocks; small ones, and all
where neither is to be had, by BLAS. Which one a product gets depends on its shape alone, so that an operator called by
itself gives what it gives in a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeAlias

import numpy as np

from ...compute import Array
from ...cuda.product import matmul
from ..algorithms.blocked_product import BlockedProduct, ProductSizes, blocked_product
from ..onednn.cache import MAX_CACHED_KERNELS
from ..onednn.matmul_primitive import Sizes, if_fast, matmul_primitive
from ..onednn.primitive import PrimitiveKernel
from .blocked_product_kernel import BlockedKernel, blocked_product_kernel

__all__ = [
    "ProductKernel",
    "block_matmul",
    "blocked_kernel",
    "fast_product",
    "has_fast_kernels",
    "packed_columns",
    "packed_rows",
    "packing_kernel",
    "weight_gradient_product",
]

MIN_MULTIPLICATIONS = 1 << 18
"""Minimum number of multiplications of a product that is not left to BLAS.

Processor us of one thread with AVX-512, NumPy's OpenBLAS and oneDNN: 128 x 64 by 64 x 10 6.7 and 5.6, 10 x 128 by
128 x 64 3.2 and 4.6, 128 x 128 by 128 x 64 28 and 19, 128 x 784 by 784 x 128 318 and 203. Of gradients of weights,
64 x 64 by 64 x 64 7 and 4, 64 x 128 by 128 x 128 21 and 12.
"""
SHARED_SETS = 1024
"""Bytes: rows that lie a multiple of it apart share few sets of the first cache, and evict one another."""
MIN_REORDERED_MULTIPLICATIONS = 1 << 22
"""Minimum number of multiplications of a weight's gradient for data with such rows to be reordered.

1024 x 256 by 256 x 256 takes 1505 us as it lies and 1126 reordered on a processor of Intel's, 586 and 592 on one of
AMD's. Other data is read as it lies: 128 x 128 by 128 x 784 takes 109 us and 118, with two threads 66 and 110.
"""
MIN_SIDE = 16
"""Minimum number of rows, of columns and of terms of such a product: 1 x 25088 by 25088 x 4096 takes 35 ms by OpenBLAS
and 48 by oneDNN."""
MIN_ROWS_IN_BLOCKS = 2
"""Minimum number of rows, multiplied in blocks by a weight as it lies. Two threads, ms, OpenBLAS and in blocks, by
25088 x 4096: 1 row 14 and 24, 2 rows 39 and 25, 8 rows 34 and 31. By its transpose 8 rows 26 and 34: `MIN_SIDE` stays
there. The gradient of such a weight from 1 row takes 58 and 29, from 8 rows 68 and 37: in blocks it may have a single
term."""
MANY_SUMMED, MANY_OF_GRADIENT = 128, 1 << 25
"""Rows that are summed, and multiplications, from which on a weight's gradient takes less time by oneDNN's matmul with
AVX-512 than in blocks.

Two threads, GFLOP/s, in blocks and by oneDNN, in the caches: 1024 x 256 by 256 x 256 240 and 283, 1024 x 128 by 128 x
256 277 and 270, 512 x 500 by 500 x 800 310 and 318; outside 238 and 247, 263 and 240, 280 and 260.
"""
MAX_MULTIPLICATIONS = 1 << 36
"""Number of multiplications from which on NumPy's BLAS runs in pieces (`large_products`): oneDNN would not stop for
seconds."""

_FLOAT32 = np.dtype(np.float32)
ProductKernel: TypeAlias = PrimitiveKernel | BlockedKernel


@cache
def has_fast_kernels() -> bool:
    """Return whether this processor has oneDNN's kernels for AVX-512; its others are no faster than OpenBLAS."""
    chosen = matmul_primitive((64, 64, 64), False, (False, True))
    return if_fast(chosen) is not None


def blocked_kernel() -> BlockedProduct | None:
    """The functions of products in blocks; None where there is no compiler, or no vectors that they could use."""
    return blocked_product()


def block_matmul(xp: Any, a: Array, b: Array, out: Array) -> None:
    """Write a @ b to `out`, arrays of float32: in blocks where that is to be and they lie for it, else by NumPy.

    For computes that make products of their own as they run; those of a plan's steps have kernels.
    """
    product = None
    if out.flags.c_contiguous and (b.flags.c_contiguous or b.flags.f_contiguous):
        transposed = a.flags.f_contiguous and not a.flags.c_contiguous, not b.flags.c_contiguous
        if transposed[0] or a.strides[1] == a.itemsize:
            product = _rebound(
                (*a.shape, b.shape[1]), transposed, None if transposed[0] else a.strides[0] // a.itemsize
            )
    if product is None:
        matmul(xp, a, b, out)
    else:
        product(a.T if transposed[0] else a, b.T if transposed[1] else b, None, out)


def packed_columns(weight: Array, columns: int, packed: Array) -> Callable[[Array, Array], None] | None:
    """Pack a weight, and return a function `(a, out)` of matrices of so many columns: out = a.T @ weight.

    The bits are those of `block_matmul` by the weight turned over, but where the matrix unit computes it; None where
    that has none of its own, or the weight does not lie for it.

    Args:
        weight: (terms, width), of float32.
        columns: of a; a and out lie together.
        packed: as many numbers as `ProductSizes.packed` says, or more.
    """
    terms, width = weight.shape
    kernel, sizes = blocked_kernel(), ProductSizes(columns, terms, width, (True, False), reads_packed=True)
    if kernel is None or _is_left_to_blas((width, terms, columns)) or sizes.sums or not weight.flags.c_contiguous:
        return None
    kernel.pack(sizes, weight, packed)()
    run = kernel.rebound(sizes, np.empty(0, np.float32), packed=packed)
    return lambda a, out: run(a, weight, None, out)


def packed_rows(
    weight: Array, columns: int, packed: Array, *, packs: bool = True
) -> Callable[[Array, Array], None] | None:
    """Pack a weight, and return a function `(b, out)` of matrices of so many columns or fewer: out = weight @ b.

    None where the matrix unit does not compute it, or the weight does not lie for it.

    Args:
        weight: (rows, terms), of float32.
        columns: of b, whose columns lie together, and of out, whose rows do.
        packed: as many numbers as `ProductSizes.packed` says, or more.
        packs: whether the weight is to be packed; otherwise `packed` has it already.
    """
    rows, terms = weight.shape
    kernel, sizes = blocked_kernel(), ProductSizes(rows, terms, columns, (False, True), packs_a=True)
    if kernel is None or not sizes.splits or not weight.flags.c_contiguous:
        return None
    if packs:
        kernel.pack(sizes, weight, packed)()
    return kernel.by_packed_rows(sizes, weight, packed)


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def _rebound(
    sizes: Sizes, transposed: tuple[bool, bool], a_row: int | None
) -> Callable[[Array, Array, None, Array], None] | None:
    kernel, product = blocked_kernel(), ProductSizes(*sizes, transposed)
    if kernel is None or product.sums or _is_left_to_blas(sizes):
        return None
    return kernel.rebound(product, np.empty(0, np.float32), a_row)


def _is_left_to_blas(sizes: Sizes, fewest: Sizes | None = None) -> bool:
    fewest = (MIN_SIDE, MIN_SIDE, MIN_SIDE) if fewest is None else fewest
    few = any(size < least for size, least in zip(sizes, fewest, strict=True))
    return few or not MIN_MULTIPLICATIONS <= math.prod(sizes) < MAX_MULTIPLICATIONS


def fast_product(
    sizes: Sizes, bias: bool, transposed: bool, adds: bool = False, in_blocks: bool = True
) -> ProductKernel | None:
    """out = a @ b, or a @ b.T + bias, where that is faster than NumPy's BLAS; else None.

    `in_blocks` says whether it is to run in blocks, where those are to be had, or by oneDNN.
    """
    if in_blocks and blocked_kernel() is not None:
        fewest = MIN_ROWS_IN_BLOCKS if transposed else MIN_SIDE, MIN_SIDE, MIN_SIDE
        return (
            None
            if _is_left_to_blas(sizes, fewest)
            else blocked_product_kernel(sizes, bias, (False, transposed), adds=adds)
        )
    return None if _is_left_to_blas(sizes) else if_fast(matmul_primitive(sizes, bias, (False, transposed), adds=adds))


def packing_kernel(
    sizes: Sizes, bias: bool, adds: bool = False, in_blocks: bool = True, transposed: bool = True
) -> ProductKernel | None:
    """out = a @ b.T + bias, or a @ b, with b packed beforehand, where there is a `fast_product` of b as it lies.

    Its results are those of the product of b as it lies, to the last bit where no matrix unit computes it.
    """
    if fast_product(sizes, bias, transposed, adds=adds, in_blocks=in_blocks) is None:
        return None
    if in_blocks and blocked_kernel() is not None:
        return blocked_product_kernel(sizes, bias, (False, transposed), free=True, adds=adds)
    chosen = if_fast(matmul_primitive(sizes, bias, (False, transposed), free=True, adds=adds))
    return chosen if chosen is not None and chosen.packs == ((1, 1),) else None


def weight_gradient_product(rows: int, hidden: int, features: int, adds: bool = False) -> ProductKernel | None:
    """gweight = gout.T @ data, where that is faster than NumPy's BLAS; else None."""
    sizes = hidden, rows, features
    large = rows >= MANY_SUMMED and math.prod(sizes) >= MANY_OF_GRADIENT
    splits = ProductSizes(*sizes, (True, False)).splits
    if blocked_kernel() is not None and (splits or not (large and has_fast_kernels())):
        left = _is_left_to_blas(sizes, (MIN_SIDE, 1, MIN_SIDE))
        return None if left else blocked_product_kernel(sizes, False, (True, False), adds=adds)
    if _is_left_to_blas(sizes):
        return None
    reordered = math.prod(sizes) >= MIN_REORDERED_MULTIPLICATIONS and features * np.float32().nbytes % SHARED_SETS == 0
    return if_fast(matmul_primitive(sizes, False, (True, False), reordered, adds))
