"""NumPy's own loops, for compiled formulas: `exp` in a C kernel is then NumPy's to the last bit.

A ufunc has a table of C functions `loop(arguments, sizes, steps, data)`, one for each combination of types, in a
structure that is part of NumPy's C interface (`PyUFuncObject`). A loop is used only after it has given what the ufunc
gives, on numbers of every kind. Where `vector_loops` has a faster one, which gives the same, it is taken.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_ssize_t, c_void_p
from functools import cache
from typing import Any

import numpy as np

from ..cpu.runtime import c_compiler
from .functions import FUNCTIONS, resolve
from .vector_loops import NAMES, TEXT, is_here

__all__ = ["Loop", "loop_of", "summing_loop"]


class Loop(ctypes.Structure):
    """A loop and the data that it is called with."""

    _fields_ = [("function", c_void_p), ("data", c_void_p)]


class _Ufunc(ctypes.Structure):
    """The beginning of `PyUFuncObject`."""

    _fields_ = [
        ("references", c_ssize_t),
        ("type", c_void_p),
        ("inputs", c_int),
        ("outputs", c_int),
        ("arguments", c_int),
        ("identity", c_int),
        ("functions", POINTER(c_void_p)),
        ("data", POINTER(c_void_p)),
        ("count", c_int),
        ("reserved", c_int),
        ("name", c_char_p),
    ]


_CALL = ctypes.CFUNCTYPE(None, POINTER(c_void_p), POINTER(c_ssize_t), POINTER(c_ssize_t), c_void_p)
_SAMPLES = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-3, 40.0, -40.0, 87.3, 1e30, -1e30, 1e-42, np.inf, -np.inf, np.nan)


@cache
def loop_of(name: str, work: np.dtype[Any]) -> Loop | None:
    """A loop that gives NumPy's numbers, for a function of `functions` over `work`; None if there is none to trust."""
    if FUNCTIONS[name].source != "xp":
        return None
    ufunc: Any = resolve(name, np, None)
    if not isinstance(ufunc, np.ufunc):
        return None
    types = work.char * ufunc.nin + "->" + work.char
    if types not in ufunc.types:
        return None
    table = _Ufunc.from_address(id(ufunc))
    shape = (table.inputs, table.outputs, table.arguments, table.count, table.name)
    if shape != (ufunc.nin, 1, ufunc.nargs, ufunc.ntypes, ufunc.__name__.encode()):
        return None
    k = ufunc.types.index(types)
    loop = Loop(table.functions[k], table.data[k])
    if not loop.function or not _agrees(loop, ufunc, work):
        return None
    return _vector_loop(name, ufunc, work) or loop


def _vector_loop(name: str, ufunc: np.ufunc, work: np.dtype[Any]) -> Loop | None:
    """The loop of `vector_loops`; None without one, or without a compiler, or where NumPy gives other numbers."""
    if not is_here(name) or work.name != "float32":
        return None
    function = c_compiler.compiled_function(TEXT, NAMES[name])
    if function is None:
        return None
    loop = Loop(ctypes.cast(function, c_void_p), None)
    return loop if _agrees(loop, ufunc, work) else None


def _agrees(loop: Loop, ufunc: np.ufunc, work: np.dtype[Any]) -> bool:
    """Return whether the loop gives what the ufunc gives, bit for bit."""
    with np.errstate(all="ignore"):
        samples = np.array(_SAMPLES, work)
        inputs = [np.tile(samples, samples.size)]
        if ufunc.nin == 2:
            inputs.append(np.repeat(samples, samples.size))
        else:
            inputs = [np.concatenate((*inputs, *_many(work)))]
        expected, got = ufunc(*inputs), np.empty_like(inputs[0])
    places = (c_void_p * ufunc.nargs)(*(array.ctypes.data for array in (*inputs, got)))
    size = (c_ssize_t * 1)(got.size)
    steps = (c_ssize_t * ufunc.nargs)(*[work.itemsize] * ufunc.nargs)
    _CALL(loop.function)(places, size, steps, loop.data)
    return bool(expected.tobytes() == got.tobytes())


@cache
def _many(work: np.dtype[Any]) -> tuple[Any, Any]:
    """Numbers of any bits, most of which are very large or very small, and numbers from 2^-12 to 2^7 on both sides."""
    rng = np.random.default_rng(0)
    powers = np.exp2(rng.uniform(-12, 7, 1 << 13))
    return np.frombuffer(rng.bytes(1 << 15), work), (powers * rng.choice([-1, 1], powers.size)).astype(work)


@cache
def summing_loop(work: np.dtype[Any]) -> Loop | None:
    """NumPy's addition, which sums a row of `work` in pairs where its result stays in place, starting from -0.

    None where rows of any length are summed otherwise by `numpy.sum`.
    """
    loop = loop_of("add", work)
    if loop is None:
        return None
    numbers = np.sin(np.arange(3000.0)).astype(work)
    size, steps = (c_ssize_t * 1)(), (c_ssize_t * 3)(0, work.itemsize, 0)
    total = np.empty(1, work)
    for count in (*range(1, 70), 127, 128, 129, 136, 257, 1000, 3000):
        rows = numbers[: 3000 // count * count].reshape(-1, count)
        expected = np.sum(rows, axis=1)
        for row, value in zip(rows[:2], expected[:2], strict=True):
            total[0], size[0] = -0.0, count
            places = (c_void_p * 3)(total.ctypes.data, row.ctypes.data, total.ctypes.data)
            _CALL(loop.function)(places, size, steps, loop.data)
            if total[0] != value:
                return None
    return loop
