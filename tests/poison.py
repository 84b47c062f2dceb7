"""Memory full of a pattern wherever nothing has been written to it: what reads such memory shows the pattern.

A process that starts with `ENVIRONMENT` gets its memory from the C library full of `FRESH`, and the library fills what
is freed with `FREED`: NumPy's arrays of 1 KiB and more, and all that compiled code allocates. `poisoned` does the same
for every array of NumPy, however small, in the block of a test.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["ENVIRONMENT", "FREED", "FRESH", "needs_compiler", "poisoned", "shows_poison"]

FREED = 0x5A
FRESH = FREED ^ 0xFF
"""What glibc's malloc fills blocks with for that setting."""
ENVIRONMENT = {"MALLOC_PERTURB_": str(FREED)}
RUN = 16
"""Number of equal bytes that no result of a test has by chance."""

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# NumPy's PyDataMem_Handler, version 1: https://numpy.org/doc/stable/reference/c-api/data_memory.html
_HANDLER = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <malloc.h>

const char capsule_name[] = "mem_handler";
static unsigned char pattern;
void set_pattern(int value) { pattern = (unsigned char)value; }

static void *fresh(void *ctx, size_t size) {
  void *block = malloc(size ? size : 1);
  if (block) memset(block, pattern, malloc_usable_size(block));
  return block;
}
static void *cleared(void *ctx, size_t count, size_t size) { return calloc(count ? count : 1, size ? size : 1); }
static void *resized(void *ctx, void *old, size_t size) {
  size_t before = old ? malloc_usable_size(old) : 0;
  unsigned char *block = realloc(old, size ? size : 1);
  if (block && malloc_usable_size(block) > before)
    memset(block + before, pattern, malloc_usable_size(block) - before);
  return block;
}
static void freed(void *ctx, void *block, size_t size) {
  if (block) memset(block, pattern, malloc_usable_size(block));
  free(block);
}

struct {
  char name[127];
  uint8_t version;
  void *ctx;
  void *(*malloc)(void *, size_t);
  void *(*calloc)(void *, size_t, size_t);
  void *(*realloc)(void *, void *, size_t);
  void (*free)(void *, void *, size_t);
} handler = {"poison", 1, 0, fresh, cleared, resized, freed};
"""
_SET_HANDLER = 304
"""The place of PyDataMem_SetHandler in NumPy's table of functions (numpy/__multiarray_api.h)."""


def shows_poison(data: Any) -> bool:
    """Whether the bytes of an array, or bytes, have a run of either pattern."""
    text = np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else bytes(data)
    return any(bytes([pattern]) * RUN in text for pattern in (FRESH, FREED))


@contextlib.contextmanager
def poisoned(pattern: int) -> Iterator[None]:
    """In the block, this thread's NumPy gets memory full of `pattern`, and fills what it frees with it."""
    library, capsule, set_handler = _handler()
    library.set_pattern(pattern)
    before = set_handler(capsule)
    try:
        yield
    finally:
        set_handler(before)


@functools.cache
def _handler() -> tuple[ctypes.CDLL, Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "poison.c"), Path(folder, "poison.so")
        source.write_text(_HANDLER)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", path, source], check=True)
        library = ctypes.CDLL(str(path))
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
    handler, name = (ctypes.addressof(ctypes.c_char.in_dll(library, symbol)) for symbol in ("handler", "capsule_name"))
    capsule = new(handler, name, None)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(get(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
    return library, capsule, set_handler
