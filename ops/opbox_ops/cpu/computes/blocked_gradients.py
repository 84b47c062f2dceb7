"""The gradients of a convolution by products in blocks, over arrays whose channels lie last.

    gweight = gout.T @ windows        (filters, positions) @ (positions, taps * channels)
    gdata = gout @ weight             1 x 1: (positions, filters) @ (filters, channels)

The windows are never laid out as a whole. Where windows jump over data, what the second product writes goes to the
positions that they begin at; all others get zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...call_list import CallList
from ...compute import Array, Temp
from ..algorithms.blocked_product import BlockedProduct, ProductSizes, splits_windows
from ..algorithms.column_sums import column_sums
from ..algorithms.window_sizes import WindowSizes
from ..onednn.primitive import PrimitiveKernel
from ..onednn.reorder import plain_weight
from . import by_images

__all__ = ["BlockedDataGradient", "BlockedWeightGradient"]


@dataclass(frozen=True, slots=True)
class BlockedWeightGradient:
    """A kernel for the gradient of a convolution's weight: made of shapes, to be bound to arrays.

    Attributes:
        kernel: the compiled functions.
        windows: the convolution's, over data.
        filters: channels of out.
        last: whether the weight lies as (filters, *kernel, channels), and not as (filters, channels, *kernel).
    """

    kernel: BlockedProduct
    windows: WindowSizes
    filters: int
    last: bool

    @property
    def _reordered(self) -> bool:
        """Whether the weight lies otherwise than products write its gradient."""
        return not (self.last or self.windows.kernel == (1, 1) or self.windows.data[3] == 1)

    @property
    def _reorder(self) -> PrimitiveKernel | None:
        """From the gradient as products write it to the gradient as the weight lies; None: NumPy copies it."""
        return plain_weight(self.filters, self.windows.data[3], self.windows.kernel) if self._reordered else None

    def _sizes(self, positions: int) -> ProductSizes:
        sides = self.filters, positions, self.windows.columns
        return ProductSizes(*sides, (True, False), by_vectors=not splits_windows(self.windows))

    @property
    def splits(self) -> bool:
        """Whether the matrix unit computes it."""
        return self._sizes(self._step).splits

    @property
    def _step(self) -> int:
        """Positions of a product: between two the call may be stopped."""
        return min(
            self._positions, max(1, by_images.MAX_PIECE_MULTIPLICATIONS // (self.filters * self.windows.columns))
        )

    @property
    def _positions(self) -> int:
        return self.windows.data[0] * self.windows.out[0] * self.windows.out[1]

    @property
    def temps(self) -> list[Temp]:
        """The sums of slabs, the gradient before it is reordered, and the reorder's."""
        reorder = self._reorder
        gradient = self.filters * self.windows.columns if self._reordered else 0
        sums = self._sizes(self._step).sums
        return [Temp((sums,)), Temp((gradient,)), *(() if reorder is None else reorder.temps)]

    def bind(self, temps: Sequence[Array], gout: Array, data: Array, weight: Array, bias: Array | None) -> CallList:
        """Return a call that writes the gradients of weight and, where `bias` is not None, of bias."""
        sums, gradient, *scratches = temps
        runs, reorder = CallList(), self._reorder
        gout, data = runs.contiguous(gout).reshape(-1, self.filters), runs.contiguous(data)
        target = gradient if self._reordered else weight
        for first in range(0, self._positions, self._step):
            rows = gout[first : first + self._step]
            places, windows = (rows, data, None, target), replace(self.windows, first=first)
            sizes = self._sizes(len(rows))
            runs.calls.append(self.kernel.product(sizes, places, sums=sums, windows=windows, adds=first > 0))
        if reorder is not None:
            runs.calls.append(reorder.bind(scratches, (gradient, weight)))
        elif self._reordered:
            shape = self.filters, *self.windows.kernel, self.windows.data[3]
            written = gradient.reshape(shape).transpose(0, 3, 1, 2)
            runs.copy(weight.reshape(written.shape), written)
        if bias is not None:
            runs.calls.append(column_sums(gout, bias))
        return runs


@dataclass(frozen=True, slots=True)
class BlockedDataGradient:
    """A kernel for the gradient of data of a convolution of 1 x 1, of arrays gout, weight and the gradient.

    Attributes:
        kernel: the compiled functions.
        out: the shape of gout as it lies: (batch, height, width, filters).
        channels: data's.
        stride: the convolution's.
    """

    kernel: BlockedProduct
    out: tuple[int, int, int, int]
    channels: int
    stride: tuple[int, int]

    @property
    def _positions(self) -> int:
        return self.out[0] * self.out[1] * self.out[2]

    def _sizes(self, positions: int) -> ProductSizes:
        return ProductSizes(positions, self.out[3], self.channels)

    @property
    def fills_panels(self) -> bool:
        """As of its products."""
        return self._sizes(self._positions).fills_panels

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The gradient at the positions that windows begin at, where they jump over others, and the packed weight."""
        sizes = self._sizes(self._positions)
        gathered = 0 if self.stride == (1, 1) else self._positions * self.channels
        return Temp((gathered,)), Temp((sizes.packed if sizes.packs_first else 0,))

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradient; `arrays` are gout, weight and the gradient of data."""
        (gout, weight, gdata), (gathered, scratch) = arrays, temps
        runs = CallList()
        gout, weight = runs.contiguous(gout).reshape(-1, self.out[3]), runs.contiguous(weight)
        target = (gdata if self.stride == (1, 1) else gathered).reshape(-1, self.channels)
        packed = scratch if scratch.size else None
        if packed is not None:
            runs.calls.append(self.kernel.pack(self._sizes(self._positions), weight, packed))
        step = max(1, by_images.MAX_PIECE_MULTIPLICATIONS // (self.out[3] * self.channels))
        for first in range(0, self._positions, step):
            rows, part = gout[first : first + step], target[first : first + step]
            sizes = self._sizes(len(rows))
            fits = sizes.splits == self._sizes(self._positions).splits
            runs.calls.append(self.kernel.product(sizes, (rows, weight, None, part), packed=packed if fits else None))
        if self.stride != (1, 1):
            windows = WindowSizes(gdata.shape, self.out[1:3], (1, 1), self.stride, (1, 1), (0, 0))
            runs.calls.append(self.kernel.gather(windows, target, gdata))
        return runs
