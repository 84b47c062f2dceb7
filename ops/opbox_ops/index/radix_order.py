"""The stable order of rows by a C kernel: digits of eight bits, from the lowest, in a sweep each.

An element becomes an unsigned number of the same order (a float's bits, turned where it is negative; -0 as 0; NaN as
the largest), so that one loop serves all types. Digits that all elements of a row share cost nothing.
"""

from __future__ import annotations

from ctypes import c_int, c_long, c_void_p

import numpy as np

from ..c_kernel import CKernel
from ..compute import Array
from ..pausing import pause

__all__ = ["radix_order"]

HOT = 1 << 19
"""Elements that NumPy orders before the kernel is asked for: some 50 ms."""
AT_ONCE = 1 << 19
"""Elements of the rows between two looks at whether the call goes on, if one row is not more: some 20 ms."""

_TEXT = r"""
#include <stdint.h>
#include <string.h>

/* The places of a row's keys in order. Keys and places have room for two rows each; the result is in the first. */
#define ORDER(name, Key, DIGITS)                                                                     \
    static void name(Key *keys, uint32_t *places, long size)                                         \
    {                                                                                                \
        uint32_t starts[DIGITS][256];                                                                \
        memset(starts, 0, sizeof starts);                                                            \
        for (long i = 0; i < size; i++)                                                              \
            for (int d = 0; d < DIGITS; d++) starts[d][(keys[i] >> 8 * d) & 255]++;                  \
        Key *from = keys, *to = keys + size;                                                         \
        uint32_t *before = places, *after = places + size;                                           \
        for (int d = 0; d < DIGITS; d++) {                                                           \
            uint32_t *start = starts[d], sum = 0;                                                    \
            if (start[(from[0] >> 8 * d) & 255] == size) continue;                                   \
            for (int v = 0; v < 256; v++) { const uint32_t count = start[v]; start[v] = sum; sum += count; } \
            for (long i = 0; i < size; i++) {                                                        \
                const uint32_t at = start[(from[i] >> 8 * d) & 255]++;                               \
                to[at] = from[i];                                                                    \
                after[at] = before[i];                                                               \
            }                                                                                        \
            Key *key = from; from = to; to = key;                                                    \
            uint32_t *place = before; before = after; after = place;                                 \
        }                                                                                            \
        if (before != places) memcpy(places, before, size * sizeof *places);                         \
    }
ORDER(order16, uint16_t, 2)
ORDER(order32, uint32_t, 4)
ORDER(order64, uint64_t, 8)

static uint32_t key_signed32(uint32_t x) { return x ^ 0x80000000u; }
static uint64_t key_signed64(uint64_t x) { return x ^ 0x8000000000000000u; }
#define FLOAT(name, Key, TOP, INFINITE)                                \
    static Key name(Key x)                                             \
    {                                                                  \
        if ((Key)(x & ~TOP) > INFINITE) return (Key)~(Key)0;           \
        if (x == TOP) x = 0;                                           \
        return x & TOP ? (Key)~x : (Key)(x | TOP);                     \
    }
FLOAT(key_float16, uint16_t, (uint16_t)0x8000, 0x7c00)
FLOAT(key_float32, uint32_t, 0x80000000u, 0x7f800000u)
FLOAT(key_float64, uint64_t, 0x8000000000000000u, 0x7ff0000000000000u)

/* data and order are (outer, size, inner); first to last: which of the outer times inner rows. */
#define ROWS(name, Key, key_of, order_of)                                                             \
    static void name(const Key *data, int64_t *order, Key *keys, uint32_t *places, long size, long inner, \
                     long first, long last, Key turn)                                                 \
    {                                                                                                 \
        for (long row = first; row < last; row++) {                                                   \
            const long begin = row / inner * size * inner + row % inner;                              \
            for (long i = 0; i < size; i++) {                                                         \
                keys[i] = key_of(data[begin + i * inner]) ^ turn;                                     \
                places[i] = i;                                                                        \
            }                                                                                         \
            order_of(keys, places, size);                                                             \
            for (long i = 0; i < size; i++) order[begin + i * inner] = places[i];                     \
        }                                                                                             \
    }
ROWS(rows_signed32, uint32_t, key_signed32, order32)
ROWS(rows_signed64, uint64_t, key_signed64, order64)
ROWS(rows_float16, uint16_t, key_float16, order16)
ROWS(rows_float32, uint32_t, key_float32, order32)
ROWS(rows_float64, uint64_t, key_float64, order64)

void opbox_order(const void *data, int64_t *order, void *keys, uint32_t *places, long size, long inner, long first,
                 long last, int type, int descending)
{
#define CASE(number, rows, Key) \
    case number: rows(data, order, keys, places, size, inner, first, last, descending ? (Key)~(Key)0 : 0); break;
    switch (type) {
        CASE(0, rows_signed32, uint32_t)
        CASE(1, rows_signed64, uint64_t)
        CASE(2, rows_float16, uint16_t)
        CASE(3, rows_float32, uint32_t)
        CASE(4, rows_float64, uint64_t)
    }
}
"""
SHORTEST = 32
"""Times the bytes of an element: of shorter rows NumPy's own order is as fast."""
_TYPES = {"int32": 0, "int64": 1, "float16": 2, "float32": 3, "float64": 4}
"""The kernel's numbers of types; NumPy orders those of one byte by their digit too."""


def new_kernel() -> CKernel:
    """The kernel, not compiled yet."""
    return CKernel(_TEXT, "opbox_order", [*[c_void_p] * 4, *[c_long] * 4, c_int, c_int], HOT)


_KERNEL = new_kernel()


def radix_order(data: Array, axis: int, ascend: bool) -> Array | None:
    """The positions that sort `data` along an axis: int64, in data's shape; None where NumPy has to find them.

    Equal elements stay in their order, whatever the direction; NaN is the largest.

    Example:
        >>> radix_order(np.zeros((2, 300), "float32"), 1, False)[1, :3]  # None as long as there is no kernel
        array([0, 1, 2])
    """
    number, size = _TYPES.get(data.dtype.name), data.shape[axis]
    if number is None or not data.dtype.isnative or not data.size:
        return None
    if not SHORTEST * data.dtype.itemsize <= size < 1 << 31:
        return None
    kernel = _KERNEL.ready(data.size)
    if kernel is None:
        return None
    data = np.ascontiguousarray(data)
    order = np.empty(data.shape, np.int64)
    keys, places = np.empty(2 * size, f"u{data.dtype.itemsize}"), np.empty(2 * size, np.uint32)
    inner = int(np.prod(data.shape[axis + 1 :], dtype=np.int64))
    rows = data.size // size
    step = max(1, AT_ONCE // size)
    for first in range(0, rows, step):
        pause()
        addresses = (array.ctypes.data for array in (data, order, keys, places))
        kernel(*addresses, size, inner, first, min(first + step, rows), number, not ascend)
    return order
