"""oneDNN's C interface (version 3): the functions, structures and numbers that opbox uses, by ctypes.

The library is looked for once, when the first call asks for it: the file that OPBOX_ONEDNN names, or else the one that
the package `onednn-cpu-gomp` has put into the Python environment. The numbers are those of `dnnl_types.h`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from enum import IntEnum
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from opbox_protocol.errors import MXNetError

from ..runtime import c_compiler
from ..runtime.gomp_threads import bounded_spinning

__all__ = [
    "ANY",
    "DATA_TYPES",
    "Algorithm",
    "ArgumentNumber",
    "Dims",
    "ExecutionArgument",
    "Flag",
    "Library",
    "Propagation",
    "Query",
    "dims",
    "failure",
    "file",
    "library",
    "use",
]

PACKAGE, VERSION = "onednn-cpu-gomp", "2023.2.0"
"""The distribution that brings the library, as `ops/pyproject.toml` asks for it, for Linux on x86-64."""
FILE = "libdnnl.so.3"
MAX_DIMENSIONS = 12
ANY = 1
"""The format tag by which oneDNN chooses how an array lies in memory."""

Dims = c_int64 * MAX_DIMENSIONS

DATA_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}


class Propagation(IntEnum):
    TRAINING = 64
    INFERENCE = 96
    BACKWARD = 128


class Algorithm(IntEnum):
    CONVOLUTION_DIRECT = 0x1
    POOLING_MAX = 0x1FF
    POOLING_AVERAGE_WITH_PADDING = 0x2FF
    POOLING_AVERAGE = 0x3FF


class Flag(IntEnum):
    """Flags of a batch normalisation: the arrays that it reads beside its data."""

    GLOBAL_STATISTICS = 0x1
    SCALE = 0x2
    SHIFT = 0x4


class Query(IntEnum):
    """Numbers of the questions to a primitive's description."""

    IMPLEMENTATION = 8
    SOURCE = 129
    DIFF_SOURCE = 130
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DESTINATION = 133
    DIFF_DESTINATION = 134
    WORKSPACE = 135
    SCRATCHPAD = 136


class ArgumentNumber(IntEnum):
    """The arguments of a primitive's execution."""

    SOURCE = 1
    DESTINATION = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    DIFF_SOURCE = 129
    DIFF_DESTINATION = 145
    DIFF_WEIGHTS = 161
    DIFF_BIAS = 169
    DIFF_SCALE = 255
    DIFF_SHIFT = 256


class ExecutionArgument(ctypes.Structure):
    """`dnnl_exec_arg_t`."""

    _fields_ = [("argument", c_int), ("memory", c_void_p)]


class _Version(ctypes.Structure):
    """The beginning of `dnnl_version_t`."""

    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int)]


_HANDLE, _POINTER = c_void_p, POINTER(c_void_p)
# Arguments of the functions that describe a primitive, after the description and the engine, before the attributes.
_DESCRIPTIONS: dict[str, tuple[Any, ...]] = {
    "convolution_forward": (c_int, c_int, *(c_void_p,) * 4, *(Dims,) * 4),
    "convolution_backward_data": (c_int, *(c_void_p,) * 3, *(Dims,) * 4, c_void_p),
    "convolution_backward_weights": (c_int, *(c_void_p,) * 4, *(Dims,) * 4, c_void_p),
    "matmul": (c_void_p,) * 4,
    "pooling_forward": (c_int, c_int, c_void_p, c_void_p, *(Dims,) * 5),
    "pooling_backward": (c_int, c_void_p, c_void_p, *(Dims,) * 5, c_void_p),
    "batch_normalization_forward": (c_int, c_void_p, c_void_p, c_float, c_uint),
    "batch_normalization_backward": (c_int, *(c_void_p,) * 3, c_float, c_uint, c_void_p),
}
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "engine_create": (_POINTER, c_int, c_size_t),
    "stream_create": (_POINTER, _HANDLE, c_uint),
    "memory_desc_create_with_tag": (_POINTER, c_int, Dims, c_int, c_int),
    "memory_desc_create_with_strides": (_POINTER, c_int, Dims, c_int, Dims),
    "memory_desc_destroy": (_HANDLE,),
    "memory_create": (_POINTER, _HANDLE, _HANDLE, c_void_p),
    "memory_destroy": (_HANDLE,),
    "memory_set_data_handle": (_HANDLE, c_void_p),
    "primitive_attr_create": (_POINTER,),
    "primitive_attr_destroy": (_HANDLE,),
    "primitive_attr_set_scratchpad_mode": (_HANDLE, c_int),
    "primitive_attr_set_post_ops": (_HANDLE, _HANDLE),
    "post_ops_create": (_POINTER,),
    "post_ops_destroy": (_HANDLE,),
    "post_ops_append_sum": (_HANDLE, c_float, c_int, c_int),
    "reorder_primitive_desc_create": (_POINTER, *(_HANDLE,) * 5),
    "primitive_desc_query": (_HANDLE, c_int, c_int, c_void_p),
    "primitive_desc_destroy": (_HANDLE,),
    "primitive_create": (_POINTER, _HANDLE),
    "primitive_destroy": (_HANDLE,),
    "primitive_execute": (_HANDLE, _HANDLE, c_int, POINTER(ExecutionArgument)),
    "sgemm": (c_char, c_char, *(c_int64,) * 3, c_float, *(c_void_p, c_int64) * 2, c_float, c_void_p, c_int64),
}
_MULTIPLIES = {"bfloat16": 0xE7, "float16": 0x1FEF}
"""Processors' instructions that multiply a type faster than float32, `dnnl_cpu_isa_avx512_core_bf16` and `…_amx_fp16`.
AVX-512's float16 alone is not among them: the kernels for it multiply float32."""
_INSTRUCTIONS = {
    0x1FEF: "AVX-512 and a matrix unit with float16",
    0xFEF: "AVX-512 and a matrix unit",
    0xE7: "AVX-512 with bfloat16",
    0x27: "AVX-512",
    0x7: "AVX2",
    0x3: "AVX",
}
"""Names of processors' instructions by the bits of `dnnl_cpu_isa_t`, those that include others first."""
_UNIMPLEMENTED = (2, 3)
"""Statuses of what oneDNN has no implementation for, or does not take at all."""


class Library:
    """The loaded library, with its engine for the CPU and a stream on it.

    Attributes:
        version: as (major, minor, patch).
        instructions: the processor's, that its kernels use: "AVX2", "AVX-512 with bfloat16", ….
        multiplied_types: the types of 16 bits that the processor multiplies faster than float32.
        engine, stream: handles.
        execute: `dnnl_primitive_execute`, which returns a status.
        point: `dnnl_memory_set_data_handle`: makes a memory object that of another array.
    """

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        for name, types in _FUNCTIONS.items():
            self._typed(name, types)
        for name, types in _DESCRIPTIONS.items():
            self._typed(f"{name}_primitive_desc_create", (_POINTER, _HANDLE, *types, _HANDLE))
        self._functions.dnnl_version.restype = POINTER(_Version)
        version = self._functions.dnnl_version().contents
        self.version = (version.major, version.minor, version.patch)
        self._functions.dnnl_memory_desc_get_size.argtypes = [_HANDLE]
        self._functions.dnnl_memory_desc_get_size.restype = c_size_t
        self._functions.dnnl_memory_desc_equal.argtypes = [_HANDLE, _HANDLE]
        self._functions.dnnl_primitive_desc_query_md.argtypes = [_HANDLE, c_int, c_int]
        self._functions.dnnl_primitive_desc_query_md.restype = _HANDLE
        isa = self._functions.dnnl_get_effective_cpu_isa()
        self.instructions = next((name for bits, name in _INSTRUCTIONS.items() if isa & bits == bits), "SSE 4.1")
        self.multiplied_types = frozenset(name for name, bits in _MULTIPLIES.items() if isa & bits == bits)
        self.engine = self.create("engine_create", 1, 0)
        self.stream = self.create("stream_create", self.engine, 1)
        self.execute = self._functions.dnnl_primitive_execute
        self.point = self._functions.dnnl_memory_set_data_handle

    def _typed(self, name: str, types: tuple[Any, ...]) -> None:
        function = getattr(self._functions, f"dnnl_{name}")
        function.argtypes, function.restype = types, c_int

    def create(self, name: str, *arguments: Any) -> int:
        """The handle that the function `name` makes.

        Raises:
            MXNetError: it failed.
        """
        handle = c_void_p()
        self._check(name, getattr(self._functions, f"dnnl_{name}")(byref(handle), *arguments))
        return _handle(handle)

    def describe(self, primitive: str, *arguments: Any) -> int | None:
        """The handle of a primitive's description; None where oneDNN has no implementation.

        Raises:
            MXNetError: it failed for another reason.
        """
        handle = c_void_p()
        function = getattr(self._functions, f"dnnl_{primitive}_primitive_desc_create")
        status = (
            function(byref(handle), *arguments)
            if primitive == "reorder"
            else function(byref(handle), self.engine, *arguments)
        )
        if status in _UNIMPLEMENTED:
            return None
        self._check(primitive, status)
        return _handle(handle)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the function `name`.

        Raises:
            MXNetError: it failed.
        """
        self._check(name, getattr(self._functions, f"dnnl_{name}")(*arguments))

    def product(self, a: Any, b: Any, out: Any, *, add: bool, transposed: bool = True) -> Callable[[], None]:
        """A call that computes out = a.T @ b, or a @ b unless `transposed`, or adds it: of float32 in C order."""
        summed, columns = b.shape
        rows, width = out.shape[0], a.shape[1]
        sides = (a.ctypes.data, width, b.ctypes.data, columns, 1.0 if add else 0.0, out.ctypes.data, columns)
        run = partial(
            self._functions.dnnl_sgemm, b"T" if transposed else b"N", b"N", rows, columns, summed, 1.0, *sides
        )

        def call(arrays: tuple[Any, ...] = (a, b, out)) -> None:
            self._check("sgemm", run())

        return call

    @property
    def thread_count(self) -> int:
        """The threads that primitives made now run in."""
        return int(self._functions.omp_get_max_threads())

    @contextmanager
    def single_thread(self) -> Iterator[None]:
        """Primitives that this thread makes inside run in one thread, for good."""
        threads = self.thread_count
        self._functions.omp_set_num_threads(1)
        try:
            yield
        finally:
            self._functions.omp_set_num_threads(threads)

    def memory_of(self, description: int, query: Query) -> int | None:
        """The description of one of a primitive's arrays, which lives as long as the primitive's does."""
        handle: int | None = self._functions.dnnl_primitive_desc_query_md(description, query, 0)
        return handle

    def bytes_of(self, memory: int | None) -> int:
        """Return the bytes of an array of this description."""
        return 0 if memory is None else int(self._functions.dnnl_memory_desc_get_size(memory))

    def same(self, one: int, other: int) -> bool:
        """Return whether two descriptions of arrays are equal."""
        return bool(self._functions.dnnl_memory_desc_equal(one, other))

    def implementation(self, description: int) -> str:
        """The name of the implementation that oneDNN chose."""
        name = c_char_p()
        self.call("primitive_desc_query", description, Query.IMPLEMENTATION, 0, byref(name))
        return (name.value or b"").decode()

    def _check(self, name: str, status: int) -> None:
        if status:
            failed(name, status)


def failed(name: str, status: int) -> NoReturn:
    """Raise MXNetError for a status other than success."""
    what = {1: "out of memory", 5: "runtime error"}.get(status, f"status {status}")
    raise MXNetError(f"oneDNN: {name}: {what}")


def _handle(pointer: c_void_p) -> int:
    assert pointer.value is not None
    return pointer.value


def dims(numbers: tuple[int, ...]) -> Any:
    """`dnnl_dims_t` of these numbers."""
    return Dims(*numbers)


@cache
def library() -> Library | None:
    """The library; None where it is not installed, cannot be loaded, or is of another version than 3."""
    return _attempt().library


def failure() -> str:
    """Return why a file that is there cannot be used; empty with a library, or without a file."""
    return _attempt().failure


class _Attempt(NamedTuple):
    """The library, or why the last file that was tried is not it."""

    library: Library | None = None
    failure: str = ""


@cache
def _attempt() -> _Attempt:
    c_compiler.shared_threads()  # libgomp, which oneDNN is linked with, and which perhaps only opbox's wheel has
    failure = ""
    for path in _candidates():
        try:
            path.stat()
            with bounded_spinning(c_compiler.spins):
                loaded = Library(path)
        except FileNotFoundError:
            continue
        except (OSError, AttributeError) as error:
            failure = str(error)
            continue
        if loaded.version[0] == 3:
            return _Attempt(loaded)
        failure = f"{path}: expected version 3, got {'.'.join(map(str, loaded.version))}"
    return _Attempt(failure=failure)


_named: Path | None = None


def use(path: Path) -> None:
    """Load this file, in a process that would not find it by itself."""
    global _named
    _named = path


def file() -> Path | None:
    """The library's file; None where it is not installed, or may not be read."""
    return next((path for path in _candidates() if os.access(path, os.R_OK)), None)


def _candidates() -> list[Path]:
    named = _named or os.environ.get("OPBOX_ONEDNN")
    if named:
        return [Path(named)]
    homes = [Path(sys.prefix), Path(np.__file__).parents[4]]
    paths = [home / "lib" / FILE for home in homes]
    with suppress(PackageNotFoundError):
        package = distribution(PACKAGE)
        paths += [Path(str(package.locate_file(file))) for file in package.files or () if file.name == FILE]
    return list(dict.fromkeys(paths))
