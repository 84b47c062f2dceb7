"""Formulas in one sweep through memory, by C kernels that take over from NumPy once they are compiled.

A kernel is compiled when its formulas have cost more than the compiler will (`HOT`), in the background: until it is
there, and where it cannot be, NumPy's pieces run. Both give the same to the last bit.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import byref, c_double, c_float, c_long, c_void_p
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import is_narrow
from ..bound_calls import Call
from ..compute import Array
from ..cpu.runtime import c_compiler
from .c_source import THREADED, c_source, work_of
from .numpy_loops import Loop, loop_of
from .program import Program

__all__ = ["HOT", "Sweep", "SweepTable", "tasks_of"]

HOT = 50_000_000
"""Steps times elements after which a kernel is compiled: some 50 ms of NumPy's, a third of what the compiler takes."""
HALVES_TAKE = 8
"""Steps' time that NumPy takes to convert a number of float16: 2 ns, and 70 where it is below 2^-14."""
SHORT_ROW = 16
"""Rows with fewer elements are NumPy's: the kernel would spend its time between rows."""
MAX_AXES = 16


class _Task(ctypes.Structure):
    """A kernel's task, as in `c_source`: addresses, numbers, sizes by axis, steps by axis and array, outer axes."""

    _fields_ = [
        ("places", c_void_p),
        ("numbers", c_void_p),
        ("sizes", c_void_p),
        ("steps", c_void_p),
        ("axes", c_long),
    ]
    alive: Any


class Sweep:
    """A compiled kernel, or one that may yet be.

    Args:
        program, work, types, repeated: see `c_source`.

    Attributes:
        bound: makes the call for tasks, by reference, and their number; None as long as there is no kernel.
        failed: whether there will be none.
    """

    __slots__ = ("_program", "_repeated", "_types", "_work", "asked", "bound", "failed")

    def __init__(
        self, program: Program, work: np.dtype[Any], types: Sequence[np.dtype[Any]], repeated: Sequence[bool]
    ) -> None:
        self._program, self._work, self._types, self._repeated = program, work, types, repeated
        self.bound: Callable[[Any, int], Call] | None = None
        self.asked = self.failed = False

    def ask(self) -> None:
        """Have it compiled, in the background unless OPBOX_C_KERNELS=now."""
        if self.asked:
            return
        self.asked = True
        if c_compiler.mode() == "now":
            self._make()
        else:
            c_compiler.request(self._make)

    def _make(self) -> None:
        source = c_source(self._program, self._work, self._types, self._repeated)
        names = () if source is None else source.loops
        loops = [loop for loop in (loop_of(name, self._work) for name in names) if loop is not None]
        function = None
        if source is not None and len(loops) == len(names):
            function = c_compiler.compiled_function(source.text, "opbox_kernel")
        if function is None:
            self.failed = True
            return
        function.restype = None
        table = (Loop * max(len(loops), 1))(*loops)
        threads = c_compiler.shared_threads()
        pool = None if threads is None else byref(threads)
        self.bound = lambda tasks, count: partial(function, tasks, c_long(count), table, pool)


class SweepTable:
    """The kernels of one program, by types and by which of the arrays are repeated.

    Args:
        program: the steps.
        work: the type to compute in.
    """

    def __init__(self, program: Program, work: np.dtype[Any]) -> None:
        self.program = program
        self.work = work
        self.heat = 0
        self._sweeps: dict[Any, Sweep] = {}

        self._possible = work.kind == "f" and work.itemsize in (4, 8)

    def switching(
        self,
        shape: tuple[int, ...],
        arrays: Sequence[Array],
        targets: Sequence[Array],
        numbers: Sequence[Any],
        by: Call,
    ) -> Call:
        """A call that does what `by`, NumPy's, does; by the kernel as soon as there is one."""
        if not self._possible or (self._is_one_loop(arrays, targets) and not _shares(self.program, math.prod(shape))):
            return by
        mode = c_compiler.mode()
        if mode == "off":
            return by
        if mode == "now" or self.heat >= HOT:
            sweep, task = self.task(shape, arrays, targets, numbers)
            if sweep is None:
                return by
            sweep.ask()
            if sweep.bound is not None:
                return sweep.bound(byref(task), 1)
            if sweep.failed:
                return by
        return _switching(self, (shape, arrays, targets, numbers), by)

    def _is_one_loop(self, arrays: Sequence[Array], targets: Sequence[Array]) -> bool:
        """Return whether it is a single loop of NumPy's, which converts no numbers of 16 bits: those are slow."""
        return len(self.program.steps) == 1 and not any(is_narrow(array.dtype) for array in (*arrays, *targets))

    def task(
        self, shape: tuple[int, ...], arrays: Sequence[Array], targets: Sequence[Array], numbers: Sequence[Any]
    ) -> tuple[Sweep | None, Any]:
        """The kernel for these arrays, and what it is given; None where they are not for one."""
        places = rows_of(shape, arrays, targets)
        if places is None:
            return None, None
        sizes, steps, repeated = places
        types = tuple([array.dtype for array in (*arrays, *targets)])
        sweep = self.sweep(types, repeated)
        return (None, None) if sweep.failed else (sweep, task_of(self.work, arrays, targets, numbers, sizes, steps))

    def sweep(self, types: tuple[np.dtype[Any], ...], repeated: tuple[bool, ...]) -> Sweep:
        """The kernel for arrays and targets of these types."""
        sweep = self._sweeps.get((types, repeated))
        if sweep is None:
            sweep = self._sweeps[types, repeated] = Sweep(self.program, self.work, types, repeated)
        return sweep


def _shares(program: Program, elements: int) -> bool:
    """Return whether threads would share a single step: in one thread NumPy's loop alone is as fast as a kernel."""
    return elements * work_of(program) >= THREADED and c_compiler.thread_count() > 1


def _switching(table: SweepTable, values: tuple[Any, ...], by: Call) -> Call:
    """NumPy's call `by`, until there is a kernel. It runs once a step of a plan, hence as one function."""
    halves = any(is_narrow(array.dtype) for array in (*values[1], *values[2]))
    heat = math.prod(values[0]) * len(table.program.steps) * (HALVES_TAKE if halves else 1)
    sweep: Sweep | None = None
    settled: Call | None = None

    def run() -> None:
        nonlocal sweep, settled
        if settled is not None:
            settled()
            return
        if table.heat < HOT:
            table.heat += heat
            by()
            return
        if sweep is None:
            sweep, _ = table.task(*values)
            if sweep is not None:
                sweep.ask()
        if sweep is None or sweep.failed:
            settled = by
        elif sweep.bound is not None:
            settled = sweep.bound(byref(table.task(*values)[1]), 1)
        (settled or by)()

    return run


def rows_of(
    shape: tuple[int, ...], arrays: Sequence[Array], targets: Sequence[Array]
) -> tuple[list[int], list[int], tuple[bool, ...]] | None:
    """Return the rows in which a kernel sweeps arrays that are broadcast to `shape`.

    Returns:
        The sizes, that of a row last; the steps in bytes by outer axis and array; which of the arrays are one element
        along a row. None where rows are short, or arrays do not lie for it.
    """
    everything = [*arrays, *targets]
    if any(target.shape != shape for target in targets):
        return None
    if not all(isinstance(array, np.ndarray) and array.flags.aligned for array in everything):
        return None  # NumPy's scalars have no lasting place
    strides = []
    for array in everything:
        lead = len(shape) - array.ndim
        if lead < 0:
            return None
        along = [0 if size == 1 else step for size, step in zip(array.shape, array.strides, strict=True)]
        strides.append([0] * lead + along)
    sizes: list[int] = []
    steps: list[list[int]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = [by[axis] for by in strides]
        if sizes and all(outer == inner * size for outer, inner in zip(steps[-1], here, strict=True)):
            sizes[-1] *= size
            steps[-1] = here
        else:
            sizes.append(size)
            steps.append(here)
    if not sizes:
        sizes, steps = [1], [[array.itemsize for array in everything]]
    if len(sizes) > MAX_AXES or (len(sizes) > 1 and sizes[-1] < SHORT_ROW):
        return None
    repeated = tuple([step == 0 for step in steps[-1][: len(arrays)]])
    for array, step in zip(everything, steps[-1], strict=True):
        if step not in (0, array.itemsize):
            return None
    if any(step == 0 for step in steps[-1][len(arrays) :]):
        return None
    return sizes, [step for outer in steps[:-1] for step in outer], repeated


def task_of(
    work: np.dtype[Any],
    arrays: Sequence[Array],
    targets: Sequence[Array],
    numbers: Sequence[Any],
    sizes: Sequence[int],
    steps: Sequence[int],
) -> _Task:
    """A task, which keeps alive what it points to."""
    places = [array.__array_interface__["data"][0] for array in (*arrays, *targets)]
    number = c_float if work.itemsize == 4 else c_double
    tables = (
        (c_void_p * len(places))(*places),
        (number * max(len(numbers), 1))(*map(float, numbers)),
        (c_long * len(sizes))(*sizes),
        (c_long * max(len(steps), 1))(*steps),
    )
    task = _Task(
        ctypes.addressof(tables[0]),
        ctypes.addressof(tables[1]),
        ctypes.addressof(tables[2]),
        ctypes.addressof(tables[3]),
        len(sizes) - 1,
    )
    task.alive = (tables, arrays, targets)
    return task


def tasks_of(work: np.dtype[Any], places: Sequence[int], sizes: Sequence[int], numbers: Sequence[Sequence[Any]]) -> Any:
    """Tasks on arrays in one row each, one after the other, which keep their tables alive, and not the arrays.

    Args:
        places: of each task's arrays and targets.
        sizes: elements of a row, for each task.
        numbers: each task's.
    """
    number, count = (c_float if work.itemsize == 4 else c_double), len(sizes)
    arrays, width = len(places) // count, max(len(numbers[0]), 1)
    tables = (
        (c_void_p * len(places))(*places),
        (number * (count * width))(*[float(value) for values in numbers for value in values]),
        (c_long * count)(*sizes),
    )
    at = [ctypes.addressof(table) for table in tables]
    tasks: Any = (_Task * count)()
    for k in range(count):
        tasks[k] = (at[0] + 8 * arrays * k, at[1] + work.itemsize * width * k, at[2] + 8 * k, None, 0)
    tasks.alive = tables
    return byref(tasks)
