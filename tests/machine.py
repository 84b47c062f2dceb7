"""What this machine lets a test run, by its processor's flags and by a compiler being there.

A kernel is never asked whether it works: one that does not compile, or a oneDNN that does not load, fails the tests.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest

from opbox_ops.cpu.runtime import c_compiler, processor

__all__ = [
    "compile_errors",
    "has_avx512_words",
    "has_compiler",
    "has_half_type",
    "has_libgomp",
    "has_matrix_unit",
    "has_onednn",
    "multiplies_bfloat16",
    "needs_avx512_words",
    "needs_compiler",
    "needs_libgomp",
    "needs_matrix_unit",
    "needs_onednn",
    "needs_vectors",
]

_ARCH_PRCTL, _ASK_FOR_STATE, _TILE_DATA = 158, 0x1023, 18
"""Linux's call and request on x86-64 by which a process may use a matrix unit's tiles."""


def has_compiler() -> bool:
    """Return whether kernels are compiled here: there is a compiler for it, and OPBOX_DISABLE does not forbid it."""
    return c_compiler.may_compile()


def has_vector_kernels() -> bool:
    return has_compiler() and processor.has_vectors()


@cache
def has_libgomp() -> bool:
    """Return whether this machine has libgomp, which is looked for without loading it: how it is loaded is tested."""
    return ctypes.util.find_library("gomp") is not None


def has_onednn() -> bool:
    """Return whether the distributions bring oneDNN for this platform, and what it is linked with is there."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and has_libgomp()


def has_avx512_core() -> bool:
    """Return whether there are all the parts of AVX-512 that oneDNN's kernels want, and its variable allows them."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if limit.startswith(("SSE", "AVX")) and not limit.startswith(("AVX512", "AVX10")):
        return False
    return processor.flags() >= {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


def has_avx512_words() -> bool:
    """Return whether there is AVX-512 for words, in which a matrix unit's work is prepared."""
    return has_compiler() and processor.flags() >= {"avx512f", "avx512bw", "avx512dq"}


@cache
def has_matrix_unit() -> bool:
    """Return whether the processor multiplies tiles of bfloat16, and Linux lets this process do so."""
    if not has_avx512_words() or not processor.flags() >= {"amx_bf16", "amx_tile"}:
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR_STATE, _TILE_DATA) == 0


def multiplies_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 faster than float32."""
    return has_onednn() and has_avx512_core() and bool(processor.flags() & {"avx512_bf16", "amx_bf16"})


@cache
def has_half_type() -> bool:
    """Return whether the compiler has the type `_Float16`: GCC from 12 on, clang from 15 on."""
    compiler = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))))
    words = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+)\.\d+\.\d+", words)
    return version is not None and int(version[1]) >= (15 if "clang" in words else 12)


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C compiler")
needs_vectors = pytest.mark.skipif(
    not has_vector_kernels(), reason="no C compiler, or a processor with neither AVX-512 nor AVX2"
)
needs_avx512_words = pytest.mark.skipif(
    not has_avx512_words(), reason="no C compiler, or a processor without AVX-512 for words"
)
needs_matrix_unit = pytest.mark.skipif(not has_matrix_unit(), reason="no matrix unit, or no C compiler")
needs_libgomp = pytest.mark.skipif(not has_libgomp(), reason="no libgomp (on Debian: apt-get install libgomp1)")
needs_onednn = pytest.mark.skipif(not has_onednn(), reason="oneDNN is there for Linux on x86-64 with libgomp")


class CompileErrors(logging.Handler):
    """Collects what is logged of kernels that do not compile."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())

    def take(self) -> list[str]:
        """Return the messages since the last time."""
        messages, self._messages = self._messages, []
        return messages


compile_errors = CompileErrors()
"""Of this process, from `tests/conftest.py` on."""
logging.getLogger(c_compiler.__name__).addHandler(compile_errors)
