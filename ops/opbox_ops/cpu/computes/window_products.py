"""Convolutions of few positions, and their gradients, as products with the weight as it lies.

    out = windows @ weight.T + bias      (positions, channels * taps) @ (channels * taps, filters)
    gdata = gather(gout @ weight)        (positions, filters) @ (filters, channels * taps), summed at windows' places
    gweight = gout.T @ windows           (filters, positions) @ (positions, channels * taps)

Data and out have their channels last, and the weight is (filters, channels, *kernel): a row of it has its taps
together, and so have the windows, which are laid out. oneDNN's kernels, and products over windows in place, want the
weight with its channels together: where positions are few, reordering it takes as long as the kernel. Two threads with
AVX2, ms, in training, 512 filters of 3 x 3 over 14 x 14 x 512 with stride 2: forward 3.1 and 1.9, gradient of data 3.3
and 2.1, of the weight 4.1 and 2.2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ...call_list import CallList
from ...compute import Array, Mode, Temp
from ..algorithms.blocked_product import BlockedProduct, ProductSizes
from ..algorithms.column_sums import column_sums
from ..algorithms.window_sizes import WindowSizes
from ..onednn.primitive import Operand
from ..runtime.memory_format import MemoryFormat
from ..runtime.packed_runs import PackedRuns
from .plain_operands import are_plain, data_gradient_operands, forward_operands, weight_gradient_operands, windows_of
from .product import blocked_kernel

__all__ = ["IMPLEMENTATION", "WindowProduct", "data_by_windows", "forward_by_windows", "weight_by_windows"]

IMPLEMENTATION = "windows"
MIN_WEIGHT_NUMBERS = 1 << 19
"""Minimum number of elements of a weight: a smaller one is reordered in the caches."""
FILTERS = 2
"""Filters for a position at least: the windows are then half as large as the weight at most."""

_Window = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class WindowProduct(ABC):
    """What the kernels have in common, which have the methods of a `PrimitiveKernel`.

    Attributes:
        kernel: the compiled functions.
        windows: the convolution's, over data.
        filters: channels of out.
        operands: as in a `PrimitiveKernel`.
    """

    kernel: BlockedProduct
    windows: WindowSizes
    filters: int
    operands: tuple[Operand, ...]

    @property
    def implementation(self) -> str:
        return IMPLEMENTATION

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """None."""
        return ()

    @property
    def _positions(self) -> int:
        return self.windows.data[0] * math.prod(self.windows.out)

    @property
    @abstractmethod
    def _sizes(self) -> ProductSizes:
        """The product's."""

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The windows, and the sums of the product's slabs."""
        return Temp((self._positions, self.windows.columns)), Temp((self._sizes.sums,))

    @abstractmethod
    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that runs it; arguments are those of `PrimitiveKernel.bind`."""

    def packed(self, temps: Sequence[Array], arrays: Sequence[Array], mode: Mode) -> PackedRuns:
        """The same: nothing is packed."""
        return PackedRuns(CallList(), self.bind(temps, arrays), mode)

    def _matrix(self, weight: Array) -> Array:
        return weight.reshape(self.filters, self.windows.columns)

    def _rows(self, out: Array) -> Array:
        return out.reshape(self._positions, self.filters)


@dataclass(frozen=True, slots=True)
class _Forward(WindowProduct):
    """Of arrays data, weight, out and bias if any; with `adds` it adds to what is in out."""

    adds: bool

    @property
    def _sizes(self) -> ProductSizes:
        return ProductSizes(self._positions, self.windows.columns, self.filters, (False, True))

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        (columns, sums), (data, weight, out, *bias), runs = temps, arrays, CallList()
        data, weight = runs.contiguous(data), runs.contiguous(weight)
        places = columns, self._matrix(weight), runs.contiguous(bias[0]) if bias else None, self._rows(out)
        runs.calls.append(self.kernel.lay(self.windows, data, columns))
        runs.calls.append(self.kernel.product(self._sizes, places, sums=sums, adds=self.adds))
        return runs


@dataclass(frozen=True, slots=True)
class _OfData(WindowProduct):
    """Of arrays gout, weight and the gradient of data."""

    @property
    def _sizes(self) -> ProductSizes:
        return ProductSizes(self._positions, self.filters, self.windows.columns)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        (columns, sums), (gout, weight, gdata), runs = temps, arrays, CallList()
        gout, weight = runs.contiguous(gout), runs.contiguous(weight)
        places = self._rows(gout), self._matrix(weight), None, columns
        runs.calls.append(self.kernel.product(self._sizes, places, sums=sums))
        runs.calls.append(self.kernel.gather(self.windows, columns, gdata))
        return runs


@dataclass(frozen=True, slots=True)
class _OfWeight(WindowProduct):
    """Of arrays gout, data, and the gradients of weight and, if any, of bias."""

    @property
    def _sizes(self) -> ProductSizes:
        return ProductSizes(self.filters, self._positions, self.windows.columns, (True, False))

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        (columns, sums), (gout, data, gweight, *gbias), runs = temps, arrays, CallList()
        gout, data = self._rows(runs.contiguous(gout)), runs.contiguous(data)
        runs.calls.append(self.kernel.lay(self.windows, data, columns))
        runs.calls.append(self.kernel.product(self._sizes, (gout, columns, None, self._matrix(gweight)), sums=sums))
        if gbias:
            runs.calls.append(column_sums(gout, gbias[0]))
        return runs


def forward_by_windows(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: _Window,
    adds: bool = False,
) -> WindowProduct | None:
    """Return the kernel of a convolution; None where positions are many, or products are not to be had.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding. With `adds` it
    adds to what is in out.
    """
    kernel = _kernel(data, weight, out)
    if kernel is None:
        return None
    operands = forward_operands(data, weight, bias, out)
    return _Forward(kernel, windows_of(data, weight, out, window), out.shape[1], operands, adds)


def data_by_windows(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> WindowProduct | None:
    """Return the kernel of the gradient of data, as `forward_by_windows` does."""
    kernel = _kernel(data, weight, gout)
    if kernel is None:
        return None
    operands = data_gradient_operands(gout, weight, data)
    return _OfData(kernel, windows_of(data, weight, gout, window), gout.shape[1], operands)


def weight_by_windows(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, window: _Window
) -> WindowProduct | None:
    """Return the kernel of the gradients of weight and, if any, of bias, as `forward_by_windows` does."""
    kernel = _kernel(data, weight, gout)
    if kernel is None:
        return None
    operands = weight_gradient_operands(gout, data, weight, bias)
    return _OfWeight(kernel, windows_of(data, weight, gout, window), gout.shape[1], operands)


def _kernel(data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat) -> BlockedProduct | None:
    """The compiled functions, where such a convolution is for these products."""
    if len(weight.shape) != 4 or weight.shape[2:] == (1, 1) or weight.shape[1] != data.shape[1]:
        return None
    if not are_plain(data, weight, out):
        return None
    positions = math.prod((out.shape[0], *out.shape[2:]))
    if FILTERS * positions > out.shape[1] or math.prod(weight.shape) < MIN_WEIGHT_NUMBERS:
        return None
    return blocked_kernel()
