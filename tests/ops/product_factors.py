"""Factors of products in blocks, and what a script prints of their bits, for tests of kernels."""

from __future__ import annotations

import numpy as np

from opbox_ops.compute import Array
from opbox_ops.cpu.algorithms.blocked_product import ProductSizes

__all__ = ["bits_of", "factors", "numbers"]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def factors(sizes: ProductSizes) -> tuple[Array, Array]:
    """a and b, as they lie."""
    shapes = (sizes.rows, sizes.terms), (sizes.terms, sizes.columns)
    a, b = (
        numbers(*shape[:: -1 if transposed else 1], seed=k)
        for k, (shape, transposed) in enumerate(zip(shapes, sizes.transposed, strict=True))
    )
    return a, b


def bits_of(*shapes: tuple[int, int, int]) -> str:
    """A script that prints a line for each product of rows, terms and columns; of 9,000 terms a is transposed.

    A line says whether the matrix unit computed it, and has its bits.
    """
    return f"""
import numpy as np
from opbox_ops.cpu.algorithms.blocked_product import ProductSizes, blocked_product
from opbox_ops.cpu.onednn.library import library
library()
kernel = blocked_product()
rng = np.random.default_rng(0)
for rows, terms, columns in {shapes}:
    sizes = ProductSizes(rows, terms, columns, (terms == 9000, False))
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, terms), (terms, columns)))
    out = np.zeros((rows, columns), np.float32)
    kernel.product(sizes, (a, b, None, out), sums=np.zeros(sizes.sums, np.float32))()
    print(sizes.splits, out.tobytes().hex())
"""
