"""Convolutions of 3 x 3 and of 5 x 5 by Winograd's minimal filtering F(4 x 4, 3 x 3) and F(2 x 2, 5 x 5), in C.

    out = A.T ((G weight G.T) * (B.T data B)) A        for tiles of 4 x 4 or 2 x 2 of out, 6 x 6 of data

data (batch, height, width, channels) and out (batch, height, width, filters) have their channels last. The products of
all tiles, one for each of a tile's 36 elements, are matrix products over the channels: 36 multiplications where the
sum over windows of 3 x 3 takes 144, and that over windows of 5 x 5 takes 100. The gradient of data is such a
convolution of gout with the weight turned round, or the adjoint, B ((G weight G.T) * (A gout A.T)) B.T added up where
tiles overlap; that of the weight is an adjoint too, G.T ((B.T data B) * (A gout A.T)) G summed over the tiles.

The matrices are Toom and Cook's for the points 0, 2/3, -2/3, 3/2, -3/2 and infinity; B is the same for both. Of
several sets these had the least error for 3 x 3: 1 to 2 millionths of the scatter of out (root mean square, 64 to 512
channels), where a direct sum in float32 has 0.2 to 0.4. Opposite points share half of their sums.

Tiles are worked off some at a time, so that what is transformed stays in the cache. Results depend on shapes alone,
not on the number of threads. A NaN or an infinity in data makes NaN of all tiles that it is part of.

Lavin and Gray, "Fast algorithms for convolutional neural networks" (2016); Winograd, "Arithmetic complexity of
computations" (1980).
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, byref, c_int, c_long, c_void_p
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ... import switches
from ...bound_calls import c_call, place_of
from ...compute import Array
from ..runtime import c_compiler
from ..runtime.kernel_text import kernel_text

__all__ = ["ELEMENTS", "MAX_TILES_TOGETHER", "KERNELS", "TEXT", "Tiling", "Winograd", "compiled", "winograd"]

TEXT = kernel_text("winograd.c")
"""Of windows of TAPS rows and columns, which `compiled` sets in front of it."""

KERNELS = (3, 5)
"""Rows and columns of the windows that there are functions for."""
ELEMENTS = 36
"""Of a tile of data, and of whatever is transformed."""
MAX_TILES_TOGETHER = 64
"""Maximum number of tiles computed together where a weight is transformed for them, as in the C."""
TERMS_TOGETHER = 64
"""Channels of such tiles that are contiguous, as in the C."""
_MAX_BLOCK_TILES = 48
"""Maximum number of tiles of a block that is a thread's own, as in the C."""
_BLOCK_NUMBERS = 1 << 17
"""Elements of its transformed data, as in the C."""
_MAX_PARTS = 8
"""Maximum number of parts of all tiles in which gradients of a weight are summed. More divide the work among more
threads, and take as many times the memory of a transformed weight."""
MIN_PART_TILES = 48
"""Minimum number of tiles of such a part: reading and writing the weight is little work beside them."""
_AHEAD = 16
"""Numbers between the transformed elements, as in the C."""


def _weight_matrix(taps: int) -> Array:
    """G: a row for each point."""
    pairs = ((2 / 3, 3 / 2), (3 / 2, 2 / 3))
    rows = [[p**k / (2 * p * p * (p * p - b * b)) for k in range(taps)] for a, b in pairs for p in (a, -a)]
    ends = np.eye(taps)[[0, -1]]
    return np.array([ends[0], *rows, ends[1]], np.float32)


_G = {taps: _weight_matrix(taps) for taps in KERNELS}


class _Weight(Structure):
    _fields_ = [
        ("numbers", c_void_p),
        *[(name, c_long) for name in ("filters", "channels", "of_filter", "of_channel", "of_row", "of_column")],
    ]


class _TilingSizes(Structure):
    _fields_ = [
        *[
            (name, c_long)
            for name in (
                *("batch", "height", "width", "channels", "filters", "above", "before"),
                *("tiles", "relu", "norm_row"),
            )
        ],
        ("norm", c_void_p),
    ]


@dataclass(frozen=True, slots=True)
class Tiling:
    """A convolution cut into tiles.

    Attributes:
        data: its shape as it lies: (batch, height, width, channels).
        filters: channels of out.
        pad: rows and columns of zeros around data; fewer than `taps`.
        tiles: how many are worked off together.
        taps: rows and columns of the windows, one of `KERNELS`.
        own_blocks: whether these tiles are a thread's own, and not divided among the threads.
        relu: whether out is the larger of the convolution and 0; NaN stays NaN.
    """

    data: tuple[int, int, int, int]
    filters: int
    pad: tuple[int, int]
    tiles: int
    taps: int
    own_blocks: bool = False
    relu: bool = False

    @property
    def all(self) -> int:
        """All tiles of out."""
        height, width = (n + 2 * p - (self.taps - 1) for n, p in zip(self.data[1:3], self.pad, strict=True))
        return _count((self.data[0], height, width), self.taps)

    def in_blocks(self, tiles: int) -> Tiling:
        """The same with blocks of so many tiles for the threads; 0 leaves it as it is."""
        return replace(self, tiles=tiles, own_blocks=True) if tiles else self

    @property
    def parts(self) -> int:
        """That the gradient of the transformed weight is added up in: more than one of blocks, by all tiles alone."""
        if not self.own_blocks:
            return 1
        parts = min(_MAX_PARTS, self.all // MIN_PART_TILES)
        return 1 << max(0, parts.bit_length() - 1)

    def sizes(self, norm: Array | None = None) -> _TilingSizes:
        """Return the structure; with `norm` (3, filters or more), mean, scale and shift, out is normalized by them."""
        row = 0 if norm is None else norm.shape[1]
        assert norm is None or row >= self.filters
        return _TilingSizes(*self.data, self.filters, *self.pad, self.tiles, self.relu, row, place_of(norm))


@dataclass(frozen=True, slots=True)
class Winograd:
    """The compiled functions.

    Attributes:
        taps: rows and columns of the windows.
        width: numbers in a vector. Other channels and filters than multiples of it leave parts of vectors empty.
    """

    taps: int
    width: int
    _forward: Any
    _weight: Any
    _sums: Any
    _weight_gradient: Any
    _few: Any
    _few_sums: Any
    _blocks: Any
    _block_data_gradient: Any
    _block_sums: Any

    def tiles(self, out: tuple[int, ...]) -> int:
        """Tiles of an array out (batch, height, width, …)."""
        return _count(out, self.taps)

    def padded(self, filters: int) -> int:
        """The filters that there is room for: products are computed two vectors at a time."""
        return -(-filters // (2 * self.width)) * 2 * self.width

    def in_vectors(self, channels: int) -> int:
        """The channels that there is room for: they are transformed a vector at a time."""
        return -(-channels // self.width) * self.width

    def weight_size(self, filters: int, channels: int) -> int:
        """Numbers of a transformed weight, or of the sums that its gradient comes from."""
        return ELEMENTS * (self.padded(filters) * channels + _AHEAD)

    def max_block_tiles(self, channels: int) -> int:
        """Tiles of so many channels that a thread has room for: by eights, as products take up to eight rows."""
        return min(
            _MAX_BLOCK_TILES, (_BLOCK_NUMBERS // ELEMENTS - _AHEAD) // (self.in_vectors(channels) + _AHEAD) // 8 * 8
        )

    def scratch(self, tiling: Tiling) -> tuple[int, int]:
        """Numbers of the tiles that are worked off together, transformed: of data, and of out or its gradient.

        None for blocks, which are in the threads' stacks.
        """
        if tiling.own_blocks:
            return 0, 0
        of_tile = self.in_vectors(tiling.data[3]) + _AHEAD, self.padded(tiling.filters)
        return ELEMENTS * (tiling.tiles * of_tile[0] + _AHEAD), ELEMENTS * (tiling.tiles * of_tile[1] + _AHEAD)

    @staticmethod
    def scratch_of_few(tiling: Tiling) -> int:
        """The same of data for `convolution_of_few` and `weight_gradient_of_few`."""
        return ELEMENTS * -(-tiling.data[3] // TERMS_TOGETHER) * (tiling.tiles * TERMS_TOGETHER + _AHEAD)

    def transform(self, weight: Array, target: Array, *, rotated: bool = False) -> Callable[[], None]:
        """Return a call that writes the transformed weight to `target`.

        Args:
            weight: (filters, channels, taps, taps), of any strides.
            target: `weight_size` numbers.
            rotated: whether it is for the gradient of data: its channels are the filters, its windows turned round.
        """
        structure = _weight_of(weight, rotated)
        places = byref(structure), target.ctypes.data, _G[self.taps].ctypes.data
        return c_call(self._weight, places, (weight, structure, target))

    def convolution(
        self,
        tiling: Tiling,
        arrays: tuple[Array, Array, Array | None, Array],
        scratch: tuple[Array, Array],
        *,
        adds: bool,
        norm: Array | None = None,
    ) -> Callable[[], None]:
        """Return a call that writes, or with `adds` adds to, out; arrays are data, transformed weight, bias and out.

        `norm` is that of `Tiling.sizes`.
        """
        assert not tiling.own_blocks or tiling.tiles <= self.max_block_tiles(tiling.data[3])
        sizes = tiling.sizes(norm)
        function, scratches = (self._blocks, ()) if tiling.own_blocks else (self._forward, scratch)
        places = [None if array is None else array.ctypes.data for array in (*arrays, *scratches)]
        return c_call(function, (*places, byref(sizes), adds), (arrays, scratch, sizes, norm))

    def data_gradient(self, tiling: Tiling, arrays: tuple[Array, Array, Array]) -> Callable[[], None]:
        """Return a call that writes the gradient of data; arrays are gout, transformed weight and that gradient.

        Args:
            tiling: of the convolution itself, in blocks of whole images.
            arrays: the weight's first two axes are exchanged before it is transformed.
        """
        assert tiling.own_blocks
        assert tiling.tiles <= self.max_block_tiles(tiling.filters)
        sizes = tiling.sizes()
        return c_call(self._block_data_gradient, (*[a.ctypes.data for a in arrays], byref(sizes)), (arrays, sizes))

    def sums(
        self, tiling: Tiling, arrays: tuple[Array, Array, Array], scratch: tuple[Array, Array]
    ) -> Callable[[], None]:
        """Return a call that writes the gradient of the transformed weight; arrays are data, gout and that gradient.

        It is that of `Tiling.parts` parts, one behind the other.
        """
        data, gout, target = arrays
        sizes = tiling.sizes()
        if tiling.own_blocks:
            assert tiling.tiles <= self.max_block_tiles(max(tiling.data[3], self.padded(tiling.filters)))
            places = [array.ctypes.data for array in arrays]
            return c_call(self._block_sums, (*places, byref(sizes), tiling.parts), (arrays, sizes))
        places = [array.ctypes.data for array in (data, gout, *scratch, target)]
        return c_call(self._sums, (*places, byref(sizes)), (arrays, scratch, sizes))

    def weight_gradient(self, tiling: Tiling, sums: Array, target: Array) -> Callable[[], None]:
        """Return a call that writes the gradient of a weight, `target`, from what `sums` has written."""
        structure = _weight_of(target)
        places = sums.ctypes.data, byref(structure), _G[self.taps].ctypes.data, tiling.parts
        return c_call(self._weight_gradient, places, (sums, structure, target))

    def convolution_of_few(
        self,
        tiling: Tiling,
        arrays: tuple[Array, Array, Array | None, Array],
        scratch: Array,
        *,
        adds: bool,
        rotated: bool = False,
        norm: Array | None = None,
    ) -> Callable[[], None]:
        """Return a call as `convolution` does; arrays are data, the weight itself, bias and out.

        Args:
            tiling: at most `MAX_TILES_TOGETHER` are worked off together.
            scratch: `scratch_of_few` numbers.
            rotated: as of `transform`.
        """
        assert tiling.tiles <= MAX_TILES_TOGETHER
        data, weight, bias, out = arrays
        sizes, structure = tiling.sizes(norm), _weight_of(weight, rotated)
        places = data.ctypes.data, byref(structure), _G[self.taps].ctypes.data, place_of(bias)
        rest = out.ctypes.data, scratch.ctypes.data, byref(sizes), adds
        return c_call(self._few, (*places, *rest), (arrays, scratch, sizes, structure, norm))

    def weight_gradient_of_few(
        self, tiling: Tiling, arrays: tuple[Array, Array, Array], scratch: tuple[Array, Array]
    ) -> Callable[[], None]:
        """Return a call that writes the gradient of a weight; arrays are data, gout and that gradient.

        Its scratch is `scratch_of_few` for data's tiles, and gout's of `scratch`.
        """
        assert tiling.tiles == tiling.all
        data, gout, target = arrays
        sizes, structure = tiling.sizes(), _weight_of(target)
        places = [array.ctypes.data for array in (data, gout, *scratch)]
        rest = byref(structure), _G[self.taps].ctypes.data, byref(sizes)
        return c_call(self._few_sums, (*places, *rest), (arrays, scratch, sizes, structure))


def _count(out: tuple[int, ...], taps: int) -> int:
    """Tiles of an array out: as many rows and columns as windows of `taps` have places in 6."""
    side = 7 - taps
    return out[0] * -(-out[1] // side) * -(-out[2] // side)


def _weight_of(weight: Array, rotated: bool = False) -> _Weight:
    """A weight (filters, channels, taps, taps) of any strides; `rotated` as in `Winograd.transform`, or as it is."""
    if rotated:
        weight = weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1]
    steps = [step // weight.itemsize for step in weight.strides]
    return _Weight(weight.ctypes.data, *weight.shape[:2], *steps)


def winograd(taps: int = 3) -> Winograd | None:
    """The functions of windows of `taps` rows and columns, one of `KERNELS`, which are compiled when first asked for.

    That takes about a second, and they are on disk from then on: what a convolution computes does not depend on when a
    compiler is done. None without a compiler, on a processor without AVX2 and FMA, or with OPBOX_DISABLE=winograd.
    """
    if switches.is_off("winograd") or not c_compiler.allows_vectors():
        return None
    return compiled(TEXT, taps)


_ARGUMENTS: dict[str, list[Any]] = {
    "opbox_winograd": [*[c_void_p] * 7, c_int],
    "opbox_winograd_weight": [c_void_p] * 3,
    "opbox_winograd_sums": [c_void_p] * 6,
    "opbox_winograd_weight_gradient": [*[c_void_p] * 3, c_long],
    "opbox_winograd_few": [*[c_void_p] * 7, c_int],
    "opbox_winograd_few_sums": [c_void_p] * 7,
    "opbox_winograd_blocks": [*[c_void_p] * 5, c_int],
    "opbox_winograd_block_data_gradient": [c_void_p] * 4,
    "opbox_winograd_block_sums": [*[c_void_p] * 4, c_long],
}
"""Of the functions, in the order of `Winograd`'s attributes."""


@cache
def compiled(text: str, taps: int) -> Winograd | None:
    """The functions of a text like `TEXT`; None where it cannot be compiled."""
    text = f"#define TAPS {taps}\n{text}"
    width = c_compiler.compiled_function(text, "opbox_winograd_width", threads=True)
    functions = c_compiler.compiled_functions(text, _ARGUMENTS)
    return None if functions is None or width is None else Winograd(taps, width(), *functions)
