"""The sums of the columns of a matrix (rows, columns) of float32: the gradient of a bias that every row has.

    out[j] = x[0, j] + x[1, j] + …

A C kernel adds as soon as there is one, columns in threads and in registers; NumPy otherwise. Both add the rows in
order, so that the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_long, c_void_p

import numpy as np

from ...compute import Array
from ..runtime.c_kernel import CKernel
from ..runtime.kernel_text import kernel_text

__all__ = ["column_sums", "new_kernel"]

HOT = 1 << 24
"""Numbers that NumPy adds before the kernel is asked for: some tens of milliseconds."""

_TEXT = kernel_text("column_sums.c")


def new_kernel() -> CKernel:
    """The kernel, not compiled yet."""
    return CKernel(_TEXT, "opbox_column_sums", [c_void_p] * 2 + [c_long] * 2, HOT, threads=True)


_KERNEL = new_kernel()


def column_sums(x: Array, out: Array) -> Callable[[], None]:
    """A call that writes the sums of the columns of x (rows, columns) to out (columns): contiguous, of float32."""
    arguments, kernel = (x.ctypes.data, out.ctypes.data, *x.shape), _KERNEL.asked_by(x.size)

    def call(x: Array = x, out: Array = out) -> None:
        function = kernel() if len(x) else None
        if function is None:
            np.add.reduce(x, axis=0, out=out)
        else:
            function(*arguments)

    return call
