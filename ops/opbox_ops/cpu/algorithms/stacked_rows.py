"""Rows of several arrays of float32 below one another, and the sums of their columns.

    target[first row of array i + r, j] = array_i[r, j]        sums[j] = target[0, j] + target[1, j] + …

What a product of many calls reads is brought together so: rows of a few KB, from as many arrays as there are calls. A C
kernel copies them in threads, some columns of all rows at a time, and adds what it has just read; NumPy copies array by
array, in one thread, and reads all again for the sums. Both add the rows in order, so that the bits are the same.

Two threads with AVX-512, us, outside the second cache: 8 arrays of 32 x 1024 with their sums 108 and 68, of 32 x 128
without 10 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import Structure, addressof, c_long, c_void_p

import numpy as np

from ...bound_calls import place_of
from ...compute import Array
from ...nn.shared_product import stacked_by
from ..runtime.c_kernel import CKernel
from ..runtime.kernel_text import kernel_text

__all__ = ["new_kernel", "stacked_rows"]

HOT = 1 << 24
"""Numbers that NumPy copies before the kernel is asked for: some tens of milliseconds."""

_TEXT = kernel_text("stacked_rows.c")


def new_kernel() -> CKernel:
    """The kernel, not compiled yet."""
    types = [c_void_p, c_long, c_long, c_void_p, c_void_p, c_long]
    return CKernel(_TEXT, "opbox_stack_rows", types, HOT, threads=True)


_KERNEL = new_kernel()


class _RowBlock(Structure):
    _fields_ = [("source", c_void_p), ("rows", c_long)]


def stacked_rows(
    target: Array, arrays: Sequence[Array], sums: Array | None = None, part: Array | None = None
) -> Callable[[], None]:
    """A call that copies the rows of `arrays` to `target`, and their columns' sums to `sums`.

    Args:
        target: (rows of all, columns).
        arrays: (rows, …), so many numbers in a row as target has; contiguous, as all arrays here, and of float32.
        sums: (columns).
        part: a temporary (columns); with it, the sums are added to what `sums` has.
    """
    blocks = (_RowBlock * len(arrays))(*[_RowBlock(place_of(array), len(array)) for array in arrays])
    arguments = addressof(blocks), len(arrays), target.shape[1], place_of(target), place_of(sums), part is not None
    alive = blocks, target, arrays, sums
    kernel, by_numpy = _KERNEL.asked_by(target.size), stacked_by(np)(target, list(arrays), sums, part)

    def call(alive: object = alive) -> None:
        function = kernel() if len(target) else None
        if function is None:
            by_numpy()
        else:
            function(*arguments)

    return call
