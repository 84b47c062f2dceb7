"""CUDA kernels on a CPU: compiled by the machine's C++ compiler, run block by block, every access checked.

An index outside an array is an error that names the kernel, the line, the thread and the index, so a kernel is right
before it sees a GPU. It is a development tool: one core, and no races (threads take turns).
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np

from opbox_protocol.errors import BadRequestError, UserCodeError

from .building import Build, line_of
from .launch_memory import LaunchArray, layout
from .launching import checked_arguments, checked_shared, checked_sizes
from .options import checked_options, definitions
from .report import FaultReport, described
from .signature import Argument
from .translate import waits

__all__ = ["EmulatedKernel", "EmulatedModule"]

_MAX_PARAMETERS = 512


class EmulatedModule:
    """CUDA source whose kernels run on the CPU; compiled once per source and kernel signature, kept by content hash.

    Args:
        source: CUDA C++.
        options: compiler options; -D and -U are used, --std and NVRTC's others have no meaning here.
        cache: a private folder for compiled kernels.
        exports: instances of templates that are compiled together with the source's kernels.
    """

    def __init__(
        self, source: str, options: Sequence[str] = (), cache: Path | None = None, exports: Sequence[str] = ()
    ) -> None:
        self._source = source
        self._build = Build(source, definitions(checked_options("module", options)), exports, cache)

    def kernel(self, name: str, arguments: Sequence[Argument]) -> EmulatedKernel:
        """The kernel `name` (or an instance of a template, "axpy<float>"), compiled.

        Raises:
            BadRequestError: the source does not compile (detail["log"] has the compiler's messages by the user's
                lines), has no such kernel, or the kernel has other parameters than `arguments`.
            UnsupportedError: there is no C++ compiler on this machine.
        """
        path, entry = self._build.library(name)
        library = _loaded(path)
        _check_parameters(name, tuple(arguments), library, entry)
        return EmulatedKernel(name, tuple(arguments), library, entry, waits(self._source))


def _check_parameters(name: str, arguments: tuple[Argument, ...], library: _Library, entry: int) -> None:
    kinds = (ctypes.c_int * _MAX_PARAMETERS)()
    count = library.function(f"opbox_parameters_{entry}")(kinds)
    if count != len(arguments):
        listed = ", ".join(map(str, arguments)) or "none"
        raise BadRequestError(
            f"kernel {name!r}: expected a signature of its {count} parameters, got {len(arguments)} ({listed})"
        )
    for position, argument in enumerate(arguments):
        size, letter = kinds[position] // 4, kinds[position] % 4
        kind = "pointer" if letter == 1 else f"{'floating' if letter == 2 else 'integer'} number of {size} bytes"
        floating = argument.dtype == np.float32 or argument.dtype == np.float64
        expected = f"{'floating' if floating else 'integer'} number of {argument.dtype.itemsize} bytes"
        if argument.c_type == "__half" and not argument.is_pointer and size == 2:
            continue
        if kind != ("pointer" if argument.is_pointer else expected):
            raise BadRequestError(
                f"kernel {name!r}: argument {position}: the signature says '{argument}', the kernel takes a {kind}"
            )


class _Library:
    """A compiled kernel in this process; unloaded with the last kernel that uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self.lock = Lock()
        # Not at exit: the process unloads it itself, and what would be called may be gone by then.
        finalize(self, _ctypes.dlclose, self._library._handle).atexit = False

    def function(self, name: str) -> Any:
        """The function of this name."""
        return getattr(self._library, name)


_libraries: WeakValueDictionary[Path, _Library] = WeakValueDictionary()
_loading = Lock()


def _loaded(path: Path) -> _Library:
    # A library keeps a launch's state in its own variables, so whoever has it loaded must share its lock.
    with _loading:
        library = _libraries.get(path)
        if library is None:
            library = _libraries[path] = _Library(path)
        return library


class EmulatedKernel:
    """A compiled kernel. One launch at a time."""

    def __init__(self, name: str, arguments: tuple[Argument, ...], library: _Library, entry: int, waits: bool) -> None:
        self.name = name
        self.arguments = arguments
        self._library = library
        self._launch = library.function(f"opbox_launch_{entry}")
        self._waits = waits

    def launch(self, args: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> None:
        """Run the kernel over `grid` blocks of `block` threads.

        Args:
            args: C-contiguous numpy arrays for pointers, numbers for scalars, as the signature says.
            grid, block: three sizes each.
            shared_bytes: of dynamic shared memory.

        Raises:
            BadRequestError: the number of arguments, the grid, the block or the shared memory does not fit.
            DTypeError: an array's element type is not the signature's.
            UserCodeError: an access outside an array, a null pointer, or threads that wait for each other in vain.
        """
        grid_size, block_size = checked_sizes(self.name, grid, block)
        values = checked_arguments(self.name, self.arguments, args, np.ndarray)
        holders: list[Any] = []
        for argument, value in zip(self.arguments, values, strict=True):
            if argument.is_pointer:
                holders.append(ctypes.c_void_p())
            else:
                holders.append((ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes()))
        addresses = (ctypes.c_void_p * len(holders))(*(ctypes.addressof(holder) for holder in holders))
        arrays, places, offsets = layout(self.arguments, values)
        report = FaultReport()
        triple = ctypes.c_uint32 * 3
        with self._library.lock:
            self._launch(
                addresses,
                ctypes.c_int32(len(holders)),
                (ctypes.c_int32 * len(holders))(*places),
                (ctypes.c_int64 * len(holders))(*offsets),
                (LaunchArray * len(arrays))(*arrays),
                ctypes.c_int32(len(arrays)),
                triple(*grid_size),
                triple(*block_size),
                ctypes.c_size_t(checked_shared(self.name, shared_bytes)),
                ctypes.c_int32(self._waits),
                ctypes.byref(report),
            )
        if report.kind:
            line = report.line or line_of(self._library.path, report.code)
            raise UserCodeError(
                described(self.name, self.arguments, report, line, block_size),
                detail={"line": line, "kernel": self.name},
            )
