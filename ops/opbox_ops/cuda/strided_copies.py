"""Many copies in one launch: slices that are taken, and arrays that are joined.

A copy is of rows that lie at regular distances, in the source and in the target: of units of 16 bytes where addresses,
rows and distances are multiples of that, else of 8, 4 or 2. A block copies _CHUNK units of one copy, and finds which in
a table that goes with the launch; a thread has its four units on the way before it writes the first. Everything is read
once and written once. The array library copies what has more dimensions, or rows of an odd number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..bound_calls import Call, as_one, nothing
from ..compute import Array
from ..expression.cuda_vectors import rows_of
from ..trust import is_trusted
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved

__all__ = ["Pair", "copies"]

_THREADS = 256
_CHUNK = 4 * _THREADS
"""Units of a block."""
MAX_COPIES = 96
"""Maximum number of copies of a launch: CUDA before 12.1 takes 4 KiB of arguments."""
_UNITS = {16: "int64", 8: "int32", 4: "float16", 2: "int8"}
"""By the bytes of a unit, the type that is half of it."""
_ELEMENTS = 32 * 256 * 56 * 56

COPY_ROWS = KernelTemplate(
    "opbox_copy_slices",
    "const Table table, int copies",
    f"""  int k = 0, after = copies;
  while (after - k > 1) {{
    const int middle = (k + after) / 2;
    (table.first[middle] <= blockIdx.x ? k : after) = middle;
  }}
  const int begin = (blockIdx.x - table.first[k]) * {_CHUNK} + threadIdx.x, size = table.sizes[k];
  const int width = table.widths[k];
  const Unit *source = (const Unit *)table.places[0][k];
  Unit *target = (Unit *)table.places[1][k];
  Unit values[4];
  int rows[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {{
    const int at = begin + j * {_THREADS};
    rows[j] = at / width;
    if (at < size) values[j] = source[(long long)rows[j] * table.gaps[0][k] + at];
  }}
#pragma unroll
  for (int j = 0; j < 4; ++j) {{
    const int at = begin + j * {_THREADS};
    if (at < size) target[(long long)rows[j] * table.gaps[1][k] + at] = values[j];
  }}
""",
    ("two halves of 32 images of 256 channels, 56 x 56", lambda: Moved(4 * 2 * _ELEMENTS, 4 * 2 * _ELEMENTS)),
    declares="struct alignas(2 * sizeof(T)) Unit { T halves[2]; };\n"
    f"struct Table {{ void *places[2][{MAX_COPIES}]; int sizes[{MAX_COPIES}], widths[{MAX_COPIES}], "
    f"gaps[2][{MAX_COPIES}], first[{MAX_COPIES}]; }};\n",
    types=tuple(_UNITS.values()),
)
"""places: of sources and targets; sizes, widths: units of a copy, and of its rows; gaps: between rows, in units."""
KERNELS.append(COPY_ROWS)

TRUSTED_AS = "Concat/cuda.joins"
"""The compute whose check the kernel has passed, or not."""
_FIELDS = [
    ("places", np.uintp, (2, MAX_COPIES)),
    *((name, np.int32, (MAX_COPIES,)) for name in ("sizes", "widths")),
    ("gaps", np.int32, (2, MAX_COPIES)),
    ("first", np.int32, (MAX_COPIES,)),
]
Pair: TypeAlias = "tuple[Array, Array]"
"""A target, and a source of the same shape and type."""


def copies(xp: Any, pairs: Sequence[Pair]) -> Call:
    """A call that copies each source to its target, which share no memory; by the array library where not trusted."""
    calls: list[Call] = []
    by_unit: dict[int, list[tuple[Pair, tuple[int, int, int, int]]]] = {}
    for target, source in pairs:
        if not target.size:
            continue
        rows = _rows(target, source) if is_trusted(TRUSTED_AS, target.dtype.name) else None
        if rows is None:
            calls.append(partial(xp.copyto, target, source))
        else:
            by_unit.setdefault(rows[0], []).append(((target, source), rows[1:]))
    for unit, group in by_unit.items():
        calls += [_launch(xp, unit, group[k : k + MAX_COPIES]) for k in range(0, len(group), MAX_COPIES)]
    return as_one(calls) if calls else nothing


def _rows(target: Array, source: Array) -> tuple[int, int, int, int, int] | None:
    """Bytes of a unit; units of the copy, of a row, and between rows of source and target; None where not in rows."""
    layout = rows_of(target.shape, [source, target])
    if layout is None or len(layout.sizes) > 2 or {own[-1] for own in layout.strides} != {1}:
        return None
    itemsize = target.dtype.itemsize
    width = layout.sizes[-1] * itemsize
    steps = [own[0] * itemsize if len(own) > 1 else width for own in layout.strides]
    multiples = (width, *steps, source.data.ptr, target.data.ptr)
    unit = next((unit for unit in _UNITS if not any(number % unit for number in multiples)), None)
    if unit is None or target.nbytes // unit > MAX_ELEMENTS or max(map(abs, steps)) // unit > MAX_ELEMENTS:
        return None
    return (unit, target.nbytes // unit, width // unit, *((step - width) // unit for step in steps))


def _launch(xp: Any, unit: int, group: Sequence[tuple[Pair, tuple[int, int, int, int]]]) -> Call:
    table, blocks = np.zeros((), _FIELDS), 0
    for k, ((target, source), (size, width, *gaps)) in enumerate(group):
        table["places"][:, k] = source.data.ptr, target.data.ptr
        table["sizes"][k], table["widths"][k], table["first"][k] = size, width, blocks
        table["gaps"][:, k] = gaps
        blocks += -(-size // _CHUNK)
    launch = COPY_ROWS.launch(xp, _UNITS[unit], blocks, _THREADS, (table, np.int32(len(group))))

    def run(keep: Any = group) -> None:
        launch()

    return run
