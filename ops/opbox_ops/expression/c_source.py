"""Formulas as C: one sweep through memory, whose values are NumPy's to the last bit.

What NumPy computes exactly (arithmetic, comparisons, roots, choices) is written in C, without contraction or
reordering. For everything else (`exp`, `tanh`, `power`) the kernel calls NumPy's own loop (`numpy_loops`) on a piece
that stays in the cache. So steps come in phases: those of the first need no loop's result, those of the next need one
of the loops between, and so on. Targets are written in the last phase, when every array has been read: a target may be
the memory of any array that it is an element of. Threads take rows of a large task, or pieces of its only row, as they
get on: each value is computed as by one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..accumulation import is_narrow
from ..cpu.runtime.kernel_text import kernel_text
from .c_operators import C_OPERATORS
from .functions import FUNCTIONS, ROUNDING
from .program import COPY, Instruction, Program

__all__ = ["THREADED", "CSource", "c_source", "work_of"]

_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "bool": "unsigned char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "int64": "long long",
}
"""The types of arrays that a kernel reads; it writes the floating ones. Those of 16 bits are converted a piece at a
time, from or to a row of float32 in the cache."""
_INLINE = {
    **C_OPERATORS,
    "abs": "__builtin_fabs{f}({a})",
    "sqrt": "__builtin_sqrt{f}({a})",
    "floor": "__builtin_floor{f}({a})",
    "ceil": "__builtin_ceil{f}({a})",
    "trunc": "__builtin_trunc{f}({a})",
    "maximum": "larger({a}, {b})",
    "minimum": "smaller({a}, {b})",
    **{name: f"{name}({{a}})" for name in ROUNDING.values()},
    "logical_and": "({a} != 0) & ({b} != 0)",
    "logical_or": "({a} != 0) | ({b} != 0)",
    "logical_xor": "({a} != 0) ^ ({b} != 0)",
}
_CONVERTS = ("logical_not", "logical_and", "logical_or", "logical_xor", COPY)
"""Functions whose loop reads arrays of any type."""
_CACHED_BYTES = 24 << 10
"""Bytes of the pieces between phases: they stay in the first cache."""
_MAX_BUFFERS = 48
_MAX_ARRAYS = 256
"""Maximum number of arrays and targets of a kernel: the compiler takes a second for so many, and ten for 3,000."""
_HEAD = """
typedef struct { char **places; const W *numbers; const long *sizes, *steps; long axes; } Task;

/* NaN is the larger and the smaller of two; of 0 and -0 it is the second, as in NumPy. In one choice of three the
   compiler would see that the first decides on the next, branch, and make no vectors. */
static inline W larger(W a, W b) { const W t = a > b ? a : b; return a == a ? t : a; }
static inline W smaller(W a, W b) { const W t = a < b ? a : b; return a == a ? t : a; }
"""
THREADED = 1 << 17
"""Work times elements of a task from which on threads share it: some 100 us of one, as with products."""
_PIECE = 1 << 14
"""Work times elements that a thread takes at a time."""
_LINE = 64
"""Elements of a row that is shared, of which a piece is a multiple."""
_LOOP_WORK = 4
_TAIL = """
typedef struct {
  void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
  int (*number)(void), (*most)(void);
} Threads;
/* A task that threads share: its rows, or lines of its only one. */
typedef struct {
  const Task *task; const Loop *loops; const Threads *threads; Share *shares; long rows, count;
} Shared;

static void rows_from(const Task *task, const Loop *loops, long first, long last) {
  char *p[ARRAYS];
  long at[16], rest = first;
  const long n = task->sizes[task->axes];
  for (int k = 0; k < ARRAYS; ++k) p[k] = task->places[k];
  for (long axis = task->axes - 1; axis >= 0; --axis) {
    at[axis] = rest % task->sizes[axis];
    rest /= task->sizes[axis];
    for (int k = 0; k < ARRAYS; ++k) p[k] += task->steps[axis * ARRAYS + k] * at[axis];
  }
  for (long i = first; i < last; ++i) {
    row(p, task->numbers, loops, n);
    for (long axis = task->axes - 1; axis >= 0; --axis) {
      const long *steps = task->steps + axis * ARRAYS;
      if (++at[axis] < task->sizes[axis]) {
        for (int k = 0; k < ARRAYS; ++k) p[k] += steps[k];
        break;
      }
      for (int k = 0; k < ARRAYS; ++k) p[k] -= steps[k] * (task->sizes[axis] - 1);
      at[axis] = 0;
    }
  }
}

static void share(void *data) {
  const Shared *all = data;
  const Task *task = all->task;
  const long n = task->sizes[task->axes], length = all->rows > 1 ? n : LINE, me = all->threads->number();
  const long most = (PIECE / WORK + length - 1) / length;
  for (long begin, end; (begin = take_piece(all->shares, me, all->count, most, 1L << 31, &end)) >= 0;) {
    if (all->rows > 1) {
      rows_from(task, all->loops, begin, end);
      continue;
    }
    const long from = begin * LINE, to = end * LINE < n ? end * LINE : n;
    char *p[ARRAYS];
    for (int i = 0; i < ARRAYS; ++i) p[i] = task->places[i] + from * along[i];
    row(p, task->numbers, all->loops, to - from);
  }
}

void opbox_kernel(const Task *tasks, long count, const Loop *loops, const Threads *threads) {
  for (long t = 0; t < count; ++t) {
    const Task *task = tasks + t;
    const long n = task->sizes[task->axes];
    long rows = 1;
    for (long axis = 0; axis < task->axes; ++axis) rows *= task->sizes[axis];
    if (!threads || rows * n * WORK < THREADED) {
      rows_from(task, loops, 0, rows);
      continue;
    }
    const long count = threads->most();
    Share shares[count];
    Shared all = {task, loops, threads, shares, rows, count};
    give_shares(shares, rows > 1 ? rows : (n + LINE - 1) / LINE, 0, 1, count);
    threads->parallel(share, &all, count, 0);
  }
}
"""


@dataclass(frozen=True)
class CSource:
    """A kernel's text, and the functions whose loops it calls, in the order in which it is given them."""

    text: str
    loops: tuple[str, ...]


def work_of(program: Program) -> int:
    """How long an element takes: a step counts one, and a loop of NumPy's four, as `tanh` and `exp` do."""
    return sum(_LOOP_WORK if _is_loop(step) else 1 for step in program.steps)


def _is_loop(step: Instruction) -> bool:
    return step.function not in _INLINE and FUNCTIONS[step.function].source == "xp"


def c_source(
    program: Program, work: np.dtype[Any], types: Sequence[np.dtype[Any]], repeated: Sequence[bool]
) -> CSource | None:
    """The kernel of a program; None where it is not for C.

    Args:
        program, work: the steps, and the type to compute in: float32 or float64.
        types: of the arrays, then of the targets.
        repeated: for each of the arrays, whether a row of it is one element, for all along the row.
    """
    if len(types) > _MAX_ARRAYS or work.name not in ("float32", "float64"):
        return None
    if any(dtype.name not in _TYPES for dtype in types):
        return None
    targets = types[program.arrays :]
    if any(dtype.kind != "f" and not is_narrow(dtype) for dtype in targets):
        return None
    if work.itemsize > 4 and any(map(is_narrow, targets)):
        return None  # rounded twice
    return _Writer(program, work, types, repeated).write()


class _Writer:
    """Values are numbered: the arrays, then what each step computes."""

    def __init__(
        self, program: Program, work: np.dtype[Any], types: Sequence[np.dtype[Any]], repeated: Sequence[bool]
    ) -> None:
        self.program = program
        self.work = work
        self.types = types
        self.repeated = repeated
        self.first_constant = program.arrays
        self.targets = program.arrays + len(program.constants) + program.registers + program.masks
        self.reads: list[tuple[int, ...]] = []
        """The operands of each step: values, or constants as -1, -2, …"""
        self.phase: list[int] = []
        self.stored: dict[int, int] = {}
        """The value of each target."""

    def write(self) -> CSource | None:
        if not self._number() or len(self.stored) < self.program.targets:
            return None
        steps, arrays = self.program.steps, self.program.arrays
        last = max(self.phase, default=0)
        buffered = self._between(last)
        halves = [k for k, dtype in enumerate(self.types) if is_narrow(dtype) and not self._is_repeated(k)]
        size = max(len(buffered) * self.work.itemsize + len(halves) * 4, 1)
        if len(buffered) + len(halves) > _MAX_BUFFERS:
            return None
        block = min(max(_CACHED_BYTES // size // 64 * 64, 128), 1024)
        loops: dict[str, int] = {}
        rounds = any(step.function in ROUNDING.values() for step in steps)
        narrow = [kernel_text("half_numbers.h")] if rounds or any(map(is_narrow, self.types)) else []
        lines = [f"typedef {_TYPES[self.work.name]} W;", *narrow, kernel_text("numpy_loop.h"), _HEAD]
        lines.append("static void row(char **p, const W *c, const Loop *loops, long n) {")
        for k, dtype in enumerate(self.types):
            const = "const " if k < arrays else ""
            lines.append(f"  {const}{_TYPES[dtype.name]} *a{k} = ({const}{_TYPES[dtype.name]} *)p[{k}];")
        lines += [f"  const W c{k} = c[{k}];" for k in range(len(self.program.constants))]
        lines += [line for k in range(arrays) if self.repeated[k] for line in self._repeated_number(k)]
        lines += [
            f"  {self._kind(value)} b{value}[{block}] __attribute__((aligned(64)));" for value in sorted(buffered)
        ]
        lines += [f"  float h{k}[{block}] __attribute__((aligned(64)));" for k in halves]
        lines.append(f"  for (long from = 0; from < n; from += {block}) {{")
        lines.append(f"    const long m = n - from < {block} ? n - from : {block};")
        lines += [f"    widen_{self.types[k].name}(h{k}, a{k} + from, m);" for k in halves if k < arrays]
        for phase in range(last + 1):
            inline = [i for i, step in enumerate(steps) if self.phase[i] == phase and not _is_loop(step)]
            lines += self._sweep(inline, buffered, phase == last)
            for i, step in enumerate(steps):
                if _is_loop(step) and self.phase[i] == phase + 1:
                    lines.append(self._call(i, loops))
        lines += [f"    narrow_{self.types[k].name}(a{k} + from, h{k}, m);" for k in halves if k >= arrays]
        sizes = [0 if self._is_repeated(k) else dtype.itemsize for k, dtype in enumerate(self.types)]
        lines += ["  }", "}", f"static const long along[] = {{{', '.join(map(str, sizes))}}};"]
        numbers = {"ARRAYS": len(self.types), "WORK": work_of(self.program)}
        numbers |= {"THREADED": THREADED, "PIECE": _PIECE, "LINE": _LINE}
        lines += [*(f"#define {name} {number}" for name, number in numbers.items()), kernel_text("shares.h"), _TAIL]
        return CSource("\n".join(lines), tuple(loops))

    def _is_repeated(self, k: int) -> bool:
        """Return whether a row of an array or target is one element."""
        return k < self.program.arrays and self.repeated[k]

    def _repeated_number(self, k: int) -> list[str]:
        """The value of an array of which a row is one element."""
        if not is_narrow(self.types[k]):
            return [f"  const {self._kind(k)} v{k} = a{k}[0];"]
        return [f"  float v{k};", f"  widen_{self.types[k].name}(&v{k}, a{k}, 1);"]

    # -- values ---------------------------------------------------------------------------------------------------

    def _number(self) -> bool:
        """Say which values each step reads, and in which phase it runs; False for what C has not."""
        arrays, constants = self.program.arrays, len(self.program.constants)
        value_of: dict[int, int] = {k: k for k in range(arrays)}
        value_of |= {arrays + k: -1 - k for k in range(constants)}
        for i, step in enumerate(self.program.steps):
            if not _is_loop(step) and step.function not in _INLINE:
                return False
            scratch = 0 if step.function == COPY else FUNCTIONS[step.function].scratch
            operands = step.operands[: len(step.operands) - scratch]
            values = tuple([value_of[slot] for slot in operands])
            if not self._fits(step, values):
                return False
            self.reads.append(values)
            self.phase.append(max((self._phase(value) for value in values), default=0) + _is_loop(step))
            value_of[step.result] = arrays + i
            if step.result >= self.targets:
                self.stored[step.result - self.targets] = arrays + i
        return True

    def _fits(self, step: Instruction, values: tuple[int, ...]) -> bool:
        """Return whether the operands are of the type computed in, or the step takes any."""
        for k, value in enumerate(values):
            if not 0 <= value < self.program.arrays or self.types[value] == self.work:
                continue
            mask = self.types[value].kind == "b" and (step.function, k) == ("select", 0)
            if step.function not in _CONVERTS and not mask:
                return False
            if step.function == COPY and step.result >= self.targets and self.types[value].kind in "iub":
                # NumPy converts to the target's type at once.
                target = self.types[self.program.arrays + step.result - self.targets]
                if target != self.work:
                    return False
        return True

    def _is_mask(self, value: int) -> bool:
        step = value - self.program.arrays
        return (
            step >= 0
            and self.program.steps[step].function != COPY
            and (FUNCTIONS[self.program.steps[step].function].mask)
        )

    def _phase(self, value: int) -> int:
        return 0 if value < self.program.arrays else self.phase[value - self.program.arrays]

    def _between(self, last: int) -> set[int]:
        """The values that one phase leaves for another, or that a loop reads or writes."""
        arrays, buffered = self.program.arrays, set()
        for i, step in enumerate(self.program.steps):
            loop = _is_loop(step)
            if loop:
                buffered.add(arrays + i)
            for value in self.reads[i]:
                if value >= arrays and (loop or self._phase(value) < self.phase[i]):
                    buffered.add(value)
        buffered |= {value for value in self.stored.values() if value >= arrays and self._phase(value) < last}
        return buffered

    # -- text -----------------------------------------------------------------------------------------------------

    def _sweep(self, steps: Sequence[int], buffered: set[int], stores: bool) -> list[str]:
        """The loop over a piece that computes steps of one phase; the last writes the targets."""
        arrays = self.program.arrays
        if not steps and not stores:
            return []
        own = {arrays + i for i in steps}
        wanted = {value for i in steps for value in self.reads[i]} | (set(self.stored.values()) if stores else set())
        lines = ['    _Pragma("GCC ivdep")', "    for (long j = 0; j < m; ++j) {"]
        for value in sorted(value for value in wanted if value >= 0 and value not in own):
            if value >= arrays:
                lines.append(f"      const {self._kind(value)} v{value} = b{value}[j];")
                continue
            if not self.repeated[value]:
                place = f"h{value}[j]" if is_narrow(self.types[value]) else f"a{value}[from + j]"
                lines.append(f"      const {self._kind(value)} v{value} = {place};")
        for i in steps:
            value, step = arrays + i, self.program.steps[i]
            names = dict(zip("abc", map(self._name, self.reads[i]), strict=False))
            text = _INLINE[step.function].format(f="f" if self.work.itemsize == 4 else "", **names)
            lines.append(f"      const {self._kind(value)} v{value} = {text};")
            if value in buffered:
                lines.append(f"      b{value}[j] = v{value};")
        if stores:
            for k, value in sorted(self.stored.items()):
                target = arrays + k
                half = is_narrow(self.types[target])
                place = f"h{target}[j]" if half else f"a{target}[from + j]"
                kind = "float" if half else _TYPES[self.types[target].name]
                lines.append(f"      {place} = ({kind}){self._name(value)};")
        return [*lines, "    }"]

    def _call(self, i: int, loops: dict[str, int]) -> str:
        """The call of NumPy's loop that computes a step."""
        step, size = self.program.steps[i], self.work.itemsize
        number = loops.setdefault(step.function, len(loops))
        places, steps = [], []
        for value in self.reads[i]:
            if value < 0:
                places.append(f"(char *)&c{-1 - value}")
                steps.append("0")
            elif value >= self.program.arrays:
                places.append(f"(char *)b{value}")
                steps.append(str(size))
            elif self.repeated[value]:
                places.append(f"(char *)a{value}")
                steps.append("0")
            else:
                places.append(f"(char *)(a{value} + from)")
                steps.append(str(size))
        places.append(f"(char *)b{self.program.arrays + i}")
        steps.append(str(size))
        return (
            f"    {{ char *at[] = {{{', '.join(places)}}}; const long by[] = {{{', '.join(steps)}}}; "
            # The address of `m` itself would let each store change it, and no loop over it would become vectors.
            f"const long size = m; loops[{number}].function(at, &size, by, loops[{number}].data); }}"
        )

    def _kind(self, value: int) -> str:
        """The C type of a value: a mask is as wide as the numbers beside it, for the vectors' sake."""
        if value >= self.program.arrays:
            return ("int" if self.work.itemsize == 4 else "long") if self._is_mask(value) else "W"
        return "float" if is_narrow(self.types[value]) else _TYPES[self.types[value].name]

    def _name(self, value: int) -> str:
        return f"c{-1 - value}" if value < 0 else f"v{value}"
