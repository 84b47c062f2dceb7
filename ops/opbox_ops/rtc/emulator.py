"""CUDA kernels on a CPU: compiled by the machine's C++ compiler, run block by block, every array access checked.

An index outside an array is an error that names the kernel, the line, the thread and the index, so a kernel is right
before it sees a GPU. It is a development tool: one core, no races (threads take turns), no warp intrinsics.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..errors import BadRequestError, DTypeError, UnsupportedError, UserCodeError
from .signature import Argument
from .translate import has_barrier, translate

__all__ = ["EmulatedKernel", "EmulatedModule"]

_PRELUDE = Path(__file__).with_name("prelude.hpp")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing")
COMPILE_SECONDS = 60
MAX_THREADS = 1024
"""Threads of a block, as every CUDA device allows."""
_NAME = re.compile(r"\w+(?:<[\w\s,]+>)?")


class _Array(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("argument", ctypes.c_int32),
        ("itemsize", ctypes.c_int64),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("line", ctypes.c_int32),
        ("other_line", ctypes.c_int32),
        ("argument", ctypes.c_int32),
        ("index", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("thread", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
    ]


class EmulatedModule:
    """CUDA source whose kernels run on the CPU; compiled once per source and kernel signature, kept by content hash.

    Args:
        source: CUDA C++.
        options: compiler options; -D and -U are used, --std and NVRTC's others have no meaning here.
        cache: a private folder for compiled kernels.
    """

    def __init__(self, source: str, options: Sequence[str] = (), cache: Path | None = None) -> None:
        self.source = source
        self.defines = tuple(option for option in options if option.startswith(("-D", "-U")))
        self._cache = cache

    def kernel(self, name: str, arguments: Sequence[Argument]) -> EmulatedKernel:
        """The kernel `name` (or an instance, "axpy<float>"), compiled.

        Raises:
            BadRequestError: the source does not compile; detail["log"] has the compiler's messages by the user's lines.
            UnsupportedError: there is no C++ compiler on this machine.
        """
        if not _NAME.fullmatch(name):
            raise BadRequestError(f"kernel {name!r}: expected a name, or a template's instance such as axpy<float>")
        library = ctypes.CDLL(str(self._compiled(name, tuple(arguments))))
        return EmulatedKernel(name, tuple(arguments), library.opbox_launch, has_barrier(self.source))

    def _compiled(self, name: str, arguments: tuple[Argument, ...]) -> Path:
        compiler = next((found for found in map(shutil.which, _COMPILERS) if found), None)
        if compiler is None:
            raise UnsupportedError(
                f"kernel {name!r}: this CPU server runs CUDA source through a C++ compiler and found none of "
                f"{', '.join(_COMPILERS)}: install one (on Debian: apt-get install g++)"
            )
        text = self._program(name, arguments)
        digest = hashlib.sha256("\0".join([text, *_FLAGS, compiler]).encode()).hexdigest()
        folder = self._cache or _default_cache()
        target = folder / f"{digest}.so"
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(dir=folder) as build:
            program, built = Path(build, "kernel.cpp"), Path(build, "kernel.so")
            program.write_text(text, encoding="utf-8")
            command = [compiler, *_FLAGS, "-o", str(built), str(program)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise BadRequestError(f"kernel {name!r}: compiling took longer than {COMPILE_SECONDS} s") from None
            if done.returncode:
                log = _readable(done.stderr)
                raise BadRequestError(
                    f"kernel {name!r} does not compile: {_first_error(log)}",
                    detail={"log": log},
                )
            os.replace(built, target)
        return target

    def _program(self, name: str, arguments: tuple[Argument, ...]) -> str:
        passed = []
        for position, argument in enumerate(arguments):
            const = "const " if argument.is_const else ""
            if argument.is_pointer:
                passed.append(f"opbox::argument<{const}{argument.c_type}>(args, {position})")
            else:
                passed.append(f"*({argument.c_type} *)args[{position}]")
        barriers = "true" if has_barrier(self.source) else "false"
        return (
            f"{_PRELUDE.read_text(encoding='utf-8')}\n"
            # After the prelude, which must not see the user's names.
            f"{_definitions(self.defines)}"
            f'#line 1 "kernel.cu"\n{translate(self.source)}\n'
            '#line 1 "launch"\n'
            f"static void opbox_run(void **args) {{ {name}({', '.join(passed)}); }}\n"
            'extern "C" int opbox_launch(void **args, const opbox::Array *known, int32_t count, const uint32_t *grid,\n'
            "                            const uint32_t *block, size_t shared, opbox::Report *report) {\n"
            f"  return opbox::launch(opbox_run, args, known, count, grid, block, shared, {barriers}, report);\n}}\n"
        )


class EmulatedKernel:
    """A compiled kernel. One launch at a time."""

    def __init__(self, name: str, arguments: tuple[Argument, ...], function: Any, barriers: bool) -> None:
        self.name = name
        self.arguments = arguments
        self._function = function
        self._lock = Lock()
        self._barriers = barriers

    def launch(self, args: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> None:
        """Run the kernel over `grid` blocks of `block` threads.

        Args:
            args: C-contiguous numpy arrays for pointers, numbers for scalars, as the signature says.
            grid, block: three sizes each.
            shared_bytes: of dynamic shared memory.

        Raises:
            BadRequestError: the number of arguments, the grid or the block does not fit.
            DTypeError: an array's element type is not the signature's.
            UserCodeError: an access outside an array, a null pointer, or threads at different barriers.
        """
        grid_size = _sizes(self.name, "grid", grid)
        block_size = _sizes(self.name, "block", block)
        if block_size[0] * block_size[1] * block_size[2] > MAX_THREADS:
            raise BadRequestError(
                f"kernel {self.name!r}: expected at most {MAX_THREADS} threads a block, got {block_size}"
            )
        if len(args) != len(self.arguments):
            told = ", ".join(map(str, self.arguments))
            raise BadRequestError(
                f"kernel {self.name!r}: expected {len(self.arguments)} arguments ({told}), got {len(args)}"
            )
        holders, known = [], []
        for position, (argument, value) in enumerate(zip(self.arguments, args, strict=True)):
            if argument.is_pointer:
                array = _checked(self.name, argument, value)
                start = array.ctypes.data
                known.append(_Array(start, start + array.nbytes, position, array.itemsize))
                holders.append(ctypes.c_void_p(start))
            else:
                holders.append(_scalar(self.name, argument, value))
        addresses = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(holder) for holder in holders))
        table = (_Array * len(known))(*known)
        report = _Report()
        triple = ctypes.c_uint32 * 3
        with self._lock:
            self._function(
                addresses,
                table,
                ctypes.c_int32(len(known)),
                triple(*grid_size),
                triple(*block_size),
                ctypes.c_size_t(shared_bytes),
                ctypes.byref(report),
            )
        if report.kind:
            raise UserCodeError(self._told(report), detail={"line": report.line, "kernel": self.name})

    def _told(self, report: _Report) -> str:
        where = f"kernel {self.name!r}, line {report.line}"
        thread = f"in thread {tuple(report.thread)} of block {tuple(report.block)}"
        if report.kind == 2:
            return (
                f"kernel {self.name!r}: threads of one block wait at different __syncthreads(), "
                f"lines {report.line} and {report.other_line}, {thread}: every thread has to reach the same one"
            )
        array = f"array {self.arguments[report.argument].name!r}" if report.argument >= 0 else "shared memory"
        if report.kind == 3:
            return f"{where}: a null pointer is read or written, {thread}"
        return f"{where}: index {report.index} is outside {array} of {report.size} elements, {thread}"


def _sizes(kernel: str, what: str, sizes: Sequence[int]) -> tuple[int, int, int]:
    given = tuple(sizes)
    if len(given) != 3 or not all(isinstance(n, int | np.integer) and 1 <= n < 1 << 31 for n in given):
        raise BadRequestError(f"kernel {kernel!r}: {what}: expected three sizes of 1 or more, got {given}")
    return int(given[0]), int(given[1]), int(given[2])


def _checked(kernel: str, argument: Argument, value: Any) -> np.ndarray[Any, Any]:
    if not isinstance(value, np.ndarray):
        raise BadRequestError(f"kernel {kernel!r}: argument {argument.name!r}: expected an array, got {value!r}")
    if value.dtype != argument.dtype:
        raise DTypeError(f"kernel {kernel!r}: argument {argument.name!r}: expected {argument.dtype}, got {value.dtype}")
    if not value.flags.c_contiguous:
        raise BadRequestError(f"kernel {kernel!r}: argument {argument.name!r}: expected a contiguous array")
    return value


def _scalar(kernel: str, argument: Argument, value: Any) -> Any:
    try:
        number = np.asarray(value).astype(argument.dtype, casting="same_kind" if np.ndim(value) == 0 else "no")
    except (TypeError, ValueError):
        raise DTypeError(
            f"kernel {kernel!r}: argument {argument.name!r}: expected {argument.c_type}, got {value!r}"
        ) from None
    return (ctypes.c_char * number.nbytes).from_buffer_copy(number.tobytes())


def _definitions(options: Sequence[str]) -> str:
    lines = []
    for option in options:
        name, _, value = option[2:].partition("=")
        lines.append(f"#undef {name}\n" + (f"#define {name} {value or 1}\n" if option.startswith("-D") else ""))
    return "".join(lines)


def _readable(log: str) -> str:
    """The compiler's messages about the user's lines, in the user's types."""
    kept = [line for line in log.splitlines() if line.startswith(("kernel.cu:", "launch:"))]
    return re.sub(r"opbox::Ptr<([^<>]*)>", r"\1*", "\n".join(kept) or log.strip())


def _first_error(log: str) -> str:
    lines = log.splitlines()
    return next((line for line in lines if " error: " in line), lines[0] if lines else "the compiler gave no message")


def _default_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "opbox" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise UnsupportedError("the kernel cache belongs to somebody else or is writable by others: remove it")
    return folder
