"""cumsum and its gradient on a GPU: a thread for each of many short sums, or a block for each of few long ones.

Sums that are so few and so long that the device would be idle are cut into pieces. Each piece is summed first, then
the sums before it, and then it is written. Numbers are added up in single precision at least, in one order, so that
every run has the same bits. Integers and arrays of two types are the library's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..reduce.cumsum import CumsumParams, backward, op
from .kernel import KERNELS, KernelTemplate, Moved, by_thread, contiguous, fits

_THREADS = 256
_SHORT = 64
"""Numbers of a sum that a thread adds up alone, however far apart sums lie."""
_NEIGHBOURS = 32
"""Sums beside one another, which a warp reads together: threads add these up, however long they are."""
_BLOCKS = 528
"""Minimum number of blocks that are not cut into pieces: four for each processor of a large device."""
_MAX_PARTS = 4096
_ROWS, _LENGTH = 4096, 1024
_ALONG_FIRST, _ALONG_LAST = (f"{_ROWS:,} x {_LENGTH:,} along the {axis} axis" for axis in ("first", "last"))

_PIECE_SUMS = KernelTemplate(
    "opbox_cumsum_piece_sums",
    "const T *data, A *sums, int threads, int length, int inner, int piece, int pieces, int backwards",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= threads) return;
  const int begin = number / inner % pieces * piece, end = begin + min(piece, length - begin);
  const long long first = (long long)(number / inner / pieces) * length * inner + number % inner;
  A sum = 0;
  for (int i = begin; i < end; ++i) sum += A(data[first + (long long)(backwards ? length - 1 - i : i) * inner]);
  sums[number] = sum;
""",
    (_ALONG_FIRST, lambda: Moved(4 * _ROWS * _LENGTH, 4 * _ROWS * _LENGTH)),
)
_TILE_SUMS = KernelTemplate(
    "opbox_cumsum_tile_sums",
    "const T *data, A *sums, int length, int inner, int piece, int pieces, int backwards",
    """  extern __shared__ A scratch[];
  const int row = blockIdx.x / pieces, begin = blockIdx.x % pieces * piece, end = begin + min(piece, length - begin);
  const long long first = (long long)(row / inner) * length * inner + row % inner;
  A sum = 0;
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x)
    sum += A(data[first + (long long)(backwards ? length - 1 - i : i) * inner]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
""",
    (_ALONG_LAST, lambda: Moved(4 * _ROWS * _LENGTH, 4 * _ROWS * _LENGTH)),
)
_STARTS = KernelTemplate(
    "opbox_cumsum_starts",
    "A *sums, int threads, int pieces, int inner",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= threads) return;
  A *own = sums + (long long)(number / inner) * pieces * inner + number % inner, before = 0;
#pragma unroll 8
  for (int k = 0; k < pieces; ++k) {
    const A sum = own[(long long)k * inner];
    own[(long long)k * inner] = before;
    before += sum;
  }
""",
    (_ALONG_LAST, lambda: Moved(8 * _ROWS, 8 * _ROWS)),
    types=("float32", "float64"),
)
_BY_THREAD = KernelTemplate(
    "opbox_cumsum_by_thread",
    "const T *data, const A *starts, T *out, int threads, int length, int inner, int piece, int pieces, int backwards",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= threads) return;
  const int begin = number / inner % pieces * piece, end = begin + min(piece, length - begin);
  const long long first = (long long)(number / inner / pieces) * length * inner + number % inner;
  A sum = pieces > 1 ? starts[number] : A(0);
  for (int i = begin; i < end; ++i) {
    const long long at = first + (long long)(backwards ? length - 1 - i : i) * inner;
    sum += A(data[at]);
    out[at] = T(sum);
  }
""",
    (_ALONG_FIRST, lambda: Moved(8 * _ROWS * _LENGTH, 8 * _ROWS * _LENGTH)),
)
_BY_BLOCK = KernelTemplate(
    "opbox_cumsum_by_block",
    "const T *data, const A *starts, T *out, int length, int inner, int piece, int pieces, int backwards",
    """  extern __shared__ A scratch[];
  const int row = blockIdx.x / pieces, begin = blockIdx.x % pieces * piece, end = begin + min(piece, length - begin);
  const long long first = (long long)(row / inner) * length * inner + row % inner;
  A before = pieces > 1 ? starts[blockIdx.x] : A(0);
  for (int start = begin; start < end; start += blockDim.x) {
    const int i = start + threadIdx.x;
    const long long at = first + (long long)(backwards ? length - 1 - i : i) * inner;
    scratch[threadIdx.x] = i < end ? A(data[at]) : A(0);
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2) {
      const A further = threadIdx.x >= step ? scratch[threadIdx.x - step] : A(0);
      __syncthreads();
      scratch[threadIdx.x] += further;
      __syncthreads();
    }
    if (i < end) out[at] = T(before + scratch[threadIdx.x]);
    before += scratch[blockDim.x - 1];
    __syncthreads();
  }
""",
    (_ALONG_LAST, lambda: Moved(8 * _ROWS * _LENGTH, 8 * _ROWS * _LENGTH)),
)
KERNELS += [_PIECE_SUMS, _TILE_SUMS, _STARTS, _BY_THREAD, _BY_BLOCK]


class _Split(NamedTuple):
    """How sums are shared among threads or blocks.

    Attributes:
        sums, length, inner: how many sums, of how many numbers, that are `inner` apart.
        by_block: whether a block has a piece of a sum; else a thread.
        piece, pieces: numbers of a piece, pieces of a sum.
    """

    sums: int
    length: int
    inner: int
    by_block: bool
    piece: int
    pieces: int


def _split(p: CumsumParams, shape: tuple[int, ...]) -> _Split:
    """The split of an array's sums. Few long sums are cut into as many pieces as keep a device busy."""
    size = math.prod(shape)
    flat = p.axis is None or not shape
    length = size if flat else shape[p.axis or 0]
    inner = 1 if flat else math.prod(shape[(p.axis or 0) % len(shape) + 1 :])
    sums = size // length
    by_block = length > _SHORT and inner < _NEIGHBOURS
    width, workers, least = (_THREADS, sums, 4) if by_block else (1, -(-sums // _THREADS), 16)
    piece = length
    if workers < _BLOCKS and length > 8 * least * width:
        pieces = min(_MAX_PARTS, -(-_BLOCKS // workers))
        piece = width * max(least, -(-length // (width * pieces)))
    return _Split(sums, length, inner, by_block, piece, -(-length // piece))


def _accepts(p: CumsumParams, call: CallSpec) -> bool:
    return fits(call, call.inputs[0], call.outputs[0])


def _temps(p: CumsumParams, call: CallSpec, *, backwards: bool) -> list[Temp]:
    """The sums of pieces, and then of all numbers before them."""
    split = _split(p, (call.outputs if backwards else call.inputs)[0].shape)
    return [Temp((split.sums * split.pieces if split.pieces > 1 else 0,), accumulation_type(call.inputs[0].dtype))]


def _sums(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, backwards: bool) -> Call:
    (data,), calls = contiguous(ctx, inputs)
    out, (starts,) = outputs[0], ctx.temp
    if out is None:
        return as_one([])
    split = _split(p, (out if backwards else data).shape)
    threads, dtype = split.sums * split.pieces, data.dtype
    numbers = [*map(np.int32, (split.length, split.inner, split.piece, split.pieces, backwards))]
    scratch = _THREADS * accumulation_type(dtype).itemsize

    def launch(by_thread_kernel: KernelTemplate, by_block_kernel: KernelTemplate, *arrays: Array) -> Call:
        if split.by_block:
            return by_block_kernel.call(ctx, dtype, threads, _THREADS, (*arrays, *numbers), scratch)
        return by_thread(ctx, by_thread_kernel, dtype, threads, (*arrays, np.int32(threads), *numbers))

    if split.pieces > 1:
        inner = 1 if split.by_block else split.inner
        sizes = map(np.int32, (split.sums, split.pieces, inner))
        calls += [
            launch(_PIECE_SUMS, _TILE_SUMS, data, starts),
            by_thread(ctx, _STARTS, starts.dtype, split.sums, (starts, *sizes)),
        ]
    return as_one([*calls, launch(_BY_THREAD, _BY_BLOCK, data, starts, out)])


for _op, _backwards in ((op, False), (backward, True)):
    _op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=partial(_temps, backwards=_backwards))(
        partial(_sums, backwards=_backwards)
    )
