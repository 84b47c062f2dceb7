"""CUDA kernels on a CPU: compiled by the machine's C++ compiler, run block by block, every array access checked.

An index outside an array is an error that names the kernel, the line, the thread and the index, so a kernel is right
before it sees a GPU. It is a development tool: one core, no races (threads take turns), no warp intrinsics.
"""

from __future__ import annotations

import _ctypes
import atexit
import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ..errors import BadRequestError, UnsupportedError, UserCodeError
from .launching import checked_arguments, checked_sizes
from .options import checked_options, definitions
from .signature import Argument
from .translate import has_barrier, translate

__all__ = ["EmulatedKernel", "EmulatedModule"]

_PRELUDE = tuple(Path(__file__).with_name(name) for name in ("prelude.hpp", "half.hpp"))
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-fno-strict-aliasing")
COMPILE_SECONDS = 60
MAX_SHARED = 228 << 10
"""Bytes of dynamic shared memory, as the largest devices allow."""
_USERS = re.compile(r"(?:\w+\.cu|launch):\d+:")
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
        self._defines = definitions(checked_options("module", options))
        self._cache = cache

    def kernel(self, name: str, arguments: Sequence[Argument]) -> EmulatedKernel:
        """The kernel `name` (or an instance of a template, "axpy<float>"), compiled.

        Raises:
            BadRequestError: the source does not compile; detail["log"] has the compiler's messages by the user's lines.
            UnsupportedError: there is no C++ compiler on this machine.
        """
        if not _NAME.fullmatch(name):
            raise BadRequestError(f"kernel {name!r}: expected a name, or a template's instance such as axpy<float>")
        library = _loaded(self._compiled(name, tuple(arguments)))
        return EmulatedKernel(name, tuple(arguments), library, has_barrier(self.source))

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
            f"{''.join(each.read_text(encoding='utf-8') for each in _PRELUDE)}\n"
            # After the prelude, which must not see the user's names.
            f"{self._defines}"
            f'#line 1 "kernel.cu"\n{translate(self.source)}\n'
            '#line 1 "launch"\n'
            f"static void opbox_run(void **args) {{ {name}({', '.join(passed)}); }}\n"
            'extern "C" int opbox_launch(void **args, const opbox::Array *known, int32_t count, const uint32_t *grid,\n'
            "                            const uint32_t *block, size_t shared, opbox::Report *report) {\n"
            f"  return opbox::launch(opbox_run, args, known, count, grid, block, shared, {barriers}, report);\n}}\n"
        )


class _Library:
    """A compiled kernel in this process; unloaded with the last kernel that uses it."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.launch = self._library.opbox_launch
        self.lock = Lock()

    def __del__(self) -> None:
        library = getattr(self, "_library", None)
        if library is not None:
            _ctypes.dlclose(library._handle)


_libraries: WeakValueDictionary[Path, _Library] = WeakValueDictionary()
_loading = Lock()


def _loaded(path: Path) -> _Library:
    # A library keeps a launch's state in its own variables, so whoever has it loaded must share its lock.
    with _loading:
        found = _libraries.get(path)
        if found is None:
            found = _libraries[path] = _Library(path)
        return found


class EmulatedKernel:
    """A compiled kernel. One launch at a time."""

    def __init__(self, name: str, arguments: tuple[Argument, ...], library: _Library, barriers: bool) -> None:
        self.name = name
        self.arguments = arguments
        self._library = library
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
        grid_size, block_size = checked_sizes(self.name, grid, block)
        holders: list[Any] = []
        known = []
        values = checked_arguments(self.name, self.arguments, args, np.ndarray)
        for position, (argument, value) in enumerate(zip(self.arguments, values, strict=True)):
            if argument.is_pointer:
                start = value.ctypes.data
                known.append(_Array(start, start + value.nbytes, position, value.itemsize))
                holders.append(ctypes.c_void_p(start))
            else:
                holders.append((ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes()))
        addresses = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(holder) for holder in holders))
        table = (_Array * len(known))(*known)
        report = _Report()
        triple = ctypes.c_uint32 * 3
        if shared_bytes > MAX_SHARED:
            raise BadRequestError(
                f"kernel {self.name!r}: expected at most {MAX_SHARED} bytes of shared memory, got {shared_bytes}"
            )
        with self._library.lock:
            self._library.launch(
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


def _readable(log: str) -> str:
    """The compiler's messages about the user's lines, in the user's types; none of the server's files."""
    kept = [line for line in log.splitlines() if _USERS.match(line)]
    return re.sub(r"opbox::Ptr<([^<>]*)>", r"\1*", "\n".join(kept))


def _first_error(log: str) -> str:
    lines = log.splitlines()
    return next((line for line in lines if " error: " in line), lines[0] if lines else "the compiler gave no message")


@cache
def _default_cache() -> Path:
    """A folder of this user's own; one for this process alone where the user has no home to write to."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "opbox" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        held = tempfile.TemporaryDirectory(prefix="opbox-kernels-")
        atexit.register(held.cleanup)
        return Path(held.name)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise UnsupportedError("the kernel cache belongs to somebody else or is writable by others: remove it")
    return folder
