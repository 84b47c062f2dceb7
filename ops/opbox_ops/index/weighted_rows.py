"""Weighted sums of a table's rows, and what is spread back to them: sampling between elements, and its gradients.

    gather    out[r] = sum over k of weights[k, r] table[places[k, r]]
    spread    table[places[k, r]] += weights[k, r] rows[r]
    products  out[k, r] = table[places[k, r]] · rows[r]

table (size, channels), rows and out of gather (n, channels), places (int64, all in the table) and weights (taps, n).

On the CPU a C kernel does it as soon as there is one (`c_compiler`), and NumPy otherwise, a piece of the rows at a
time.
"""

from __future__ import annotations

from ctypes import c_long, c_void_p
from functools import cache
from typing import Any

import numpy as np

from ..cache import CACHE_BYTES, GPU_COLUMN_BYTES
from ..compute import Array, Arrays, Temp
from ..cpu.runtime.c_kernel import CKernel
from ..cpu.runtime.kernel_text import kernel_text
from ..pausing import pause
from .counting import count_up
from .positions import take_rows

__all__ = ["gather_rows", "row_products", "spread_rows", "weighted_rows_temps"]

HOT = 1 << 24
"""Numbers of rows that NumPy reads before a kernel is asked for: some tens of milliseconds."""
AT_ONCE = 1 << 25
"""Numbers of rows that a kernel reads in a call: some tens of milliseconds."""
SMALL = 1 << 10
"""Numbers of rows up to which a NumPy call or two are as fast."""

_NUMBERS = {"float32": "float", "float64": "double"}
_ARGUMENTS = [c_long] * 5 + [c_void_p] * 5


@cache
def _kernel(name: str, dtype: str) -> CKernel | None:
    number = _NUMBERS.get(dtype)
    return None if number is None else CKernel(kernel_text("weighted_rows.c", NUMBER=number), name, _ARGUMENTS, HOT)


def _ran(
    name: str, xp: Any, places: Array, weights: Array | None, table: Array, rows: Array, out: Array | None
) -> bool:
    """Run the kernel, where there is one for these arrays."""
    work = places.size * table.shape[1]
    if xp is not np or work <= SMALL:
        return False
    kernel = _kernel(name, table.dtype.name)
    function = None if kernel is None else kernel.ready(work)
    if function is None:
        return False
    taps, n = places.shape
    arrays = (places, weights, table, rows, out)
    assert all(array is None or array.flags.c_contiguous for array in arrays)
    addresses = [(array is not None and array.ctypes.data) or None for array in arrays]
    step = max(1, AT_ONCE // max(taps * table.shape[1], 1))
    for first in range(0, n, step):
        pause()
        function(first, min(first + step, n), n, taps, table.shape[1], *addresses)
    return True


def weighted_rows_temps(device: str, n: int, taps: int, channels: int, dtype: Any, *, spreads: bool) -> list[Temp]:
    """List the temporaries of this module's functions for `n` rows.

    A piece of the table's rows, as many as half a cache takes (on a GPU GPU_COLUMN_BYTES), and for `spread_rows` the
    places of their numbers.
    """
    limit = CACHE_BYTES // 2 if device == "cpu" else GPU_COLUMN_BYTES
    piece = min(n, max(1, limit // max(1, taps * channels * np.dtype(dtype).itemsize)))
    numbers = piece * taps * channels if spreads and device == "cpu" else 0
    return [
        Temp((piece * taps, channels), dtype),
        Temp((numbers,), "int64"),
        Temp((channels if numbers else 0,), "int64"),
    ]


def _pieces(places: Array, scratch: Array) -> list[tuple[slice, Array]]:
    """Slices of the rows, and room for their table's rows (taps, rows, channels)."""
    taps, n = places.shape
    step, channels = max(len(scratch) // taps, 1), scratch.shape[1]
    pieces = []
    for start in range(0, n, step):
        stop = min(start + step, n)
        pieces.append((slice(start, stop), scratch[: taps * (stop - start)].reshape(taps, stop - start, channels)))
    return pieces


def _take(xp: Any, table: Array, places: Array, at: slice, scratch: Array) -> None:
    """Write the table's rows at the places of a piece."""
    if scratch.shape[1] == places.shape[1]:
        take_rows(xp, table, places.reshape(-1), scratch.reshape(-1, scratch.shape[2]))
    else:
        for k in range(len(places)):
            pause()
            take_rows(xp, table, places[k, at], scratch[k])


def gather_rows(xp: Any, table: Array, places: Array, weights: Array, out: Array, temps: Arrays) -> None:
    """Write the weighted sums; `temps` is what `weighted_rows_temps` says."""
    if _ran("gather", xp, places, weights, table, out, None):
        return
    for at, scratch in _pieces(places, temps[0]):
        _take(xp, table, places, at, scratch)
        if xp is np:
            np.einsum("kn,knc->nc", weights[:, at], scratch, out=out[at])
        else:
            xp.multiply(scratch, weights[:, at, None], out=scratch)
            xp.sum(scratch, axis=0, out=out[at])


def spread_rows(xp: Any, table: Array, places: Array, weights: Array, rows: Array, temps: Arrays) -> None:
    """Add rows, weighted, to the table's; `temps` is what `weighted_rows_temps` says with `spreads`."""
    if _ran("spread", xp, places, weights, table, rows, None):
        return
    scratch, numbers, channels = temps
    if xp is np:
        # Two neighbours are added as one complex number: add.at takes as long for it.
        wide = (
            np.dtype(f"c{2 * table.itemsize}") if table.shape[1] % 2 == 0 and table.dtype.char in "fd" else table.dtype
        )
        flat = table.reshape(-1).view(wide)
        width = table.shape[1] * table.itemsize // wide.itemsize
        count_up(xp, channels[:width])
    for at, share in _pieces(places, scratch):
        xp.multiply(rows[at], weights[:, at, None], out=share)
        if xp is np:
            index = numbers[: share.size // share.shape[2] * width].reshape(*share.shape[:2], width)
            np.multiply(places[:, at, None], width, out=index)
            index += channels[:width]
            np.add.at(flat, index.reshape(-1), share.reshape(-1).view(wide))
        else:
            for k in range(len(places)):
                xp.add.at(table, places[k, at], share[k])


def row_products(xp: Any, table: Array, places: Array, rows: Array, out: Array, temps: Arrays) -> None:
    """Write the products of the table's rows with `rows`; `temps` is what `weighted_rows_temps` says."""
    if _ran("products", xp, places, None, table, rows, out):
        return
    for at, scratch in _pieces(places, temps[0]):
        _take(xp, table, places, at, scratch)
        if xp is np:
            np.einsum("knc,nc->kn", scratch, rows[at], out=out[:, at])
        else:
            xp.multiply(scratch, rows[at], out=scratch)
            xp.sum(scratch, axis=2, out=out[:, at])
