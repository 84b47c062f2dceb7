"""Softmax and its gradients by rows in C: a row stays in the cache, and its values are NumPy's to the last bit.

Threads share the rows. Arithmetic is C without contraction; `exp`, `log` and sums of rows are NumPy's own loops
(`expression.numpy_loops`), which must first agree with NumPy. Kernels are compiled in the background once their calls
have cost more than the compiler will; those that are on disk already are loaded at the first call. Until then, and
without a compiler, NumPy computes.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_double, c_int, c_long, c_void_p
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from ...bound_calls import Call, place_of
from ...compute import Array
from ...expression.numpy_loops import Loop, loop_of, summing_loop
from ..runtime import c_compiler
from ..runtime.kernel_text import kernel_text

__all__ = ["RowKernels", "kernels_for", "row_kernels", "switching"]

HOT = 50_000_000
"""Nanoseconds of NumPy's, by estimate, after which kernels are compiled: a third of what the compiler takes."""
_CALL = 40_000
"""Nanoseconds that NumPy takes for a call of few elements; some 5 for each further one."""
_ELEMENT = 5
_TYPES = {np.dtype(np.float32): ("float", "int"), np.dtype(np.float64): ("double", "long")}
"""A type's name in C, and that of the whole numbers of its size."""


class RowKernels:
    """The compiled functions for one type.

    Args:
        dtype: float32 or float64.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._functions: dict[str, Any] | None = None
        self._heat = -1
        self._asked = False

    def ready(self, elements: int) -> bool:
        """Return whether the kernels can compute a call of so many elements; counts it where they cannot yet."""
        if self._functions is not None:
            return bool(self._functions)
        mode = c_compiler.mode()
        if mode == "off":
            return False
        if mode == "now" or c_compiler.is_built(self._text, "opbox_softmax", threads=True):
            self._make()
            return bool(self._functions)
        if self._heat < 0:
            self._heat = 0
            c_compiler.request(self._load)
        self._heat += _CALL + _ELEMENT * elements
        if self._heat > HOT and not self._asked:
            self._asked = True
            c_compiler.request(self._make)
        return False

    def softmax(
        self, data: Array, out: Array, sums: Array, powers: Array | None, rows: int, size: int, factor: float
    ) -> Call:
        """A call that writes softmax of factor * data into `out`, or with `powers` its logarithm.

        All arrays are contiguous, and alive as long as the call is used.
        """
        scratch = place_of(powers)
        places = place_of(data), place_of(out), place_of(sums), scratch
        return self._bound("opbox_softmax", *places, rows, size, factor, powers is not None, self._loops)

    def softmax_gradient(
        self, g: Array, y: Array, out: Array, scratch: Array, rows: int, size: int, factor: float, log: bool
    ) -> Call:
        """A call that writes the gradient of softmax, or of its logarithm, from gout and out; `out` may be g."""
        places = place_of(g), place_of(y), place_of(out), place_of(scratch)
        return self._bound("opbox_softmax_gradient", *places, rows, size, factor, log, self._loops)

    def softmax_output(
        self,
        label: Array,
        y: Array,
        gout: Array | None,
        gdata: Array,
        shape: tuple[int, int],
        scale: float,
        smooth: tuple[float, float],
        ignores: bool,
        valid: bool,
        ignored: int,
    ) -> Call:
        """A call that writes SoftmaxOutput's gradient for labels that are class numbers.

        Args:
            shape: rows and classes.
            smooth: what all classes lose, and what the label's class loses besides.
            ignores: whether a label that is `ignored` leaves its row without a gradient.
            valid: whether to divide by the number of labels that are not `ignored`.
        """
        head = place_of(gout)
        places = place_of(label), place_of(y), head, place_of(gdata)
        return self._bound("opbox_softmax_output", *places, *shape, label.size, scale, *smooth, ignores, valid, ignored)

    def _bound(self, name: str, *arguments: Any) -> Call:
        """A call of a function, whose arguments are C's already."""
        assert self._functions is not None
        typed = [v if t is c_void_p else t(v) for t, v in zip(_ARGUMENTS[name], arguments, strict=True)]
        return partial(self._functions[name], *typed)

    def _load(self) -> None:
        """Take the kernels from the disk, if they are there."""
        if c_compiler.is_stored(self._text, threads=True):
            self._make()

    def _make(self) -> None:
        if self._functions is not None:
            return
        text = self._text
        exp, log, add = loop_of("exp", self._dtype), loop_of("log", self._dtype), summing_loop(self._dtype)
        functions = {}
        for name, types in _ARGUMENTS.items():
            function = c_compiler.compiled_function(text, name, threads=True) if exp and log and add else None
            if function is None:
                self._functions = {}
                return
            function.restype, function.argtypes = None, types
            functions[name] = function
        assert exp is not None
        assert log is not None
        assert add is not None
        self._loops = (Loop * 3)(exp, log, add)
        self._functions = functions

    @cached_property
    def _text(self) -> str:
        number, whole = _TYPES[self._dtype]
        return kernel_text("softmax_rows.c", W=number, I=whole)


_SIZES = [c_long, c_long]
_ARGUMENTS: dict[str, list[Any]] = {
    "opbox_softmax": [*[c_void_p] * 4, *_SIZES, c_double, c_int, c_void_p],
    "opbox_softmax_gradient": [*[c_void_p] * 4, *_SIZES, c_double, c_int, c_void_p],
    "opbox_softmax_output": [*[c_void_p] * 4, *_SIZES, c_long, *[c_double] * 3, c_int, c_int, c_long],
}


def switching(by: Call, bind: Callable[[], Call | None]) -> Call:
    """NumPy's call `by`, until `bind` gives one of a kernel."""
    settled: Call | None = None

    def run() -> None:
        nonlocal settled
        if settled is None:
            settled = bind()
        (settled or by)()

    return run


@cache
def kernels_for(dtype: np.dtype[Any]) -> RowKernels:
    """The kernels for a type, one for all who ask."""
    return RowKernels(dtype)


def row_kernels(xp: Any, *arrays: Array) -> RowKernels | None:
    """The kernels for these arrays; None for a device's, those that are not contiguous, of two types, or of another.

    A call without elements has none either.
    """
    if xp is not np:
        return None
    dtype = arrays[0].dtype
    if dtype not in _TYPES:
        return None
    for array in arrays:
        flags = array.flags
        if array.dtype != dtype or not (flags.c_contiguous and flags.aligned) or not array.size:
            return None
    kernels = kernels_for(dtype)
    return kernels if kernels.ready(arrays[0].size) else None
