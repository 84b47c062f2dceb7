"""The gradient of a convolution's weight in C where a row of a window is short: of images with few channels.

    gweight[f, c, i, j] = the sum over n, y, x of gout[n, y, x, f] data[n, y s - p + i, x s - p + j, c]

of arrays whose channels lie last, padded by zeros. A row of a window, `kernel width * channels` numbers that lie
together, is up to three vectors, which are read where they lie: nothing is laid out but rows of data with their
padding. For a row of out, 12 or 8 vectors of sums stay in registers: so many filters by a row of a window. Rows of out
come in slabs, whose number depends on the shapes alone, and so do the bits.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...bound_calls import c_call
from ...compute import Array
from ..runtime import c_compiler
from ..runtime.kernel_text import kernel_text
from .window_sizes import WindowSizes

__all__ = ["LONGEST", "ShortRows", "short_rows"]

TEXT = kernel_text("short_rows.c")
WIDTH = 8
"""Numbers of a vector, as in the C."""
LONGEST = 3 * WIDTH
"""Numbers of a row of a window."""
SLABS = 16


@dataclass(frozen=True, slots=True)
class ShortRows:
    """The compiled function. Arrays are contiguous, of float32, with their channels last."""

    _gradient: Any

    @staticmethod
    def _slabs(windows: WindowSizes) -> int:
        return min(SLABS, windows.data[0] * windows.out[0])

    @staticmethod
    def _vectors(windows: WindowSizes) -> int:
        return -(-windows.kernel[1] * windows.data[3] // WIDTH)

    @staticmethod
    def _length(windows: WindowSizes) -> int:
        """Numbers of a row of data with its margins, and what the last window's vectors read behind it."""
        _, _, width, channels = windows.data
        reach = max(width + windows.pad[1], (windows.out[1] - 1) * windows.stride[1] + windows.kernel[1])
        return (reach + windows.pad[1]) * channels + WIDTH

    def scratch(self, windows: WindowSizes, filters: int) -> tuple[int, int]:
        """Numbers of the temporaries: sums, and rows of data."""
        slabs, rows = self._slabs(windows), windows.kernel[0]
        return slabs * rows * filters * self._vectors(windows) * WIDTH, slabs * rows * self._length(windows)

    def gradient(
        self, windows: WindowSizes, arrays: tuple[Array, Array, Array], scratch: tuple[Array, Array]
    ) -> Callable[[], None]:
        """Return a call that writes the gradient of a weight.

        Args:
            windows: of the convolution; a row has `LONGEST` numbers at most, and none is skipped in it.
            arrays: gout, data, and the gradient (filters, channels, *kernel), of any strides.
            scratch: temporaries, as `scratch` says.
        """
        gout, _, gweight = arrays
        assert windows.dilate[1] == 1
        assert windows.kernel[1] * windows.data[3] <= LONGEST
        structure = windows.structure
        steps = (c_long * 4)(*[step // gweight.itemsize for step in gweight.strides])
        places = [array.ctypes.data for array in (*arrays, *scratch)]
        numbers = gout.shape[-1], self._slabs(windows), self._length(windows)
        arguments = (*places, addressof(structure), *numbers, addressof(steps))
        return c_call(self._gradient, arguments, (arrays, scratch, structure, steps))


def short_rows() -> ShortRows | None:
    """The compiled function; None without a compiler, or on a processor without AVX2 and FMA.

    It is compiled when it is first asked for, which takes a part of a second, and is on disk from then on.
    """
    return _compiled() if c_compiler.allows_vectors() else None


@cache
def _compiled() -> ShortRows | None:
    function = c_compiler.compiled_function(TEXT, "opbox_short_rows", threads=True)
    if function is None:
        return None
    function.restype, function.argtypes = None, [*[c_void_p] * 6, *[c_long] * 3, c_void_p]
    return ShortRows(function)
