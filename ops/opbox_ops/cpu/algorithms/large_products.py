"""Matrix products on the CPU that take long: in pieces of some tenths of a second, between which their call may end."""

from __future__ import annotations

import math

import numpy as np

from ...compute import Array
from ...pausing import pause

__all__ = ["MAX_PIECE_MULTIPLICATIONS", "is_large", "matmul_in_pieces"]

MAX_PIECE_MULTIPLICATIONS = 1 << 33
"""Maximum number of multiplications of a piece: 0.2 s of one thread at 80 GFLOP/s."""


def is_large(a: Array, out: Array) -> bool:
    """Return whether `matmul_in_pieces` splits out = a @ b into more than one piece."""
    return bool(out.size * a.shape[-1] > MAX_PIECE_MULTIPLICATIONS)


def matmul_in_pieces(a: Array, b: Array, out: Array) -> None:
    """out = a @ b, as NumPy's matmul takes matrices and batches of them."""
    if out.ndim < 2 or not is_large(a, out):
        pause()
        np.matmul(a, b, out=out)
        return
    count = math.ceil(out.size * a.shape[-1] / MAX_PIECE_MULTIPLICATIONS)
    if out.ndim > 2:
        a, b = (np.broadcast_to(array, (*out.shape[:-2], *array.shape[-2:])) for array in (a, b))
        step = max(1, len(out) // count)
        for start in range(0, len(out), step):
            at = slice(start, start + step) if step > 1 else start
            matmul_in_pieces(a[at], b[at], out[at])
        return
    rows, columns = out.shape
    step = max(1, max(rows, columns) // count)
    for start in range(0, max(rows, columns), step):
        at = slice(start, start + step)
        pause()
        if rows >= columns:
            np.matmul(a[at], b, out=out[at])
        else:
            np.matmul(a, b[:, at], out=out[:, at])
