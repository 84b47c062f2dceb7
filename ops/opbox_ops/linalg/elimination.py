"""Determinants of large matrices by Gaussian elimination in blocks, which stops between them and lets others run.

LAPACK's, which NumPy calls, is one call that keeps the interpreter's lock: seconds from a few thousand rows on. Here
columns are eliminated BLOCK at a time (Golub and Van Loan, Matrix Computations, 3.2.11): within a block one by one,
with the largest of each as its pivot, and then at once from all that follow, which is a matrix product.
"""

from __future__ import annotations

import numpy as np

from ..compute import Array
from ..cpu.algorithms.large_products import matmul_in_pieces
from ..pausing import pause

__all__ = ["LARGE", "slogdet"]

LARGE = 512
"""Rows from which on this is used: 5 ms of LAPACK's."""
BLOCK = 64


def slogdet(a: Array) -> tuple[float, float]:
    """The sign of a matrix's determinant and the logarithm of its size, as NumPy's slogdet of one matrix."""
    a = np.array(a)
    n, sign, logarithm = len(a), 1.0, 0.0
    for start in range(0, n, BLOCK):
        pause()
        stop = min(start + BLOCK, n)
        panel = a[start:, start:stop]
        for k in range(stop - start):
            pivot = k + int(np.abs(panel[k:, k]).argmax())
            if pivot != k:
                a[[start + k, start + pivot], start:] = a[[start + pivot, start + k], start:]
                sign = -sign
            value = float(panel[k, k])
            if value == 0 or value != value:
                return (0.0, -np.inf) if value == 0 else (value, value)
            sign = -sign if value < 0 else sign
            logarithm += float(np.log(abs(value)))
            panel[k + 1 :, k] /= panel[k, k]
            panel[k + 1 :, k + 1 :] -= panel[k + 1 :, k, None] * panel[k, k + 1 :]
        if stop < n:
            below = np.tril(a[start:stop, start:stop], -1) + np.eye(stop - start, dtype=a.dtype)
            beside = np.linalg.solve(below, a[start:stop, stop:])
            product = np.empty((n - stop, n - stop), a.dtype)
            matmul_in_pieces(a[stop:, start:stop], beside, product)
            a[stop:, stop:] -= product
    return sign, logarithm
