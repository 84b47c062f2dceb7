"""The sentence for a fault that stopped an emulated kernel."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from .signature import Argument

__all__ = ["FaultReport", "described"]


class FaultReport(ctypes.Structure):
    """A fault of an emulated kernel; the fields are those of runtime.hpp."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("kind", "line", "other_line", "column", "argument", "other_thread")),
        *((name, ctypes.c_int64) for name in ("index", "size", "code")),
        ("thread", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("mask", ctypes.c_uint32),
        ("text", ctypes.c_char * 160),
    ]


(_OUTSIDE, _BARRIERS, _NULL, _NAMED, _NOWHERE, _MISALIGNED, _DIVISION, _CONSTANT, _BOUNDS, _ASSERT, _TRAP, _WARP) = (
    range(1, 13)
)
_SHARED, _MEMORY, _DEEP = 13, 14, 15


def described(
    kernel: str, arguments: Sequence[Argument], report: FaultReport, line: int, block: tuple[int, int, int]
) -> str:
    """The sentence; `line` is the user's."""
    text = report.text.decode(errors="replace")
    if report.kind == _MEMORY:
        return f"kernel {kernel!r}: there is no memory for its arrays and threads: give it smaller arrays or blocks"
    thread = f"in thread {tuple(report.thread)} of block {tuple(report.block)}"
    if report.kind == _BARRIERS:
        return (
            f"kernel {kernel!r}: threads of one block wait at different __syncthreads(), "
            f"lines {line} and {report.other_line}, {thread}: every thread has to reach the same one"
        )
    name = arguments[report.argument].name if 0 <= report.argument < len(arguments) else ""
    beyond = f"index {report.index} is outside"
    what = {
        _OUTSIDE: f"{beyond} array {name!r} of {report.size} elements",
        _NULL: "a null pointer is read or written",
        _NAMED: f"{beyond} {_variable(text)} of {report.size} elements",
        _NOWHERE: "an address outside every array is read or written",
        _MISALIGNED: f"an address of {text} is not a multiple of {report.size} bytes",
        _DIVISION: "an integer is divided by zero",
        _CONSTANT: f"array {name!r} is written, which the signature says is const",
        _BOUNDS: f"{beyond} {_of_type(text)}",
        _ASSERT: f"assert({text}) fails",
        _TRAP: "__trap() is called",
        _WARP: _warp(report, block),
        _DEEP: f"local variables and calls take more than {report.size >> 10} KiB of a thread's stack",
        _SHARED: f"{beyond} shared memory of {report.size} elements",
    }[report.kind]
    return f"kernel {kernel!r}, line {line}: {what}, {thread}"


def _variable(name: str) -> str:
    return name if " " in name else f"array {name!r}"


def _of_type(name: str) -> str:
    """An array that the compiler knows by its type alone, such as 'float [4][5]' with its quotes."""
    length = re.search(r"\[(\d+)\]", name)
    return f"an array of {length[1]} elements ({name.strip(chr(39))})" if length else f"an array {name}"


def _warp(report: FaultReport, block: tuple[int, int, int]) -> str:
    mask = f"0x{report.mask:x}"
    if report.other_thread < 0:
        return f"a warp function's mask {mask} lacks the lane that calls it"
    number = report.other_thread
    other = (number % block[0], number // block[0] % block[1], number // (block[0] * block[1]))
    return (
        f"a warp function waits for the lanes {mask}, and thread {other} waits at line {report.other_line} "
        "instead: every lane of the mask has to call it with the same mask"
    )
