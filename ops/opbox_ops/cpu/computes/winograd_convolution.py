"""Convolutions of 3 x 3 and 5 x 5 and their gradients by Winograd's algorithm, where it takes less time than oneDNN.

oneDNN 3.2 has none for float32. Of arrays whose channels lie last, with windows at all positions and 20 channels and
filters or more, they take two fifths to nine tenths of the time (`benchmarks/results/cpu-decisions.md`). A transformed
weight takes four times the memory of one of 3 x 3, and one and a half times that of one of 5 x 5.

- A small one stays in every core's cache: threads take blocks of tiles of their own.
- A large one is divided among the threads, and read once for many tiles.
- Beside few tiles it is transformed where it is multiplied, some filters at a time, and is nowhere as a whole.

What is chosen depends on shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...call_list import CallList
from ...compute import Array, Mode, Temp
from ..algorithms.column_sums import column_sums
from ..algorithms.winograd import ELEMENTS, KERNELS, MAX_TILES_TOGETHER, Tiling, Winograd, winograd
from ..onednn.primitive import Operand
from ..runtime.memory_format import MemoryFormat
from ..runtime.packed_runs import PackedRuns
from .plain_operands import data_gradient_operands, filters_first, forward_operands, weight_gradient_operands

__all__ = [
    "IMPLEMENTATION",
    "WinogradConvolution",
    "WinogradDataGradient",
    "WinogradWeightGradient",
    "winograd_convolution",
    "winograd_data_gradient",
    "winograd_weight_gradient",
]

IMPLEMENTATION = "winograd"

MIN_CHANNELS = 20
"""Minimum number of channels, and of filters. With 16, oneDNN's gradient of the weight takes three quarters of the
time, and forward a tenth more."""
TILES = 48
"""Worked off together at least, so that a transformed weight of many channels is read seldom."""
TILE_BYTES = 2 << 20
"""That the transformed tiles take where there are more of them: 0.5 to 4 MiB take the same time."""
SUMMED_TILES = 96
SUMMED_BYTES = 4 << 20
"""The same for the gradient of the weight, which adds to as much memory for each block."""

MAX_TILES_ON_THE_FLY = 128
"""Maximum number of tiles for which a weight is transformed where it is multiplied, unless it is packed.

Two threads, ms, the whole weight transformed, the same with a packed one, and some filters at a time: 512 channels, 4
tiles 5.1, 1.9 and 1.4, 32 tiles 8.3, 6.0 and 7.1; 256 channels, 16 tiles 1.7, 1.0 and 0.9, 128 tiles 7.2, 5.8 and 6.6;
128 channels, 392 tiles 4.4, 4.5 and 5.9.
"""
MAX_TILES_ON_THE_FLY_SMALL = 48
"""The same for a weight that is small enough for blocks of the threads' own: of 20 channels, 50 filters and 5 x 5, 16
tiles take 0.03 ms some filters at a time and 0.04 in blocks, 64 take 0.07 either way, 128 take 0.17 and 0.11."""
MIN_TILES_PACKED = 24
"""Minimum number of tiles for reading a packed weight to take no longer than transforming it."""
MAX_TILES_ON_THE_FLY_SUMMED = 64
"""The same as `MAX_TILES_ON_THE_FLY` for the gradient of the weight: 32 tiles of 512 channels 7.5 and 5.4, 128 tiles of
256 channels 5.2 and 5.1, 392 tiles of 128 channels 3.7 and 4.8."""

BLOCK_WEIGHT_BYTES = 1 << 20
"""Maximum size of a transformed weight for each thread to compute blocks of its own, and read all of it.

Two threads, ms, tiles divided among them and in blocks: 64 channels of 8 x 56 x 56 2.7 and 2.5, the gradient of the
weight 4.5 and 2.4; 128 channels of 8 x 28 x 28, whose transformed weight takes 2.4 MB, 2.4 and 3.2, 3.0 and 3.6.
"""
MAX_BLOCK_TILES = 48
"""Maximum number of tiles of a block: 8 to 48 take the same time within a twentieth. For each block all of the
transformed weight is read."""
MIN_BLOCK_TILES = 8
"""Minimum number of tiles of a block: as many as a product has rows."""
MIN_BLOCKS = 32
"""Minimum number of blocks, so that every thread gets work."""
FEWER = 0.75
"""Of the tiles of data, that gout's are to be for the gradient to be computed by them: adding to tiles takes longer."""

TRANSFORM = 200
"""Multiplications in whose time a number of each channel of a tile is transformed, from data or to out."""
WEIGHT = 20
"""The same for a number of the transformed weight: writing and reading it, with vectors of 8."""
SUMMED_WEIGHT = 34
"""The same for the gradient of the transformed weight."""
CACHED_WEIGHT = 7
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
    """A kernel for a convolution, of arrays data, weight, out and bias if any, or for the gradient of data.

    It has the methods of a `PrimitiveKernel`.

    Attributes:
        kernel: the compiled functions.
        tiling: data and out.
        operands: as in a `PrimitiveKernel`.
        few: whether the weight is transformed where it is multiplied, unless it is packed.
        block_tiles: tiles of a block that is a thread's own; 0 where `tiling`'s are divided among the threads.
        adds: whether it adds to what is in out.
        rotated: whether it is the gradient of data, of arrays gout, weight and the gradient: a convolution of gout.
    """

    kernel: Winograd
    tiling: Tiling
    operands: tuple[Operand, ...]
    few: bool
    block_tiles: int
    adds: bool = False
    rotated: bool = False

    @property
    def implementation(self) -> str:
        return IMPLEMENTATION

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """The weight, whose transformed copy is the first of `temps`, where it is worth packing."""
        return () if self.tiling.all < MIN_TILES_PACKED else ((1, 0),)

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The transformed weight, if it may be packed, and transformed tiles."""
        weight = self.kernel.weight_size(self.tiling.filters, self.tiling.data[3])
        of_data, of_out = self.kernel.scratch(self._whole_tiling)
        if self.few:
            scratch = self.kernel.scratch_of_few(self._few_tiling)
            of_data = max(of_data, scratch)
            if not self.packs:
                return (Temp((scratch,)),)
        return Temp((weight,)), Temp((of_data,)), Temp((of_out,))

    @property
    def _whole_tiling(self) -> Tiling:
        """The tiles that are worked off together where the whole weight is transformed."""
        return self.tiling.in_blocks(self.block_tiles)

    @property
    def _few_tiling(self) -> Tiling:
        return replace(self.tiling, tiles=min(self.tiling.tiles, MAX_TILES_TOGETHER))

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array], *, norm: Array | None = None) -> CallList:
        """Return a call that runs it; arguments are those of `PrimitiveKernel.bind`, `norm` of `Tiling.sizes`."""
        if self.few:
            return self._few(temps[1 if self.packs else 0], arrays, norm)
        transform, runs = self._calls(temps, arrays, norm)
        transform.calls += runs.calls
        return transform

    def _few(self, scratch: Array, arrays: Sequence[Array], norm: Array | None) -> CallList:
        """A call that transforms the weight where it is multiplied."""
        (data, weight, out, *bias), runs = arrays, CallList()
        data, weight = runs.contiguous(data), filters_first(runs.contiguous(weight), self.operands[1].memory)
        places = data, weight, runs.contiguous(bias[0]) if bias else None, out
        how: Any = {"adds": self.adds, "rotated": self.rotated, "norm": norm}
        runs.calls.append(self.kernel.convolution_of_few(self._few_tiling, places, scratch, **how))
        return runs

    def packed(
        self, temps: Sequence[Array], arrays: Sequence[Array], mode: Mode, *, norm: Array | None = None
    ) -> PackedRuns:
        """The same, with the weight transformed only where `mode` says that it is to be."""
        return PackedRuns(*self._calls(temps, arrays, norm), mode)

    def _calls(self, temps: Sequence[Array], arrays: Sequence[Array], norm: Array | None) -> tuple[CallList, CallList]:
        (data, weight, out, *bias), (transformed, *scratch) = arrays, temps
        transform, runs = CallList(), CallList()
        weight = filters_first(transform.contiguous(weight), self.operands[1].memory)
        transform.calls.append(self.kernel.transform(weight, transformed, rotated=self.rotated))
        addend = runs.contiguous(bias[0]) if bias else None
        places = runs.contiguous(data), transformed, addend, out
        how: Any = {"adds": self.adds, "norm": norm}
        runs.calls.append(self.kernel.convolution(self._whole_tiling, places, (scratch[0], scratch[1]), **how))
        return transform, runs


@dataclass(frozen=True, slots=True)
class WinogradDataGradient:
    """A kernel for the gradient of data by tiles of gout; of arrays gout, weight and the gradient.

    Where windows are at no padding there are fewer of these tiles than of the gradient's, by which
    `WinogradConvolution` computes it.

    Attributes:
        kernel, operands: as of `WinogradConvolution`.
        tiling: the convolution's, in blocks of whole images.
    """

    kernel: Winograd
    tiling: Tiling
    operands: tuple[Operand, ...]

    @property
    def implementation(self) -> str:
        return IMPLEMENTATION

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """None."""
        return ()

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The transformed weight."""
        return (Temp((self.kernel.weight_size(self.tiling.data[3], self.tiling.filters),)),)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradient; arguments are those of `PrimitiveKernel.bind`."""
        (gout, weight, gdata), (transformed,) = arrays, temps
        runs = CallList()
        gout, weight = runs.contiguous(gout), filters_first(runs.contiguous(weight), self.operands[1].memory)
        runs.calls.append(self.kernel.transform(weight.swapaxes(0, 1), transformed))
        runs.calls.append(self.kernel.data_gradient(self.tiling, (gout, transformed, gdata)))
        return runs


@dataclass(frozen=True, slots=True)
class WinogradWeightGradient:
    """A kernel for the gradients of weight and, if any, of bias; of arrays gout, data, and the gradients.

    Attributes:
        kernel, tiling, operands, few, block_tiles: as of `WinogradConvolution`.
    """

    kernel: Winograd
    tiling: Tiling
    operands: tuple[Operand, ...]
    few: bool
    block_tiles: int

    @property
    def implementation(self) -> str:
        return IMPLEMENTATION

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """None."""
        return ()

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The gradient of the transformed weight, if there is one as a whole, and transformed tiles."""
        if self.few:
            return Temp((self.kernel.scratch_of_few(self.tiling),)), Temp((self.kernel.scratch(self.tiling)[1],))
        weight, tiling = self.kernel.weight_size(self.tiling.filters, self.tiling.data[3]), self._whole_tiling
        of_data, of_gout = self.kernel.scratch(tiling)
        return Temp((tiling.parts * weight,)), Temp((of_data,)), Temp((of_gout,))

    @property
    def _whole_tiling(self) -> Tiling:
        return self.tiling.in_blocks(self.block_tiles)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradients; arguments are those of `PrimitiveKernel.bind`."""
        gout, data, gweight, *gbias = arrays
        runs, (*whole, of_data, of_gout) = CallList(), temps
        gout, data = runs.contiguous(gout), runs.contiguous(data)
        target, scratch = filters_first(gweight, self.operands[2].memory), (of_data, of_gout)
        if whole:
            runs.calls.append(self.kernel.sums(self._whole_tiling, (data, gout, whole[0]), scratch))
            runs.calls.append(self.kernel.weight_gradient(self._whole_tiling, whole[0], target))
        else:
            runs.calls.append(self.kernel.weight_gradient_of_few(self.tiling, (data, gout, target), scratch))
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
    """Return the kernel of a convolution; None where the algorithm cannot compute it, or oneDNN is the faster.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding. With `adds` it
    adds to what is in out.
    """
    kernel = _kernel(data, weight, out, window)
    if kernel is None:
        return None
    tiling = _tiling(kernel, data, out, window[2], TILES, TILE_BYTES)
    few, block_tiles = _is_of_few(kernel, tiling), _block_tiles(kernel, tiling, data.shape[1])
    if not _pays(kernel, data, out, tiling.all, WEIGHT * (not (few or block_tiles)), (DIRECT, READ)):
        return None
    return WinogradConvolution(kernel, tiling, forward_operands(data, weight, bias, out), few, block_tiles, adds)


def winograd_data_gradient(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> WinogradConvolution | WinogradDataGradient | None:
    """Return the kernel of the gradient of data, as `winograd_convolution` does."""
    kernel = _kernel(data, weight, gout, window)
    if kernel is None:
        return None
    operands, costs = data_gradient_operands(gout, weight, data), (DIRECT, REORDERED)
    if (in_images := _of_whole_images(kernel, gout, data, window[2])) is not None:
        pays = _pays(kernel, gout, data, in_images.all, 0, costs)
        return WinogradDataGradient(kernel, in_images, operands) if pays else None
    pad = tuple([kernel.taps - 1 - rows for rows in window[2]])
    tiling = _tiling(kernel, gout, data, pad, TILES, TILE_BYTES)
    few, block_tiles = _is_of_few(kernel, tiling), _block_tiles(kernel, tiling, gout.shape[1])
    if not _pays(kernel, gout, data, tiling.all, WEIGHT * (not (few or block_tiles)), costs):
        return None
    return WinogradConvolution(kernel, tiling, operands, few, block_tiles, rotated=True)


def winograd_weight_gradient(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, window: _Window
) -> WinogradWeightGradient | None:
    """Return the kernel of the gradient of the weight, as `winograd_convolution` does."""
    kernel = _kernel(data, weight, gout, window)
    if kernel is None:
        return None
    tiling = _tiling(kernel, data, gout, window[2], SUMMED_TILES, SUMMED_BYTES)
    small = _is_small(kernel, tiling)
    few, block_tiles = (
        not small and tiling.all <= min(MAX_TILES_ON_THE_FLY_SUMMED, tiling.tiles),
        _summed_block_tiles(kernel, tiling),
    )
    costs = DIRECT_SUMMED, REORDERED_SUMMED
    if not _pays(kernel, data, gout, tiling.all, SUMMED_WEIGHT * (not (few or small)), costs):
        return None
    return WinogradWeightGradient(kernel, tiling, weight_gradient_operands(gout, data, weight, bias), few, block_tiles)


def _kernel(data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat, window: _Window) -> Winograd | None:
    """The compiled functions, where they compute such a convolution and its gradients."""
    stride, dilate, pad = window
    if len(weight.shape) != 4 or {*stride, *dilate} != {1}:
        return None
    taps = weight.shape[2]
    if taps not in KERNELS or weight.shape[3] != taps or max(pad) >= taps:
        return None
    if {array.dtype for array in (data, weight, out)} != {"float32"} or not (data.channels_last and out.channels_last):
        return None
    if min(weight.shape[:2]) < MIN_CHANNELS:
        return None
    return winograd(taps)


def _pays(
    kernel: Winograd,
    source: MemoryFormat,
    target: MemoryFormat,
    tiles: int,
    of_weight: int,
    direct: tuple[int, int],
) -> bool:
    """Return whether the expected time, counted in multiplications, is less than that of oneDNN's kernel.

    Wider vectors multiply faster, and memory is as fast as before. Both compute whole vectors of what they write, and
    windows over padding are no work for oneDNN.

    Args:
        kernel: the functions.
        source, target: data and out, or gout and data's gradient.
        tiles: of either.
        of_weight: what a number of the transformed weight takes with vectors of 8; 0 where it stays in the cache.
        direct: what the nine multiplications of a window of 3 x 3, and the nine numbers of a weight, take oneDNN.
    """
    of_window, of_nine = direct
    columns, depth = target.shape[1], source.shape[1]
    of_weight = max(CACHED_WEIGHT, of_weight * kernel.width // 8)
    products = ELEMENTS * kernel.padded(columns) * depth * (tiles + of_weight)
    transforms = TRANSFORM * tiles * (kernel.in_vectors(columns) + kernel.in_vectors(depth))
    positions = min(math.prod((memory.shape[0], *memory.shape[2:])) for memory in (source, target))
    size = kernel.taps**2 / 9
    return products + transforms < WORTH * kernel.in_vectors(columns) * depth * size * (of_window * positions + of_nine)


def _tiling(
    kernel: Winograd, data: MemoryFormat, out: MemoryFormat, pad: tuple[int, ...], fewest: int, nbytes: int
) -> Tiling:
    shape, filters = _physical_shape(data), out.shape[1]
    of_tile = 4 * ELEMENTS * (shape[3] + kernel.padded(filters))
    together = min(kernel.tiles(_physical_shape(out)), max(fewest, nbytes // of_tile))
    return Tiling(shape, filters, (pad[0], pad[1]), together, kernel.taps)


def _of_whole_images(kernel: Winograd, gout: MemoryFormat, data: MemoryFormat, pad: tuple[int, ...]) -> Tiling | None:
    """The tiles of gout in blocks of whole images, for data's gradient; None where they are not far fewer than data's.

    None too for large images and large weights.
    """
    count, of_data = (kernel.tiles(_physical_shape(memory)) for memory in (gout, data))
    if not 0 < count <= FEWER * of_data:
        return None
    whole = Tiling(_physical_shape(data), gout.shape[1], (pad[0], pad[1]), count, kernel.taps)
    of_image, most = count // data.shape[0], _max_block_tiles(kernel, whole, gout.shape[1])
    if of_image > most:
        return None
    return whole.in_blocks(of_image * max(1, min(most // of_image, data.shape[0] // MIN_BLOCKS)))


def _is_small(kernel: Winograd, tiling: Tiling) -> bool:
    """Return whether the transformed weight stays in every core's cache."""
    return 4 * kernel.weight_size(tiling.filters, tiling.data[3]) <= BLOCK_WEIGHT_BYTES


def _is_of_few(kernel: Winograd, tiling: Tiling) -> bool:
    return tiling.all <= (MAX_TILES_ON_THE_FLY_SMALL if _is_small(kernel, tiling) else MAX_TILES_ON_THE_FLY)


def _block_tiles(kernel: Winograd, tiling: Tiling, channels: int) -> int:
    """Tiles of a block of a thread's own; arguments and 0 are those of `_max_block_tiles`."""
    most = _max_block_tiles(kernel, tiling, channels)
    return min(most, max(MIN_BLOCK_TILES, tiling.all // MIN_BLOCKS // MIN_BLOCK_TILES * MIN_BLOCK_TILES))


def _summed_block_tiles(kernel: Winograd, tiling: Tiling) -> int:
    """The same for the gradient of a weight, whose blocks make parts of like size; 0 also where there is but one."""
    most = _max_block_tiles(kernel, tiling, max(tiling.data[3], kernel.padded(tiling.filters)))
    parts = tiling.in_blocks(most).parts
    if parts < 2:
        return 0
    of_part = -(-tiling.all // parts)
    return -(-of_part // -(-of_part // most))


def _max_block_tiles(kernel: Winograd, tiling: Tiling, channels: int) -> int:
    """How many tiles a thread takes at most; 0 where the transformed weight is too large for blocks of their own.

    Args:
        channels: of a tile, as many as a thread transforms at most.
    """
    most = kernel.max_block_tiles(channels)
    return min(most, MAX_BLOCK_TILES) if _is_small(kernel, tiling) and most >= MIN_BLOCK_TILES else 0


def _physical_shape(memory: MemoryFormat) -> tuple[int, int, int, int]:
    batch, channels, height, width = memory.shape
    return batch, height, width, channels
