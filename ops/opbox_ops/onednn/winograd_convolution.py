"""Convolutions of 3 x 3 and their gradients by Winograd's algorithm, where it takes less time than oneDNN's kernels.

oneDNN 3.2 has none for float32. Of arrays whose channels lie last, with windows of 3 x 3 at all positions and 32
channels and filters or more, they take a third to two thirds of the time (`benchmarks/results/cpu-decisions.md`). A
transformed weight takes four times the memory of the weight, and is read once for each lot of tiles. Beside few tiles
it is transformed where it is multiplied, some filters at a time, and is nowhere as a whole. What is chosen depends on
shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..call_list import CallList
from ..compute import Array, Mode, Temp
from ..nn.column_sums import column_sums
from ..nn.winograd import ELEMENTS, FEW_TILES, Tiling, Winograd, winograd
from .plain_operands import data_gradient_operands, filters_first, forward_operands, weight_gradient_operands
from .primitive import MemoryFormat, Operand, PackedRuns

__all__ = ["WinogradConvolution", "WinogradWeightGradient", "winograd_convolution", "winograd_weight_gradient"]

FEWEST_CHANNELS = 32
TILES = 48
"""Worked off together at least, so that a transformed weight of many channels is read seldom."""
TILE_BYTES = 2 << 20
"""That the transformed tiles take where there are more of them: 0.5 to 4 MiB take the same time."""
SUMMED_TILES = 96
SUMMED_BYTES = 4 << 20
"""The same for the gradient of the weight, which adds to as much memory for each lot."""

MOST_FEW = 128
"""Tiles up to which a weight is transformed where it is multiplied, unless it is packed.

Two threads, ms, the whole weight transformed, the same with a packed one, and some filters at a time: 512 channels, 4
tiles 5.1, 1.9 and 1.4, 32 tiles 8.3, 6.0 and 7.1; 256 channels, 16 tiles 1.7, 1.0 and 0.9, 128 tiles 7.2, 5.8 and 6.6;
128 channels, 392 tiles 4.4, 4.5 and 5.9.
"""
FEWEST_PACKED = 24
"""Tiles from which on reading a packed weight takes no longer than transforming it."""
MOST_FEW_SUMMED = 64
"""The same as `MOST_FEW` for the gradient of the weight: 32 tiles of 512 channels 7.5 and 5.4, 128 tiles of 256
channels 5.2 and 5.1, 392 tiles of 128 channels 3.7 and 4.8."""

TRANSFORM = 200
"""Multiplications in whose time a number of each channel of a tile is transformed, from data or to out."""
WEIGHT = 20
"""The same for a number of the transformed weight: writing and reading it, with vectors of 8."""
SUMMED_WEIGHT = 34
"""The same for the gradient of the transformed weight."""
FEW_WEIGHT = 7
"""The same for either where it stays in the cache."""
DIRECT = 9
"""Multiplications of a window. oneDNN's gradient of the weight takes half as long again."""
DIRECT_SUMMED = 13
READ = 120
"""Multiplications in whose time oneDNN's kernels read nine numbers of a weight, beyond what that takes here."""
REORDERED = 400
"""The same for a weight that oneDNN reorders in each run: for the gradient of data."""
REORDERED_SUMMED = 500
"""The same for the gradient of the weight."""
WORTH = 0.8
"""Of the time that oneDNN's kernel is expected to take."""

_Window = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class WinogradConvolution:
    """A recipe for a convolution, of arrays data, weight, out and bias if any, or for the gradient of data.

    It has the methods of a `Recipe`.

    Attributes:
        kernel: the compiled functions.
        tiling: data and out.
        operands: as in a `Recipe`.
        adds: whether it adds to what is in out.
        turned: whether it is the gradient of data, of arrays gout, weight and the gradient: a convolution of gout.
    """

    kernel: Winograd
    tiling: Tiling
    operands: tuple[Operand, ...]
    adds: bool = False
    turned: bool = False

    @property
    def implementation(self) -> str:
        return "winograd"

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """The weight, whose transformed copy is the first of `temps`, where it is worth packing."""
        return () if self.tiling.all < FEWEST_PACKED else ((1, 0),)

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The transformed weight, if it may be packed, and transformed tiles."""
        weight = self.kernel.weight_size(self.tiling.filters, self.tiling.data[3])
        of_data, of_out = self.kernel.room(self.tiling)
        if self.tiling.all <= MOST_FEW:
            few = self.kernel.room_of_few(self._few_tiling)
            of_data = max(of_data, few) if self.packs else few
        return tuple([Temp((size,)) for size in ((weight, of_data, of_out) if self.packs else (of_data,))])

    @property
    def _few_tiling(self) -> Tiling:
        return replace(self.tiling, tiles=min(self.tiling.tiles, FEW_TILES))

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array], *, norm: Array | None = None) -> CallList:
        """Return a call that runs it; arguments are those of `Recipe.bind`, and `norm` that of `Tiling.sizes`."""
        if self.tiling.all <= MOST_FEW:
            return self._few(temps[1 if self.packs else 0], arrays, norm)
        transform, runs = self._calls(temps, arrays, norm)
        transform.calls += runs.calls
        return transform

    def _few(self, room: Array, arrays: Sequence[Array], norm: Array | None) -> CallList:
        """A call that transforms the weight where it is multiplied."""
        (data, weight, out, *bias), runs = arrays, CallList()
        data, weight = runs.contiguous(data), filters_first(runs.contiguous(weight), self.operands[1].memory)
        places = data, weight, runs.contiguous(bias[0]) if bias else None, out
        how: Any = {"adds": self.adds, "turned": self.turned, "norm": norm}
        runs.calls.append(self.kernel.convolution_of_few(self._few_tiling, places, room, **how))
        return runs

    def packed(
        self, temps: Sequence[Array], arrays: Sequence[Array], mode: Mode, *, norm: Array | None = None
    ) -> PackedRuns:
        """The same, with the weight transformed only where `mode` says that it is to be."""
        return PackedRuns(*self._calls(temps, arrays, norm), mode)

    def _calls(self, temps: Sequence[Array], arrays: Sequence[Array], norm: Array | None) -> tuple[CallList, CallList]:
        (data, weight, out, *bias), (transformed, *room) = arrays, temps
        transform, runs = CallList(), CallList()
        weight = filters_first(transform.contiguous(weight), self.operands[1].memory)
        transform.calls.append(self.kernel.transform(weight, transformed, turned=self.turned))
        addend = runs.contiguous(bias[0]) if bias else None
        places = runs.contiguous(data), transformed, addend, out
        how: Any = {"adds": self.adds, "norm": norm}
        runs.calls.append(self.kernel.convolution(self.tiling, places, (room[0], room[1]), **how))
        return transform, runs


@dataclass(frozen=True, slots=True)
class WinogradWeightGradient:
    """A recipe for the gradients of weight and, if any, of bias; of arrays gout, data, and the gradients.

    Attributes:
        kernel, tiling, operands: as of `WinogradConvolution`.
    """

    kernel: Winograd
    tiling: Tiling
    operands: tuple[Operand, ...]

    @property
    def implementation(self) -> str:
        return "winograd"

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """None."""
        return ()

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The gradient of the transformed weight, if there is one as a whole, and transformed tiles."""
        of_data, of_gout = self.kernel.room(self.tiling)
        if self._is_of_few:
            return Temp((self.kernel.room_of_few(self.tiling),)), Temp((of_gout,))
        weight = self.kernel.weight_size(self.tiling.filters, self.tiling.data[3])
        return Temp((weight,)), Temp((of_data,)), Temp((of_gout,))

    @property
    def _is_of_few(self) -> bool:
        return self.tiling.all <= min(MOST_FEW_SUMMED, self.tiling.tiles)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradients; arguments are those of `Recipe.bind`."""
        gout, data, gweight, *gbias = arrays
        runs, (*whole, of_data, of_gout) = CallList(), temps
        gout, data = runs.contiguous(gout), runs.contiguous(data)
        target, room = filters_first(gweight, self.operands[2].memory), (of_data, of_gout)
        if whole:
            runs.calls.append(self.kernel.sums(self.tiling, (data, gout, whole[0]), room))
            runs.calls.append(self.kernel.weight_gradient(whole[0], target))
        else:
            runs.calls.append(self.kernel.weight_gradient_of_few(self.tiling, (data, gout, target), room))
        if gbias:
            rows = gout.reshape(-1, self.tiling.filters)
            runs.calls.append(column_sums(rows, gbias[0]))
        return runs


def winograd_convolution(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: _Window,
    adds: bool = False,
) -> WinogradConvolution | None:
    """Return the recipe of a convolution; None where the algorithm cannot compute it, or oneDNN is the faster.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding. With `adds` it
    adds to what is in out.
    """
    kernel = _kernel(data, weight, out, window)
    if kernel is None or not _pays(kernel, out, weight, (MOST_FEW, WEIGHT), (DIRECT, READ)):
        return None
    operands = forward_operands(data, weight, bias, out)
    return WinogradConvolution(kernel, _tiling(kernel, data, out, window[2], TILES, TILE_BYTES), operands, adds)


def winograd_data_gradient(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> WinogradConvolution | None:
    """Return the recipe of the gradient of data, as `winograd_convolution` does."""
    kernel = _kernel(data, weight, gout, window)
    if kernel is None or not _pays(kernel, data, weight, (MOST_FEW, WEIGHT), (DIRECT, REORDERED)):
        return None
    operands = data_gradient_operands(gout, weight, data)
    pad = tuple([2 - rows for rows in window[2]])
    return WinogradConvolution(kernel, _tiling(kernel, gout, data, pad, TILES, TILE_BYTES), operands, turned=True)


def winograd_weight_gradient(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, window: _Window
) -> WinogradWeightGradient | None:
    """Return the recipe of the gradient of the weight, as `winograd_convolution` does."""
    kernel = _kernel(data, weight, gout, window)
    costs = (MOST_FEW_SUMMED, SUMMED_WEIGHT), (DIRECT_SUMMED, REORDERED_SUMMED)
    if kernel is None or not _pays(kernel, gout, weight, *costs):
        return None
    operands = weight_gradient_operands(gout, data, weight, bias)
    tiling = _tiling(kernel, data, gout, window[2], SUMMED_TILES, SUMMED_BYTES)
    return WinogradWeightGradient(kernel, tiling, operands)


def _kernel(data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat, window: _Window) -> Winograd | None:
    """The compiled functions, where they compute such a convolution and its gradients."""
    stride, dilate, pad = window
    if len(weight.shape) != 4 or weight.shape[2:] != (3, 3) or {*stride, *dilate} != {1} or max(pad) > 2:
        return None
    if {array.dtype for array in (data, weight, out)} != {"float32"} or not (data.channels_last and out.channels_last):
        return None
    if min(weight.shape[:2]) < FEWEST_CHANNELS:
        return None
    kernel = winograd()
    return kernel if kernel is not None and all(size % kernel.width == 0 for size in weight.shape[:2]) else None


def _pays(
    kernel: Winograd, out: MemoryFormat, weight: MemoryFormat, own: tuple[int, int], direct: tuple[int, int]
) -> bool:
    """Return whether the expected time, counted in multiplications, is less than that of oneDNN's kernel.

    Wider vectors multiply faster, and memory is as fast as before.

    Args:
        kernel, out, weight: the functions and the arrays.
        own: tiles up to which the weight stays in the cache, and what a number of it takes elsewhere.
        direct: what a window and the nine numbers of a weight take oneDNN.
    """
    tiles, (few, of_weight), (of_window, of_nine) = Tiling.count(_lying(out)), own, direct
    filters, channels = weight.shape[:2]
    of_weight = FEW_WEIGHT if tiles <= few else of_weight * kernel.width // 8
    products = ELEMENTS * filters * channels * (tiles + of_weight)
    transforms = TRANSFORM * tiles * (filters + channels)
    positions = math.prod((out.shape[0], *out.shape[2:]))
    return products + transforms < WORTH * filters * channels * (of_window * positions + of_nine)


def _tiling(
    kernel: Winograd, data: MemoryFormat, out: MemoryFormat, pad: tuple[int, ...], fewest: int, room: int
) -> Tiling:
    shape, filters = _lying(data), out.shape[1]
    of_tile = 4 * ELEMENTS * (shape[3] + kernel.padded(filters))
    return Tiling(shape, filters, (pad[0], pad[1]), min(Tiling.count(_lying(out)), max(fewest, room // of_tile)))


def _lying(memory: MemoryFormat) -> tuple[int, int, int, int]:
    batch, channels, height, width = memory.shape
    return batch, height, width, channels
