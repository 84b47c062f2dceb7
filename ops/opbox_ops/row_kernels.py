"""Softmax and its gradients by rows in C: a row stays in the cache, and its values are NumPy's to the last bit.

Threads share the rows. Arithmetic is C without contraction; `exp`, `log` and sums of rows are NumPy's own loops
(`expression.numpy_loops`), which must first agree with NumPy. Kernels are compiled in the background once their calls
have cost more than the compiler will; those that are on disk already are loaded at the first call. Until then, and
without a compiler, NumPy computes.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_double, c_int, c_long, c_void_p
from functools import cache, partial
from typing import Any

import numpy as np

from . import c_compiler
from .bound_calls import Call, place_of
from .compute import Array
from .expression.numpy_loops import LOOP, Loop, loop_of, summing_loop
from .shares_text import LOOPS

__all__ = ["RowKernels", "kernels_for", "row_kernels", "switching"]

HOT = 50_000_000
"""Nanoseconds of NumPy's, by estimate, after which kernels are compiled: a third of what the compiler takes."""
_CALL = 40_000
"""Nanoseconds that NumPy takes for a call of few elements; some 5 for each further one."""
_ELEMENT = 5
_TYPES = {np.dtype(np.float32): ("float", "int"), np.dtype(np.float64): ("double", "long")}
"""A type's name in C, and that of the whole numbers of its size."""

_TEXT = (
    LOOPS
    + LOOP
    + """
enum { EXP, LOG, ADD };
/* A thread takes a block of rows at a time; of up to ALONE numbers, and of longer rows, one thread takes all. */
enum { LANES = 16, BLOCK = 4096, ALONE = 1 << 15 };

static void map(const Loop *loop, W *from, W *to, long n) {
  char *at[] = {(char *)from, (char *)to};
  const long by[] = {sizeof(W), sizeof(W)};
  loop->function(at, &n, by, loop->data);
}

static W sum(const Loop *loops, const W *x, long n) {
  W total = -(W)0;
  char *at[] = {(char *)&total, (char *)x, (char *)&total};
  const long by[] = {0, sizeof(W), 0};
  loops[ADD].function(at, &n, by, loops[ADD].data);
  return total;
}

typedef W Lanes __attribute__((vector_size(LANES * sizeof(W)), aligned(sizeof(W))));
typedef I Masks __attribute__((vector_size(LANES * sizeof(W))));

/* A row with NaN has a sum that is NaN, whatever its largest is said to be. */
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

static W largest(const W *x, W factor, long n) {
  W top = x[0] * factor;
  long j = 0;
  if (n >= LANES) {
    Lanes lane = *(const Lanes *)x * factor;
    for (j = LANES; j + LANES <= n; j += LANES) {
      const Lanes v = *(const Lanes *)(x + j) * factor;
      const Masks larger = v > lane;
      lane = (Lanes)(((Masks)v & larger) | ((Masks)lane & ~larger));
    }
    for (int k = 0; k < LANES; ++k) top = LARGER(lane[k], top);
  }
  for (; j < n; ++j) { const W v = x[j] * factor; top = LARGER(v, top); }
  return top;
}

static long block_of(long rows, long n) {
  const long most = BLOCK / n > 1 ? BLOCK / n : 1;
  return most < rows ? most : rows;
}

static int threads_of(long rows, long n) { return rows * n > ALONE && n <= BLOCK ? omp_get_max_threads() : 1; }

/* out = softmax(factor x), or its logarithm; out may be x. sums: a block's rows; powers: a block, for a logarithm. */
void opbox_softmax(const W *x, W *out, W *sums, W *powers, long rows, long n, double scale, int log,
                   const Loop *loops) {
  const long block = block_of(rows, n), blocks = (rows + block - 1) / block;
  const W factor = scale;
  const int threads = threads_of(rows, n);
  IN_THREADS(number, blocks, 1) {
    const long from = number * block, here = rows - from < block ? rows - from : block;
    W own_sums[BLOCK], own_powers[BLOCK], *total = threads > 1 ? own_sums : sums;
    W *y = out + from * n, *z = !log ? y : threads > 1 ? own_powers : powers;
    for (long i = 0; i < here; ++i) {
      const W *a = x + (from + i) * n;
      W *b = y + i * n;
      const W top = largest(a, factor, n);
      _Pragma("GCC ivdep")
      for (long j = 0; j < n; ++j) b[j] = a[j] * factor - top;
    }
    map(loops + EXP, y, z, here * n);
    for (long i = 0; i < here; ++i) total[i] = sum(loops, z + i * n, n);
    if (log) map(loops + LOG, total, total, here);
    for (long i = 0; i < here; ++i) {
      W *b = y + i * n;
      const W s = total[i];
      if (log) for (long j = 0; j < n; ++j) b[j] = b[j] - s;
      else for (long j = 0; j < n; ++j) b[j] = b[j] / s;
    }
  }
}

/* out = y (g - sum(g y)) factor, or of the logarithm (g - exp(y) sum g) factor; out may be g. room: a block. */
void opbox_softmax_gradient(const W *g, const W *y, W *out, W *room, long rows, long n, double scale, int log,
                            const Loop *loops) {
  const long block = block_of(rows, n), blocks = (rows + block - 1) / block;
  const W factor = scale;
  const int threads = threads_of(rows, n);
  IN_THREADS(number, blocks, 1) {
    const long from = number * block, here = rows - from < block ? rows - from : block;
    W own[BLOCK], *place = threads > 1 ? own : room;
    if (log) map(loops + EXP, (W *)y + from * n, place, here * n);
    for (long i = 0; i < here; ++i) {
      const W *a = g + (from + i) * n, *b = y + (from + i) * n;
      W *to = out + (from + i) * n, *z = log ? place + i * n : place;
      if (!log) for (long j = 0; j < n; ++j) z[j] = a[j] * b[j];
      const W s = sum(loops, log ? a : z, n);
      _Pragma("GCC ivdep")
      for (long j = 0; j < n; ++j) {
        const W v = log ? a[j] - z[j] * s : (a[j] - s) * b[j];
        to[j] = v * factor;
      }
    }
  }
}

/* gdata of SoftmaxOutput for class numbers; gout may be NULL. valid: divide by the number of labels not ignored. */
void opbox_softmax_output(const W *label, const W *y, const W *gout, W *gdata, long rows, long n, long labels,
                          double scale, double spread, double one, int ignores, int valid, long ignored) {
  if (valid) {
    long count = 0;
    for (long i = 0; i < labels; ++i) count += (long long)label[i] != ignored;
    scale = scale / (count > 1 ? (double)count : 1.0);
  }
  const W factor = scale, less = spread, hit = one;
  for (long i = 0; i < rows; ++i) {
    const long long number = (long long)label[i];
    const W *a = y + i * n;
    W *to = gdata + i * n;
    const int skip = ignores && number == ignored;
    for (long j = 0; j < n; ++j) to[j] = (skip ? (W)0 : a[j] - less) * factor;
    if (!skip && number >= 0 && number < n) to[number] = (a[number] - less - hit) * factor;
    if (gout) for (long j = 0; j < n; ++j) to[j] = to[j] * gout[i * n + j];
  }
}
"""
)


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
        if mode == "now":
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
        room = place_of(powers)
        places = place_of(data), place_of(out), place_of(sums), room
        return self._bound("opbox_softmax", *places, rows, size, factor, powers is not None, self._loops)

    def softmax_gradient(
        self, g: Array, y: Array, out: Array, room: Array, rows: int, size: int, factor: float, log: bool
    ) -> Call:
        """A call that writes the gradient of softmax, or of its logarithm, from gout and out; `out` may be g."""
        places = place_of(g), place_of(y), place_of(out), place_of(room)
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
        if c_compiler.is_stored(self._text(), threads=True):
            self._make()

    def _make(self) -> None:
        if self._functions is not None:
            return
        text = self._text()
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

    def _text(self) -> str:
        number, whole = _TYPES[self._dtype]
        return f"typedef {number} W;\ntypedef {whole} I;\n{_TEXT}"


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
