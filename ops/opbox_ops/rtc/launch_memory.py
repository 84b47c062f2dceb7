"""The memory that an emulated launch works on: its arrays, joined where they overlap."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .signature import Argument

__all__ = ["LaunchArray", "layout"]


class LaunchArray(ctypes.Structure):
    """An array argument of a launch; the fields are those of runtime.hpp."""

    _fields_ = [
        ("memory", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("argument", ctypes.c_int32),
        ("itemsize", ctypes.c_int32),
        ("writable", ctypes.c_int32),
    ]


def layout(arguments: Sequence[Argument], values: Sequence[Any]) -> tuple[list[LaunchArray], list[int], list[int]]:
    """The pieces of memory; for each argument its piece (-1 for a number) and where in it the array begins.

    Arrays that share memory (one given twice, a view and its base) stay together, so that what is written through one
    is read through the other.
    """
    arrays: list[LaunchArray] = []
    places, offsets = [-1] * len(values), [0] * len(values)
    pointers = [position for position, argument in enumerate(arguments) if argument.is_pointer]
    end = -1
    for position in sorted(pointers, key=lambda position: (values[position].ctypes.data, position)):
        value, start = values[position], values[position].ctypes.data
        if not arrays or start >= end:
            arrays.append(LaunchArray(start, 0, position, value.itemsize, 0))
            end = start
        piece = arrays[-1]
        end = max(end, start + value.nbytes)
        piece.bytes = end - piece.memory
        piece.writable |= not arguments[position].is_const
        places[position], offsets[position] = len(arrays) - 1, start - piece.memory
    return arrays, places, offsets
