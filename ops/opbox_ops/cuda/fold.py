"""Axes of an array folded into one number each on a GPU: sums, products, extremes, sums of squares.

Memory is (k1, r1, k2, r2, k3): the k are kept, the r are folded, and a missing one is 1. Where the last axis is folded
(k3 = 1), neighbouring threads read neighbours of one row, and a row has as many threads as it keeps busy. Where it is
kept, neighbouring threads have neighbouring columns. Where there are too few results to keep the device busy, each is
made from slices, a block each, and a second kernel folds what these have come to. An array is read once: the least
possible. Everything is folded in one order, so that each run has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from ..bound_calls import Call, as_one, place_of
from ..compute import Array, Temp
from .kernel import KERNELS, MAX_ELEMENTS, WHOLE, WITH_BFLOAT16, KernelTemplate, Moved, computed_type, scalar

__all__ = [
    "BLOCKS",
    "FOLDED",
    "THREADS",
    "Fold",
    "How",
    "address_of",
    "groups_of",
    "power_of_two",
    "slices_of",
    "vector_of",
]

FOLDED = (*WITH_BFLOAT16, *WHOLE)
"""The element types that are folded, by name."""
THREADS = 256
BLOCKS = 1056
"""So many blocks of THREADS fill the 132 processors of an H100."""
MAX_SLICES = 1024
_OF_A_THREAD = 16
"""Elements that are worth a thread of its own."""


class How(IntEnum):
    """What is done to each element, and how two are joined: by sum, product, maximum or minimum (`How % 4`)."""

    SUM = 0
    PRODUCT = 1
    MAX = 2
    MIN = 3
    ABSOLUTES = 8
    SUM_WITHOUT_NAN = 12
    PRODUCT_WITHOUT_NAN = 13
    ANY = 18
    ALL = 19
    APART = 20
    """The sum of squares of distances from `centre`."""
    LARGEST = 22
    """The largest absolute value."""
    SCALED_SQUARES = 24
    """The sum of squares in units of a power of two near the largest absolute value, `centre`: they do not overflow."""

    def neutral(self, dtype: Any) -> Any:
        """What any element joins with to itself, in the type that elements of `dtype` are computed in."""
        wide = computed_type(dtype)
        limits = np.iinfo(wide) if wide.kind == "i" else None
        lowest = -np.inf if limits is None else limits.min
        highest = np.inf if limits is None else limits.max
        return wide.type((0, 1, lowest, highest)[self % 4])


_FOLDING = """
#define LANES (sizeof(T) == 1 ? 8 : 16 / int(sizeof(T)))
struct alignas(LANES * sizeof(T)) Vector { T of[LANES]; };
__device__ A join(A a, A b, int how) {
  switch (how % 4) {
    case 0: return a + b;
    case 1: return a * b;
    case 2: return b > a || b != b ? b : a;
    default: return b < a || b != b ? b : a;
  }
}
// A power of two whose inverse is a number too: near `largest`, 1 where that is 0 or not finite.
__device__ A unit_of(A largest) {
  const double x = double(largest);
  if (!(x > 0) || x - x != 0) return 1;
  const int exponent = ilogb(x), least = sizeof(A) == 8 ? -1022 : -126;
  return A(scalbn(1.0, exponent < least ? least : exponent));
}
// The first `count` of N elements into one total, or each into its own.
template <int N, bool EACH> __device__ void fold(A *totals, const T *x, int count, int how, const A *centre) {
#define OF_EACH(e) \
  for (int k = 0; k < N; ++k) \
    if (k < count) { \
      const A v = A(x[k]); \
      A &total = totals[EACH ? k : 0]; \
      e; \
    } \
  break;
  switch (how) {
    case 0: OF_EACH(total += v)
    case 1: OF_EACH(total *= v)
    case 2: OF_EACH(if (v > total || v != v) total = v)
    case 3: OF_EACH(if (v < total || v != v) total = v)
    case 8: OF_EACH(total += v < A(0) ? -v : v)
    case 12: OF_EACH(if (v == v) total += v)
    case 13: OF_EACH(if (v == v) total *= v)
    case 18: OF_EACH(const A truth = v != A(0); if (truth > total) total = truth)
    case 19: OF_EACH(const A truth = v != A(0); if (truth < total) total = truth)
    case 20: OF_EACH(const A d = v - centre[EACH ? k : 0]; total += d * d)
    case 22: OF_EACH(const A size = v < A(0) ? -v : v; if (size > total || size != size) total = size)
    case 24: OF_EACH(const A d = v * centre[EACH ? k : 0]; total += d * d)
  }
}
// What each element is compared with: see `How`.
__device__ A middle_of(const A *centre, unsigned result, int how) {
  return how == 20 ? centre[result] : how == 24 ? 1 / unit_of(centre[result]) : A(0);
}
__device__ void put(T *out, A *wide, unsigned at, A total, A divisor, int rooted, int target, const A *centre,
                    unsigned result, int how) {
  if (target != 1) {
    total = total / divisor;
    if (rooted) total = A(sqrt(double(total)));
    if (how == 24) total *= unit_of(centre[result]);
  }
  if (target) wide[at] = total;
  else out[at] = T(total);
}
"""
"""target: 0 writes the result, 1 what a slice has come to, 2 the result in the type that is computed in."""
_ENDING = "int how, A neutral, A divisor, int rooted, int target"
_ROW_BYTES = 4 * 4096 * 1024

ROWS = KernelTemplate(
    "opbox_fold_rows",
    "const T *data, const A *centre, T *out, A *wide, unsigned results, unsigned n, unsigned kept, unsigned run, "
    f"unsigned group, unsigned slices, unsigned chunk, int vectors, {_ENDING}",
    """  extern __shared__ A scratch[];
  const unsigned t = threadIdx.x, lane = t % group, slice = blockIdx.x % slices;
  const unsigned result = blockIdx.x / slices * (blockDim.x / group) + t / group;
  const unsigned begin = slice * chunk, end = n - begin < chunk ? n : begin + chunk;
  A total[1] = {neutral};
  if (result < results) {
    // A row is runs of neighbours, as far apart as the kept axis between them is long.
    const unsigned first = run == n ? result * n : (result / kept * (n / run) * kept + result % kept) * run;
    const unsigned further = kept * run;
    const A middle[1] = {middle_of(centre, result, how)};
#define PLACE(i) (run == n ? first + (i) : first + (i) / run * further + (i) % run)
    unsigned i = begin;
    if (vectors) {
      const unsigned whole = begin + (end - begin) / LANES * LANES, step = group * LANES;
      for (i = begin + lane * LANES; i < whole; i += 2 * step) {
        const bool two = i + step < whole;
        const Vector a = *reinterpret_cast<const Vector *>(data + PLACE(i));
        const Vector b = two ? *reinterpret_cast<const Vector *>(data + PLACE(i + step)) : a;
        fold<LANES, false>(total, a.of, LANES, how, middle);
        if (two) fold<LANES, false>(total, b.of, LANES, how, middle);
      }
      i = whole;
    }
    for (i += lane; i < end; i += 4 * group) {
      T x[4];
      for (int k = 0; k < 4; ++k)
        if (i + k * group < end) x[k] = data[PLACE(i + k * group)];
      fold<4, false>(total, x, (end - i + group - 1) / group, how, middle);
    }
  }
  scratch[t] = total[0];
  __syncthreads();
  for (unsigned half = group / 2; half > 0; half /= 2) {
    if (lane < half) scratch[t] = join(scratch[t], scratch[t + half], how);
    __syncthreads();
  }
  if (lane == 0 && result < results)
    put(out, wide, slice * results + result, scratch[t], divisor, rooted, target, centre, result, how);
""",
    ("4,096 rows of 1,024", lambda: Moved(_ROW_BYTES + 4 * 4096, _ROW_BYTES + 4 * 4096)),
    declares=_FOLDING,
    types=FOLDED,
)
COLUMNS = KernelTemplate(
    "opbox_fold_columns",
    "const T *data, const A *centre, T *out, A *wide, unsigned planes, unsigned n, unsigned kept, unsigned run, "
    f"unsigned columns, unsigned across, unsigned slices, unsigned chunk, int vectors, {_ENDING}",
    """  extern __shared__ A scratch[];
  const int lanes = vectors ? LANES : 1;
  const unsigned t = threadIdx.x, row = t / across, rows = blockDim.x / across;
  const unsigned tiles = (columns + across * lanes - 1) / (across * lanes);
  const unsigned slice = blockIdx.x % slices, tile = blockIdx.x / slices % tiles, plane = blockIdx.x / slices / tiles;
  const unsigned c = (tile * across + t % across) * lanes, result = plane * columns + c;
  const unsigned begin = slice * chunk, end = n - begin < chunk ? n : begin + chunk;
  const unsigned first = run == n ? plane * n : (plane / kept * (n / run) * kept + plane % kept) * run;
  A total[LANES], middle[LANES];
  for (int k = 0; k < LANES; ++k) total[k] = neutral;
  if (c < columns) {
    for (int k = 0; k < LANES; ++k) middle[k] = k < lanes ? middle_of(centre, result + k, how) : A(0);
    // Rows follow one another in runs.
#define START(r) ((run == n ? first + (r) : first + (r) / run * kept * run + (r) % run) * columns + c)
    unsigned r = begin + row;
    for (; vectors && r < end; r += 2 * rows) {
      const bool two = r + rows < end;
      const Vector a = *reinterpret_cast<const Vector *>(data + START(r));
      const Vector b = two ? *reinterpret_cast<const Vector *>(data + START(r + rows)) : a;
      fold<LANES, true>(total, a.of, LANES, how, middle);
      if (two) fold<LANES, true>(total, b.of, LANES, how, middle);
    }
    for (; r < end; r += 4 * rows) {
      T x[4];
      for (int k = 0; k < 4; ++k)
        if (r + k * rows < end) x[k] = data[START(r + k * rows)];
      fold<4, false>(total, x, (end - r + rows - 1) / rows, how, middle);
    }
  }
  for (int k = 0; k < LANES; ++k)
    if (k < lanes) scratch[k * blockDim.x + t] = total[k];
  __syncthreads();
  for (unsigned half = rows / 2; half > 0; half /= 2) {
    if (row < half)
      for (int k = 0; k < lanes; ++k) {
        A &sum = scratch[k * blockDim.x + t];
        sum = join(sum, scratch[k * blockDim.x + t + half * across], how);
      }
    __syncthreads();
  }
  if (row == 0 && c < columns)
    for (int k = 0; k < lanes; ++k)
      put(out, wide, slice * planes * columns + result + k, scratch[k * blockDim.x + t], divisor, rooted, target,
          centre, result + k, how);
""",
    ("4,096 rows of 1,024, each column", lambda: Moved(_ROW_BYTES + 4 * 1024, _ROW_BYTES + 4 * 1024)),
    declares=_FOLDING,
    types=FOLDED,
)
LAST = KernelTemplate(
    "opbox_fold_last",
    f"const A *parts, const A *centre, T *out, A *wide, unsigned results, unsigned slices, unsigned across, {_ENDING}",
    """  extern __shared__ A scratch[];
  const unsigned t = threadIdx.x, row = t / across, rows = blockDim.x / across;
  const unsigned result = blockIdx.x * across + t % across;
  A total = neutral;
  if (result < results)
    for (unsigned s = row; s < slices; s += rows) total = join(total, parts[s * results + result], how);
  scratch[t] = total;
  __syncthreads();
  for (unsigned half = rows / 2; half > 0; half /= 2) {
    if (row < half) scratch[t] = join(scratch[t], scratch[t + half * across], how);
    __syncthreads();
  }
  if (row == 0 && result < results)
    put(out, wide, result, scratch[t], divisor, rooted, target, centre, result, how);
""",
    ("1,056 parts", lambda: Moved(4 * (BLOCKS + 1), 4 * (BLOCKS + 1))),
    declares=_FOLDING,
    types=FOLDED,
)
KERNELS += [ROWS, COLUMNS, LAST]


def power_of_two(number: int) -> int:
    """The least power of two that is not less than a number."""
    return 1 << max(0, number - 1).bit_length()


def vector_of(dtype: Any) -> int:
    """Elements of a type that a thread loads at once: 16 bytes, or 8 of a byte each."""
    size = np.dtype(dtype).itemsize
    return 8 if size == 1 else 16 // size


def groups_of(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int, int, int, int] | None:
    """Sizes (k1, r1, k2, r2, k3) of a shape whose `axes` are folded; None where kept and folded ones alternate more.

    Example:
        >>> groups_of((32, 64, 56, 56), (0, 2, 3))
        (1, 32, 64, 3136, 1)
    """
    sizes, slot = [1] * 5, 0
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if slot % 2 != (axis in axes):
            slot += 1
        if slot == len(sizes):
            return None
        sizes[slot] *= size
    k1, r1, k2, r2, k3 = sizes
    return (k1, r1, 1, 1, k2) if slot == 2 else (k1, r1, k2, r2, k3)


def slices_of(blocks: int, n: int, least: int) -> int:
    """How many slices of at least `least` elements results of n elements are made from, which have so many blocks."""
    return max(1, min(BLOCKS // blocks, n // least, MAX_SLICES))


@dataclass(frozen=True)
class Fold:
    """How axes of an array are folded.

    Attributes:
        sizes: of the array, as `groups_of` has them.
        dtype: of its elements.
    """

    sizes: tuple[int, int, int, int, int]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: Sequence[int], axes: Sequence[int], dtype: Any) -> Fold | None:
        """The fold of `axes`; None where the kernels do not take it."""
        sizes = groups_of(shape, axes)
        if sizes is None or np.dtype(dtype).name not in FOLDED:
            return None
        fold = cls(sizes, np.dtype(dtype))
        return fold if fold.n > 1 and 0 < fold.n * fold.results <= MAX_ELEMENTS else None

    @cached_property
    def n(self) -> int:
        """Elements of a result."""
        return self.sizes[1] * self.sizes[3]

    @cached_property
    def results(self) -> int:
        """How many results there are."""
        return self.sizes[0] * self.sizes[2] * self.sizes[4]

    @property
    def _of_rows(self) -> bool:
        return self.sizes[4] == 1

    @cached_property
    def _run(self) -> int:
        """Elements of a result, or rows, that follow one another in memory."""
        _, r1, k2, r2, _ = self.sizes
        return self.n if r1 == 1 or k2 == 1 else r2

    @cached_property
    def _in_vectors(self) -> bool:
        """Whether all vectors are aligned where the array is."""
        if not self._of_rows:
            return self.sizes[4] % vector_of(self.dtype) == 0
        return self._run % vector_of(self.dtype) == 0 or self.n * self.results == self._run

    @property
    def _lanes(self) -> int:
        return vector_of(self.dtype) if self._in_vectors else 1

    @cached_property
    def _group(self) -> int:
        """Threads of a row."""
        lanes, group = self._lanes, 1
        most = min(THREADS, power_of_two(-(-self.n // lanes)))
        while group < most and (group * _OF_A_THREAD < self.n or self.results * group < 2 * BLOCKS // 8 * THREADS):
            group *= 2
        return group

    @cached_property
    def _across(self) -> int:
        """Threads that read beside one another in a row."""
        return min(32, power_of_two(-(-self.sizes[4] // self._lanes)))

    @cached_property
    def _blocks(self) -> int:
        """How many blocks there are of one slice."""
        if self._of_rows:
            return -(-self.results // (THREADS // self._group))
        return self.sizes[0] * self.sizes[2] * -(-self.sizes[4] // (self._across * self._lanes))

    @cached_property
    def _chunk(self) -> int:
        """Elements of a slice, or rows: a multiple of a vector."""
        if not self._of_rows:
            return -(
                -self.n // slices_of(self._blocks, self.n, THREADS // self._across * (_OF_A_THREAD // self._lanes))
            )
        lanes = vector_of(self.dtype)
        slices = slices_of(self._blocks, self.n, THREADS * _OF_A_THREAD) if self._group == THREADS else 1
        return -(-self.n // (slices * lanes)) * lanes

    @cached_property
    def slices(self) -> int:
        """How many slices each result is made from."""
        return -(-self.n // self._chunk)

    @cached_property
    def parts(self) -> Temp:
        """The temporary array that `bind` takes."""
        return Temp((self.slices * self.results if self.slices > 1 else 1,), computed_type(self.dtype))

    def bind(
        self,
        xp: Any,
        how: How,
        data: Array,
        out: Array,
        parts: Array,
        *,
        centre: Array = None,
        divisor: float = 1,
        rooted: bool = False,
    ) -> Call:
        """A call that folds `data` into `out`, both contiguous.

        Args:
            xp: CuPy.
            how: what is folded.
            data: of the shape and type.
            out: as many as `results`, of data's type or of the type that it is computed in.
            parts: of `self.parts`; what is in it is lost.
            centre: like out, in the type that data is computed in: for `How.APART` and
                `How.SCALED_SQUARES`.
            divisor: what each result is divided by; whole numbers are cut off.
            rooted: whether the root is taken in the end, which `How.SCALED_SQUARES` needs.
        """
        wide = out.dtype != self.dtype
        ending = (how.neutral(self.dtype), scalar(divisor, self.dtype), np.int32(rooted), np.int32(2 * wide))
        slices = self.slices
        targets = (data, out) if wide else (out, parts)
        first = (data, parts) if slices > 1 else targets
        centre = parts if centre is None else centre  # one that is not read
        joining = how if how == How.SCALED_SQUARES else How(how % 4)
        numbers = (np.int32(how), how.neutral(self.dtype), scalar(1, self.dtype), np.int32(0), np.int32(1))
        calls = [
            self._first(
                xp,
                (data, centre, *first),
                numbers if slices > 1 else (np.int32(how), *ending),
            )
        ]
        if slices > 1:
            down = min(THREADS, power_of_two(-(-slices // 8)))
            across = min(32, THREADS // down, power_of_two(self.results))
            sizes = map(np.uint32, (self.results, slices, across))
            blocks, threads = -(-self.results // across), max(32, across * down)
            last = (parts, centre, *targets, *sizes, np.int32(joining), *ending)
            calls.append(LAST.launch(xp, self.dtype, blocks, threads, last, threads * parts.dtype.itemsize))
        return as_one(calls)

    def _first(self, xp: Any, arrays: tuple[Array, ...], ending: tuple[Any, ...]) -> Callable[[], Any]:
        """The call of the kernel that reads the data."""
        k1, _, k2, _, k3 = self.sizes
        itemsize = computed_type(self.dtype).itemsize
        lanes = vector_of(self.dtype)
        vectors = self._in_vectors and address_of(arrays[0]) % (lanes * self.dtype.itemsize) == 0
        slices, chunk = self.slices, self._chunk
        if self._of_rows:
            numbers: tuple[int, ...] = (self.results, self.n, k2, self._run, self._group, slices, chunk)
            kernel, scratch = ROWS, THREADS * itemsize
        else:
            # Without vectors a thread has one column, and there are more blocks.
            numbers = (k1 * k2, self.n, k2, self._run, k3, self._across, slices, chunk)
            kernel, scratch = COLUMNS, THREADS * itemsize * (lanes if vectors else 1)
        blocks = self._blocks
        if not self._of_rows and not vectors:
            blocks = k1 * k2 * -(-k3 // self._across)
        arguments = (*arrays, *map(np.uint32, numbers), np.int32(vectors), *ending)
        return kernel.launch(xp, self.dtype, blocks * slices, THREADS, arguments, scratch)


def address_of(array: Array) -> int:
    """Where an array begins, on a device or on the host."""
    place = getattr(array.data, "ptr", None)
    return int(place if place is not None else place_of(array) or 0)
