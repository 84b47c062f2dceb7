"""Random numbers by Philox4x64-10, with the place of a stream as kernels' arguments or in the device's memory.

A block of the stream is four words of 64 bits, for a key of two and a counter of four (Salmon et al., 2011; see
`backend.random` for what these are). Uniform numbers are NumPy's for the same place, bit for bit: of a word's halves,
the lower first, 24 bits for single precision; 53 bits of a word for double. Normal numbers are made of pairs of words
or halves (Box and Muller, 1958). A thread makes a block; each number is written once, and nothing is read.

A launch that is recorded in a graph finds in `where` the seed, the executor's part of the key and the run, which are
other ones whenever the graph is launched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..compute import Array
from .kernel import KERNELS, KernelTemplate, Moved, compiled

__all__ = ["NORMAL", "PHILOX", "UNIFORM", "WORD", "StreamPlace", "draw", "write_place"]

_THREADS = 256
WORD = "unsigned long long"
"""CUDA's name for a random word, of 64 bits."""
PHILOX = """
struct Philox { unsigned long long words[4]; };
__device__ unsigned long long high_half(unsigned long long a, unsigned long long b) {
  const unsigned long long low = 0xFFFFFFFFull;
  const unsigned long long one = (a >> 32) * (b & low) + ((a & low) * (b & low) >> 32);
  const unsigned long long other = (a & low) * (b >> 32) + (one & low);
  return (a >> 32) * (b >> 32) + (one >> 32) + (other >> 32);
}
__device__ Philox philox(unsigned long long block, unsigned long long c1, unsigned long long c2,
                         unsigned long long c3, unsigned long long k0, unsigned long long k1) {
  unsigned long long c0 = block;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long m0 = 0xD2E7470EE14C6C93ull, m1 = 0xCA5A826395121157ull;
    const unsigned long long high0 = high_half(m0, c0), low0 = m0 * c0, high1 = high_half(m1, c2), low1 = m1 * c2;
    c0 = high1 ^ c1 ^ k0; c1 = low1; c2 = high0 ^ c3 ^ k1; c3 = low0;
    k0 += 0x9E3779B97F4A7C15ull; k1 += 0xBB67AE8584CAA73Bull;
  }
  return {{c0, c1, c2, c3}};
}
"""
"""philox: a block of the stream; its counter's first word is `block`."""
_PARAMETERS = (
    f"T *out, long long size, long long first, const {WORD} *where, {WORD} k0, {WORD} k1, {WORD} c1, {WORD} c2, "
    f"{WORD} c3"
)
_BEGIN = """  const bool wide = sizeof(A) == 8;
  const int per = wide ? 4 : 8;
  const long long block = first / per + blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (block * per >= first + size) return;
  if (where) { k0 = where[0]; k1 += where[1]; c3 = where[2]; }
  const Philox drawn = philox(block + 1, c1, c2, c3, k0, k1);
  A numbers[8];
"""
_END = """  for (int k = 0; k < per; ++k) {
    const long long number = block * per + k - first;
    if (number >= 0 && number < size) out[number] = T(numbers[k]);
  }
"""
_NUMBERS = 1 << 24


def _moved() -> Moved:
    return Moved(4 * _NUMBERS, 4 * _NUMBERS)


UNIFORM = KernelTemplate(
    "opbox_uniform",
    _PARAMETERS,
    _BEGIN
    + """  for (int k = 0; k < per; ++k) {
    const unsigned half = unsigned(drawn.words[k / 2] >> (k % 2 * 32));
    numbers[k] = wide ? A((drawn.words[k % 4] >> 11) * (1.0 / 9007199254740992.0))
                      : A((half >> 8) * (1.0f / 16777216.0f));
  }
"""
    + _END,
    ("16,777,216 numbers", _moved),
    PHILOX,
)
NORMAL = KernelTemplate(
    "opbox_normal",
    _PARAMETERS,
    _BEGIN
    + """  for (int k = 0; k < per; k += 2) {
    const unsigned long long word = drawn.words[k / 2];
    // Above 0, so that the logarithm is finite, and up to 1.
    const A radius = wide ? A(((drawn.words[k % 4] >> 11) + 1) * (1.0 / 9007199254740992.0))
                          : A(((unsigned)word + 1.0) * (1.0 / 4294967296.0));
    const A angle = wide ? A((drawn.words[k % 4 + 1] >> 11) * (2.0 / 9007199254740992.0))
                         : A(unsigned(word >> 32) * (2.0 / 4294967296.0));
    const A length = sqrt(A(-2) * log(radius));
    numbers[k] = length * cospi(angle);
    numbers[k + 1] = length * sinpi(angle);
  }
"""
    + _END,
    ("16,777,216 numbers", _moved),
    PHILOX,
)
PLACE = KernelTemplate(
    "opbox_place",
    f"{WORD} *where, {WORD} seed, {WORD} executor, {WORD} run",
    "  where[0] = seed; where[1] = executor; where[2] = run;\n",
    ("a place", lambda: Moved(24, 24)),
)
KERNELS += [UNIFORM, NORMAL, PLACE]


class StreamPlace(NamedTuple):
    """Blocks of a stream that a kernel draws from itself.

    Attributes:
        first: how many blocks were drawn before them.
        where: seed, executor and run on the device, instead of those in `key` and `counter`; its key is added to.
        key: of the stream.
        counter: the last three words of the counter.
    """

    first: int
    where: Array | None
    key: tuple[int, int]
    counter: tuple[int, int, int]


def numbers_of_a_block(dtype: Any) -> int:
    """Return how many numbers of a type a block has."""
    return 32 // int(np.dtype(dtype).itemsize)


def draw(
    xp: Any, kernel: KernelTemplate, out: Array, first: int, where: Array | None, key: tuple[int, int], counter: Any
) -> None:
    """Fill a contiguous array of float32 or float64.

    Args:
        xp: CuPy.
        kernel: UNIFORM or NORMAL.
        out: the array.
        first: how many numbers of its type were drawn before, at this place.
        where: seed, executor and run on the device, instead of those in `key` and `counter`; its key is added to.
        key: of the stream.
        counter: the last three words of the counter.
    """
    per = numbers_of_a_block(out.dtype)
    blocks = (first + out.size - 1) // per - first // per + 1
    place = np.uintp(0) if where is None else where
    arguments = (out, np.int64(out.size), np.int64(first), place, *map(np.uint64, (*key, *counter)))
    if out.size:
        compiled(xp, kernel, out.dtype.name)((-(-blocks // _THREADS),), (_THREADS,), arguments)


def write_place(xp: Any, where: Array, seed: int, executor: int, run: int) -> None:
    """Write what recorded draws read, on the current stream."""
    compiled(xp, PLACE, "float32")((1,), (1,), (where, *map(np.uint64, (seed, executor, run))))
