"""Loops whose threads take pieces as they get on: every index once, and what a slow thread has not begun by others."""

from __future__ import annotations

from ctypes import c_int, c_long, c_void_p
from typing import Any

import numpy as np
import pytest

from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.cpu.runtime.kernel_text import kernel_text
from tests.machine import has_compiler

TEXT = (
    kernel_text("loops.h")
    + r"""
/* Counts at `visits` how often a loop comes to an index, `rounds` times. */
void visit(int *visits, long all, long most, long line, long rounds, int threads)
{
    Share pieces[threads];
    GIVE(pieces, all);
    _Pragma("omp parallel num_threads(threads)")
    for (long round = 0; round < rounds; round++) {
        EACH_PIECE(pieces, begin, end, most, line)
            for (long i = begin; i < end; i++) {
                __atomic_fetch_add(&visits[i], 1, __ATOMIC_RELAXED);
                if (begin / line != i / line || end - begin > most) visits[i] = -1000;
            }
        _Pragma("omp barrier")
        GIVE(pieces, all);
        _Pragma("omp barrier")
    }
}

/* Thread 0 stays with its first index until all others are done, or for some seconds: returns those left. The others
   begin when it has begun. */
long wait(long all, int threads)
{
    enum { BEGUN, DONE };
    long counts[2] = {0}, rest = -1;
#define COUNTED(which) __atomic_load_n(&counts[which], __ATOMIC_RELAXED)
    Share pieces[threads];
    GIVE(pieces, all);
    _Pragma("omp parallel num_threads(threads)")
    SHARED(pieces, i, 1) {
        if (omp_get_thread_num() == 0) {
            __atomic_store_n(&counts[BEGUN], 1, __ATOMIC_RELAXED);
            for (long k = 0; k < 1L << 31 && (rest = all - 1 - COUNTED(DONE)) > 0; k++) {}
        } else while (!COUNTED(BEGUN)) {}
        __atomic_fetch_add(&counts[DONE], 1, __ATOMIC_RELAXED);
    }
    return rest;
}

void fill(long *to, long all, int threads) { IN_THREADS(i, all, 3) to[i] = 2 * i; }
"""
)


def function(name: str, *types: Any, result: Any = None) -> Any:
    if not has_compiler():
        pytest.skip("no compiler")
    compiled = c_compiler.compiled_function(TEXT, name, threads=True)
    assert compiled is not None
    compiled.argtypes, compiled.restype = list(types), result
    return compiled


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("size", "most", "line"), [(0, 1, 1), (1, 4, 1 << 31), (7, 2, 3), (1000, 1, 1 << 31), (4096, 5, 24), (999, 9, 1000)]
)
def test_every_index_once(size: int, most: int, line: int, threads: int) -> None:
    visit = function("visit", c_void_p, c_long, c_long, c_long, c_long, c_int)
    visits = np.zeros(size + 1, np.int32)
    visit(visits.ctypes.data, size, most, line, 25, threads)
    assert visits.tolist() == [25] * size + [0]


def test_others_take_what_a_slow_thread_has_not_begun() -> None:
    wait = function("wait", c_long, c_int, result=c_long)
    assert [wait(size, 3) for size in (3, 10, 1000)] == [0, 0, 0]


def test_a_region_of_its_own() -> None:
    fill = function("fill", c_void_p, c_long, c_int)
    to = np.zeros(100, np.int64)
    fill(to.ctypes.data, 100, 4)
    assert np.array_equal(to, 2 * np.arange(100))
