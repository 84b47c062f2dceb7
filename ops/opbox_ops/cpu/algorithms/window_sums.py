"""Adding windows up to images: the second half of a gradient of data that is computed as a matrix product.

    images[n, y s + i, x t : x t + k] += windows[n, y, x, i]

images (batch, height, width, channels), windows (batch, *positions, taps, k, channels), s and t the stride. A C kernel
adds as soon as there is one, and NumPy otherwise: in the same order, so that the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_long, c_void_p

import numpy as np

from ...compute import Array
from ..runtime.c_kernel import CKernel
from ..runtime.kernel_text import kernel_text

__all__ = ["window_sums"]

HOT = 1 << 23
"""Numbers that NumPy adds before the kernel is asked for: some tens of milliseconds."""

_TEXT = kernel_text("window_sums.c")


def new_kernel() -> CKernel:
    """The kernel, not compiled yet."""
    return CKernel(_TEXT, "opbox_window_sums", [c_void_p] * 2 + [c_long] * 9, HOT, threads=True)


_KERNEL = new_kernel()


def window_sums(windows: Array, images: Array, stride: tuple[int, int]) -> Callable[[], None]:
    """A call that writes the sums of `windows` to `images`: C-contiguous arrays of float32, see the module."""
    batch, height, width, taps, span, channels = windows.shape
    _, rows, columns, _ = images.shape
    run, right = span * channels, stride[1] * channels
    flat = images.reshape(batch, rows, columns * channels)
    runs = windows.reshape(batch, height, width, taps, run)
    pairs = [
        (flat[:, i : i + (height - 1) * stride[0] + 1 : stride[0], x * right : x * right + run], runs[:, :, x, i])
        for i in reversed(range(taps))
        for x in range(width)
    ]
    places = windows.ctypes.data, images.ctypes.data
    numbers = batch, height, width, taps, run, rows * columns * channels, columns * channels
    arguments, kernel = (*places, *numbers, stride[0], right), _KERNEL.asked_by(windows.size)

    def call(arrays: tuple[Array, Array] = (windows, images)) -> None:
        function = kernel()
        if function is not None:
            function(*arguments)
            return
        images.fill(0)
        for to, window in pairs:
            np.add(to, window, out=to)

    return call
