"""argmax and argmin on a GPU: the position of the greatest or least element, in two steps where results are few.

Memory is (outer, n, inner). NaN wins, and of equal elements the first. Where inner is 1 neighbouring threads read
neighbours of a row, elsewhere neighbouring columns. Slices of a row are searched by a block each; a second kernel
searches what they have come to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..reduce.positions import searched_axis
from ..registry import get
from .fold import BLOCKS, FOLDED, THREADS, How, address_of, power_of_two, slices_of, vector_of
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, computed_type, contiguous

_LOADS = 8
"""Minimum number of elements of a thread, where a row is searched by several blocks."""
_ROW_BYTES = 4 * 4096 * 1024

_WINNER = """
struct Winner { A value; int at; };
__device__ Winner better(Winner a, Winner b, int greatest) {
  const bool a_missing = a.value != a.value, b_missing = b.value != b.value;
  bool swapped = b.at < a.at;
  if (a_missing != b_missing) swapped = b_missing;
  else if (!a_missing && a.value != b.value) swapped = greatest ? b.value > a.value : b.value < a.value;
  return swapped ? b : a;
}
// The best of the `rows` threads of a result, which are `apart` from one another; the first of them has it.
__device__ Winner best(Winner own, unsigned row, unsigned rows, unsigned apart, int greatest) {
  extern __shared__ A scratch[];
  A *values = scratch;
  int *places = reinterpret_cast<int *>(scratch + blockDim.x);
  const unsigned t = threadIdx.x;
  values[t] = own.value;
  places[t] = own.at;
  __syncthreads();
  for (unsigned half = rows / 2; half > 0; half /= 2) {
    if (row < half) {
      const unsigned other = t + half * apart;
      own = better(own, Winner{values[other], places[other]}, greatest);
      values[t] = own.value;
      places[t] = own.at;
    }
    __syncthreads();
  }
  return own;
}
#define NOWHERE 2147483647
#define LANES (sizeof(T) == 1 ? 8 : 16 / int(sizeof(T)))
struct alignas(LANES * sizeof(T)) Vector { T of[LANES]; };
// The better of a thread's best and its next element.
__device__ void look(Winner &own, T next, unsigned at, int greatest) {
  const A x = A(next);
  const bool better = greatest ? x > own.value : x < own.value;
  if (better || own.at == NOWHERE || (x != x && own.value == own.value)) own = Winner{x, int(at)};
}
"""
SEARCH = KernelTemplate(
    "opbox_search",
    "const T *data, A *values, long long *places, unsigned outer, unsigned n, unsigned inner, unsigned across, "
    "unsigned slices, unsigned chunk, int vectors, A worst, int greatest",
    """  const bool of_rows = inner == 1;
  const unsigned t = threadIdx.x, rows = blockDim.x / across, columns = of_rows ? outer : inner;
  const unsigned row = of_rows ? t % rows : t / across, tiles = (columns + across - 1) / across;
  const unsigned slice = blockIdx.x % slices, tile = blockIdx.x / slices % tiles, plane = blockIdx.x / slices / tiles;
  const unsigned c = tile * across + (of_rows ? t / rows : t % across);
  const unsigned begin = slice * chunk, end = n - begin < chunk ? n : begin + chunk;
  Winner own{worst, NOWHERE};
  if (c < columns) {
    const T *x = data + (of_rows ? c * n : plane * n * inner + c);
    unsigned i = begin + row;
    if (vectors) {
      const unsigned whole = begin + (end - begin) / LANES * LANES;
      for (i = begin + row * LANES; i < whole; i += rows * LANES) {
        const Vector v = *reinterpret_cast<const Vector *>(x + i);
        for (int k = 0; k < LANES; ++k) look(own, v.of[k], i + k, greatest);
      }
      i = whole + row;
    }
    for (; i + 3 * rows < end; i += 4 * rows) {
      const T four[4] = {x[i * inner], x[(i + rows) * inner], x[(i + 2 * rows) * inner], x[(i + 3 * rows) * inner]};
      for (int k = 0; k < 4; ++k) look(own, four[k], i + k * rows, greatest);
    }
    for (; i < end; i += rows) look(own, x[i * inner], i, greatest);
  }
  own = best(own, row, rows, of_rows ? 1 : across, greatest);
  if (row > 0 || c >= columns) return;
  const unsigned result = slice * outer * inner + (of_rows ? c : plane * inner + c);
  if (slices > 1) values[result] = own.value;
  places[result] = own.at;
""",
    ("4,096 rows of 1,024", lambda: Moved(_ROW_BYTES + 8 * 4096, _ROW_BYTES + 8 * 4096)),
    declares=_WINNER,
    types=FOLDED,
)
LAST = KernelTemplate(
    "opbox_search_last",
    "const A *values, const long long *places, long long *out, unsigned results, unsigned across, unsigned slices, "
    "A worst, int greatest",
    """  const unsigned row = threadIdx.x / across, rows = blockDim.x / across;
  const unsigned result = blockIdx.x * across + threadIdx.x % across;
  Winner own{worst, NOWHERE};
  if (result < results)
    for (unsigned s = row; s < slices; s += rows)
      own = better(own, Winner{values[s * results + result], int(places[s * results + result])}, greatest);
  own = best(own, row, rows, across, greatest);
  if (row == 0 && result < results) out[result] = own.at;
""",
    ("1,056 parts", lambda: Moved(12 * BLOCKS + 8, 12 * BLOCKS + 8)),
    declares=_WINNER,
    types=FOLDED,
)
KERNELS += [SEARCH, LAST]


@dataclass(frozen=True)
class Search:
    """How rows are searched: of n elements of a type, `inner` apart.

    Attributes:
        outer, n, inner: the array's sizes.
        dtype: of its elements.
    """

    outer: int
    n: int
    inner: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, axis: int | None, data: ArraySpec) -> Search:
        """The search along an axis, or of the flattened array."""
        before, shape = (0, (math.prod(data.shape),)) if axis is None else (axis, data.shape)
        return cls(math.prod(shape[:before]), shape[before], math.prod(shape[before + 1 :]), data.dtype)

    @property
    def results(self) -> int:
        """How many positions there are."""
        return self.outer * self.inner

    @property
    def _across(self) -> int:
        """Results of a block."""
        if self.inner > 1:
            return min(32, power_of_two(self.inner))
        rows = 1
        while rows < min(THREADS, power_of_two(self.n)) and (
            rows * _LOADS < self.n or self.outer * rows < BLOCKS // 4 * THREADS
        ):
            rows *= 2
        return THREADS // rows

    @property
    def _blocks(self) -> int:
        """How many blocks there are of one slice."""
        if self.inner == 1:
            return -(-self.outer // self._across)
        return self.outer * -(-self.inner // self._across)

    @property
    def _chunk(self) -> int:
        sliced = self.inner > 1 or self._across == 1
        slices = slices_of(self._blocks, self.n, THREADS // self._across * _LOADS) if sliced else 1
        lanes = vector_of(self.dtype)  # slices begin where a vector does
        return -(-self.n // (slices * lanes)) * lanes

    @property
    def _slices(self) -> int:
        return -(-self.n // self._chunk)

    @property
    def parts(self) -> list[Temp]:
        """The temporary arrays that `bind` takes: values, and positions."""
        parts = self._slices * self.results if self._slices > 1 else 1
        return [Temp((parts,), computed_type(self.dtype)), Temp((parts,), np.int64)]

    def bind(self, xp: Any, data: Array, out: Array, parts: Arrays, *, greatest: bool) -> Call:
        """A call that writes the positions, of int64."""
        (values, places), slices, across = parts, self._slices, self._across
        ending = ((How.MAX if greatest else How.MIN).neutral(self.dtype), np.int32(greatest))
        sizes = map(np.uint32, (self.outer, self.n, self.inner, across, slices, self._chunk))
        itemsize, lanes = computed_type(self.dtype).itemsize + 4, vector_of(self.dtype)
        aligned = address_of(data) % (lanes * self.dtype.itemsize) == 0
        vectors = aligned and self.inner == 1 and (self.n % lanes == 0 or self.outer == 1)
        first = (data, values, places if slices > 1 else out, *sizes, np.int32(vectors), *ending)
        calls: list[Call] = [SEARCH.launch(xp, self.dtype, self._blocks * slices, THREADS, first, THREADS * itemsize)]
        if slices > 1:
            down = min(THREADS, power_of_two(-(-slices // 8)))
            across = min(32, THREADS // down, power_of_two(self.results))
            threads, blocks = max(32, across * down), -(-self.results // across)
            last = (values, places, out, *map(np.uint32, (self.results, across, slices)), *ending)
            calls.append(LAST.launch(xp, self.dtype, blocks, threads, last, threads * itemsize))
        return as_one(calls)


def _accepts(p: Any, call: CallSpec) -> bool:
    data = call.inputs[0]
    return call.plain and data.dtype.name in FOLDED and 0 < math.prod(data.shape) <= MAX_ELEMENTS


def _search(p: Any, data: ArraySpec) -> Search:
    return Search.of(searched_axis(p, len(data.shape)), data)


def _temps(p: Any, call: CallSpec) -> list[Temp]:
    search = _search(p, call.inputs[0])
    return [*search.parts, Temp((search.results if call.outputs[0].dtype != np.int64 else 0,), np.int64)]


def _attach(name: str, *, greatest: bool) -> None:
    @get(name).compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        (data,), calls = contiguous(ctx, inputs)
        *parts, positions = ctx.temp
        (out,) = outputs
        target = out if out.dtype == np.int64 else positions
        calls.append(_search(p, ctx.call.inputs[0]).bind(ctx.xp, data, target, parts, greatest=greatest))
        if target is not out:
            calls.append(partial(ctx.xp.copyto, out, target.reshape(out.shape), casting="unsafe"))
        return as_one(calls)


for _name, _greatest in (
    ("argmax", True),
    ("argmax_channel", True),
    ("_npi_argmax", True),
    ("argmin", False),
    ("_npi_argmin", False),
):
    _attach(_name, greatest=_greatest)
