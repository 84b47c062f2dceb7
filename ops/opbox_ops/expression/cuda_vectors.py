"""Launches of a formula over arrays that lie in rows: a thread reads and writes 16 bytes of each array at once.

CuPy's own kernel reads an element at a time, which is half of what an H100's memory gives. It stays for other arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ..bound_calls import Call
from ..compute import Array
from ..cuda.kernel import threads_of

__all__ = ["Formula", "RowLayout", "rows_of"]

VECTOR_BYTES = 16
MAX_VECTOR = 8
"""Maximum number of elements that a thread computes: their values are in registers."""
MAX_DIMENSIONS = 3
THREADS = 256
"""Maximum number of threads of a block."""
BUSY_THREADS = 132 * 4 * 32
"""Threads that keep an H100 busy: below that a thread computes fewer elements, so that all processors have some."""
WIDE = 2**31 - THREADS * MAX_VECTOR
"""Elements from which they are counted in 64 bits."""

_TEXT = """#include <cupy/carray.cuh>
#include <cupy/float16.cuh>
#include <cupy/bfloat16.cuh>
{preamble}
#define VECTOR {vector}
template <class T> struct alignas(sizeof(T) * VECTOR) opbox_vector {{ T v[VECTOR]; }};
typedef {index} I;
extern "C" __global__ void opbox_formula({parameters}, I size) {{
  const I at = (I(blockIdx.x) * blockDim.x + threadIdx.x) * VECTOR;
  if (at >= size) return;
{offsets}
{vectors}
{loads}  #pragma unroll
  for (int k = 0; k < VECTOR; ++k) {{
{elements}
{body}
{results}
  }}
{stores}}}
"""


@dataclass(frozen=True)
class RowLayout:
    """How several arrays lie, with as few dimensions as describe all of them.

    Attributes:
        sizes: of each dimension, the innermost last.
        strides: of each array, in elements, in each dimension; the innermost is 1, or 0 for one value a row.
        vector: how many elements of a row are read at once.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    vector: int


def rows_of(shape: Sequence[int], arrays: Sequence[Array]) -> RowLayout | None:
    """Describe arrays that are broadcast to `shape`; None where they take more dimensions, or rows have gaps."""
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in arrays]
    for axis in range(-1, -len(shape) - 1, -1):
        size = shape[axis]
        if size == 1:
            continue
        steps = [_step(array, axis) for array in arrays]
        if sizes and all(step == own[-1] * sizes[-1] for step, own in zip(steps, strides, strict=True)):
            sizes[-1] *= size
            continue
        sizes.append(size)
        for step, own in zip(steps, strides, strict=True):
            own.append(step)
    if not sizes:
        sizes, strides = [1], [[1] for _ in arrays]
    if len(sizes) > MAX_DIMENSIONS or any(own[0] not in (0, 1) for own in strides):
        return None
    vector = min(MAX_VECTOR, VECTOR_BYTES // max(array.dtype.itemsize for array in arrays))
    while vector > 1 and not _fits(vector, sizes, strides, arrays):
        vector //= 2
    return RowLayout(tuple(sizes[::-1]), tuple(tuple(own[::-1]) for own in strides), vector)


def _step(array: Array, axis: int) -> int:
    """The elements between neighbours of an axis, counted from the last; 0 where the array is broadcast."""
    if -axis > array.ndim or array.shape[axis] == 1:
        return 0
    return int(array.strides[axis]) // int(array.dtype.itemsize)


def _fits(vector: int, sizes: Sequence[int], strides: Sequence[Sequence[int]], arrays: Sequence[Array]) -> bool:
    """Return whether each row begins at a whole vector; the innermost dimension comes first."""
    if len(sizes) > 1 and sizes[0] % vector:
        return False
    return all(
        own[0] == 0 or (array.data.ptr % (vector * array.dtype.itemsize) == 0 and not any(s % vector for s in own[1:]))
        for own, array in zip(strides, arrays, strict=True)
    )


@dataclass(frozen=True)
class Formula:
    """A formula's text.

    Attributes:
        body: computes `y<n>` from `x<n>`, the arrays' elements and behind them the constants.
        preamble: what stands before it.
        constants: how many there are.
        work: their type in C.
        types: C's names of the types of arrays and targets.
        options: the compiler's.
    """

    body: str
    preamble: str
    constants: int
    work: str
    types: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()

    def bind(self, xp: Any, arrays: Sequence[Array], constants: Sequence[Any], targets: Sequence[Array]) -> Call | None:
        """Return a call that writes the targets, all of one shape; None where they do not lie in rows."""
        shape = targets[0].shape
        size = math.prod(shape)
        rows = rows_of(shape, [*arrays, *targets])
        names = dict(self.types)
        if rows is None or any(array.dtype.name not in names for array in (*arrays, *targets)):
            return None
        vector = rows.vector
        while vector > 1 and size < BUSY_THREADS * vector:
            vector //= 2
        index = np.int32 if size < WIDE and _farthest(rows) < WIDE else np.int64
        types = tuple(names[array.dtype.name] for array in (*arrays, *targets))
        inner = tuple(own[-1] for own in rows.strides)
        key = _Key(types, len(arrays), inner, len(rows.sizes), vector, index is np.int64)
        kernel = _kernel(xp, self, key, xp.cuda.runtime.getDevice())
        numbers = [index(size) for size in rows.sizes[1:]]
        numbers += [index(step) for own in rows.strides for step in own[:-1]]
        threads = -(-size // vector)
        block = threads_of(threads)
        return partial(
            kernel,
            (-(-threads // block),),
            (block,),
            (*arrays, *targets, *constants, *numbers, index(size)),
        )


def _farthest(rows: RowLayout) -> int:
    """The largest offset of an element."""
    return max(sum((size - 1) * abs(step) for size, step in zip(rows.sizes, own, strict=True)) for own in rows.strides)


@dataclass(frozen=True)
class _Key:
    """What a kernel is compiled for: the types of arrays and targets, how many are arrays, and how they lie."""

    types: tuple[str, ...]
    arrays: int
    inner: tuple[int, ...]
    dimensions: int
    vector: int
    wide: bool


@cache
def _kernel(xp: Any, formula: Formula, key: _Key, device: int) -> Callable[..., Any]:
    return xp.RawKernel(source(formula, key), "opbox_formula", formula.options)  # type: ignore[no-any-return]


def source(formula: Formula, key: _Key) -> str:
    """The kernel's text."""
    vector, count, ways = key.vector, len(key.types), key.dimensions
    targets = range(key.arrays, count)
    outer = range(ways - 1)
    parameters = [f"{'' if k in targets else 'const '}{kind} *p{k}" for k, kind in enumerate(key.types)]
    parameters += [f"const {formula.work} x{key.arrays + k}" for k in range(formula.constants)]
    parameters += [f"const I n{d}" for d in range(1, ways)]
    parameters += [f"const I s{k}_{d}" for k in range(count) for d in outer]
    offsets = []
    if ways == 1:
        offsets.append("  const I i = at;")
    else:
        offsets.append(f"  const I row = at / n{ways - 1}, i = at - row * n{ways - 1};")
        offsets.append("  const I i0 = row;" if ways == 2 else "  const I i0 = row / n1, i1 = row - i0 * n1;")
    for k, inner in enumerate(key.inner):
        terms = [f"i{d} * s{k}_{d}" for d in outer] + ["i"] * inner
        offsets.append(f"  const I o{k} = {' + '.join(terms) or '0'};")
    whole_loads, part_loads, elements, results, whole_stores, part_stores = [], [], [], [], [], []
    vectors = []
    for k, kind in enumerate(key.types):
        wide = f"opbox_vector<{kind}>"
        if k in targets:
            n = k - key.arrays
            vectors.append(f"  {wide} r{k};")
            elements.append(f"    {kind} y{n};")
            results.append(f"    r{k}.v[k] = y{n};")
            whole_stores.append(f"*({wide} *)(p{k} + o{k}) = r{k};")
            part_stores.append(f"p{k}[o{k} + k] = r{k}.v[k];")
        elif key.inner[k] == 0:
            elements.append(f"    const {kind} x{k} = p{k}[o{k}];")
        else:
            vectors.append(f"  {wide} r{k};")
            whole_loads.append(f"r{k} = *(const {wide} *)(p{k} + o{k});")
            part_loads.append(f"r{k}.v[k] = p{k}[o{k} + k];")
            elements.append(f"    const {kind} x{k} = r{k}.v[k];")
    # Only the last vector of arrays that lie as one row may end beyond them.
    cut = ways == 1 and vector > 1
    loads, stores = _whole_or_part(whole_loads, part_loads, cut), _whole_or_part(whole_stores, part_stores, cut)
    return _TEXT.format(
        preamble=formula.preamble,
        vector=vector,
        index="long long" if key.wide else "int",
        parameters=", ".join(parameters),
        offsets="\n".join(offsets),
        vectors="\n".join(vectors),
        loads=loads,
        elements="\n".join(elements),
        body=formula.body,
        results="\n".join(results),
        stores=stores,
    )


def _whole_or_part(whole: Sequence[str], part: Sequence[str], cut: bool) -> str:
    """The statements for a whole vector of each array, and where vectors may be cut off, for its elements instead.

    Elements have constant indices, so that vectors stay in registers; all loads stand together, so that none is waited
    for before the next one.
    """
    if not cut or not whole:
        return "".join(f"  {line}\n" for line in whole)
    vectors, elements = (
        "".join(f"    {indent}{line}\n" for line in lines) for indent, lines in (("", whole), ("  ", part))
    )
    loop = "    #pragma unroll\n    for (int k = 0; k < VECTOR; ++k) if (at + k < size) {\n"
    return f"  if (at + VECTOR <= size) {{\n{vectors}  }} else {{\n{loop}{elements}    }}\n  }}\n"
