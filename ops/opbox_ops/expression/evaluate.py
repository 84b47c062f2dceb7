"""Running formulas on arrays.

On the CPU the steps run over pieces of the arrays: what they need between each other stays in a few rows of scratch
that fit the cache, so nothing is allocated that has the size of the arrays, nor read from memory twice. A formula of
one step is one call of the library.

Half precision is computed in float32 and rounded once, as MXNet does. Integers are computed as they are when the
formula allows, else in float64 and truncated towards zero, as C++ converts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np

from ..bound_calls import Call, as_one, nothing
from ..cache import elements
from ..compute import Array, Reusable, Temp
from ..pausing import pause
from .cuda import expressible, formula_kernel
from .functions import resolve
from .language import number
from .program import COPY, Program
from .swept import SweepTable

__all__ = ["MAX_UNCUT_SLICES", "FormulaKernel", "piece", "scratch"]

MAX_UNCUT_SLICES = 6
"""Maximum size, in pieces, for arrays to be computed whole: ftrl_update of 256 x 256 takes 0.7 of the time then."""
LONGEST = 1 << 22
"""Elements between two looks at whether the call goes on: with most functions some 10 ms."""
LONGEST_STEP = 1 << 18
"""The same of a single function of NumPy's."""
LONGEST_SPECIAL = 1 << 16
"""The same of a special function, which takes up to 2.5 us for a number that it is not defined for."""
_EXPANDED = ("maximum", "minimum")
"""NumPy has vector instructions for the larger of two arrays, and none for that of an array and a number."""


def scratch(program: Program, work: np.dtype[Any], shape: tuple[int, ...], device: str) -> list[Temp]:
    """The temporary space that a `FormulaKernel` of `program` wants for arrays of `shape`."""
    if device != "cpu" and expressible(program, work):
        return [Temp((0, 0), work), Temp((0, 0), np.dtype(bool))]
    rows = piece(program, work, shape) if device == "cpu" else math.prod(shape)
    return [Temp((program.registers, rows), work), Temp((program.masks, rows), np.dtype(bool))]


def piece(program: Program, work: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Elements of a piece; what would be a few pieces is one, for their calls cost more than the cache saves."""
    live = program.registers + program.arrays + program.targets - program.shared
    size, most = math.prod(shape), elements(live * work.itemsize + program.masks)
    return size if size <= MAX_UNCUT_SLICES * most else most


class FormulaKernel:
    """A program with the library's functions in place.

    Args:
        program: the steps.
        work: the type to compute in.
        xp, special: the array library, and its special functions.
    """

    def __init__(self, program: Program, work: np.dtype[Any], xp: Any, special: Any) -> None:
        self.program = program
        self.work = work
        self.xp = xp
        self._last_constants: tuple[Mapping[str, float] | None, list[Any]] = (None, [])
        self.steps = [
            (xp.copyto if s.function == COPY else resolve(s.function, xp, special), s.operands, s.result, s.function)
            for s in program.steps
        ]
        self._cuda = None if xp is np else formula_kernel(program, work, xp)
        self.sweeps = SweepTable(program, work) if xp is np else None
        self._all_ufuncs = all(isinstance(call, np.ufunc) and call.nin == len(used) for call, used, *_ in self.steps)
        first, last = program.arrays, program.arrays + len(program.constants)
        wide = (step for step in program.steps if step.function in _EXPANDED and xp is np and work.kind == "f")
        self.expanded = frozenset(slot for step in wide for slot in step.operands if first <= slot < last)

    def bind(
        self,
        shape: tuple[int, ...],
        arrays: Sequence[Array],
        targets: Sequence[Array],
        numbers: Mapping[str, float],
        temp: Sequence[Array] = (),
    ) -> Call:
        """Return a call that writes the targets, all of `shape`; the arrays are broadcast to it.

        Args:
            numbers: the parameters' values.
            temp: what `scratch` asked for; without it the scratch is allocated here.
        """
        size = math.prod(shape)
        constants = self.constants(numbers)
        if not size:
            return nothing
        if self._cuda is not None:
            return self._cuda.bind(arrays, constants, targets)
        if size > LONGEST and self.xp is np:
            return self._in_long_pieces(shape, arrays, targets, numbers, temp)
        call = self._by_pieces(shape, arrays, targets, constants, temp)
        if self.sweeps is None:
            return call
        return self.sweeps.switching(shape, arrays, targets, constants, call)

    def _in_long_pieces(
        self,
        shape: tuple[int, ...],
        arrays: Sequence[Array],
        targets: Sequence[Array],
        numbers: Mapping[str, float],
        temp: Sequence[Array],
    ) -> Call:
        """As `bind`, with a pause between pieces of at most LONGEST elements."""
        if all(array.shape == shape and array.flags.c_contiguous for array in (*arrays, *targets)):
            arrays, targets = [array.reshape(-1) for array in arrays], [target.reshape(-1) for target in targets]
            shape = (math.prod(shape),)
        else:
            arrays = [array if array.shape == shape else self.xp.broadcast_to(array, shape) for array in arrays]
        calls = []
        for where in _slices(shape, LONGEST):
            parts = [target[where] for target in targets]
            calls.append(self.bind(parts[0].shape, [array[where] for array in arrays], parts, numbers, temp))

        def run() -> None:
            for call in calls:
                pause()
                call()

        return run

    def _by_pieces(
        self,
        shape: tuple[int, ...],
        arrays: Sequence[Array],
        targets: Sequence[Array],
        constants: Sequence[Any],
        temp: Sequence[Array],
    ) -> Call:
        """As `bind`, by the library's functions."""
        program, size = self.program, math.prod(shape)
        single = len(program.steps) == 1 and not (self.expanded or program.registers or program.masks)
        if single and (self.xp is not np or size <= LONGEST_STEP):
            return self.call([*arrays, *constants, *targets], self._one_type(arrays, targets))
        longest = LONGEST_STEP if hasattr(np, program.steps[0].function) else LONGEST_SPECIAL
        most = size if self.xp is not np else longest if single else piece(program, self.work, shape)
        if len(temp) > 1 and 0 < temp[0].shape[-1] < most and (program.registers or program.masks):
            most = temp[0].shape[-1]
        rows = self._rows(temp, most) if program.registers or program.masks else []
        if size <= most:
            values = [*arrays, *self._shaped(constants, rows, shape, most), *targets]
            return self.call(values, self._one_type(arrays, targets))
        if all(array.shape == shape and array.flags.c_contiguous for array in (*arrays, *targets)):
            flat = [array.reshape(-1) for array in arrays], [target.reshape(-1) for target in targets]
            at = [slice(start, start + most) for start in range(0, size, most)]
            return self._pieces(*flat, at, constants, rows, most)
        whole = [array if array.shape == shape else self.xp.broadcast_to(array, shape) for array in arrays]
        return self._pieces(whole, targets, list(_slices(shape, most)), constants, rows, most)

    def _one_type(self, arrays: Sequence[Array], targets: Sequence[Array]) -> bool:
        """Return whether nothing is converted between the arrays: then NumPy need not be told that it may."""
        work = self.work
        return work.kind == "f" and all(array.dtype == work for array in (*arrays, *targets))

    def between(self, shape: tuple[int, ...], numbers: Mapping[str, float], temp: Sequence[Array]) -> list[Any] | None:
        """The constants and the scratch that `bind` would use; None where arrays of `shape` take several pieces.

        The scratch is `temp` itself: calls with it do not run at once.
        """
        program, size = self.program, math.prod(shape)
        constants = self.constants(numbers)
        if not size:
            return None
        if self._cuda is not None:
            return constants
        if self.xp is np and size > LONGEST_STEP:
            return None
        if len(program.steps) == 1 and not (self.expanded or program.registers or program.masks):
            return constants
        most = piece(program, self.work, shape) if self.xp is np else size
        if size > most or (len(temp) > 1 and temp[0].shape[-1] < most and (program.registers or program.masks)):
            return None
        rows = self._rows(temp, most) if program.registers or program.masks else []
        return self._shaped(constants, rows, shape, most)

    def call(self, values: Sequence[Any], one_type: bool = False) -> Call:
        """A call on these values: the arrays, what `between` has made, and the targets.

        Args:
            one_type: all arrays and targets are of the type `work`, a floating one: nothing is converted.
        """
        if self._cuda is not None:
            read = self.program.arrays
            behind = read + len(self.program.constants)
            return self._cuda.bind(values[:read], values[read:behind], values[behind:])
        if one_type and self._all_ufuncs:
            return as_one(
                [
                    partial(call, *[values[slot] for slot in operands], out=values[result])
                    if function in _EXPANDED  # NumPy wants the array to write by name
                    else partial(call, *[values[slot] for slot in operands], values[result])
                    for call, operands, result, function in self.steps
                ]
            )
        return as_one(self._calls(values))

    def reusable(self, shape: tuple[int, ...], numbers: Mapping[str, float], temp: Sequence[Array]) -> Reusable | None:
        """As `bind`: a call `(arrays, targets)`; None where the arrays are too large for one piece.

        The scratch is its own, so that it runs once at a time.
        """
        program, size = self.program, math.prod(shape)
        values = self.constants(numbers)
        if not size:
            return lambda arrays, targets: None
        if len(program.steps) > 1 or self.expanded or program.registers or program.masks:
            if size > piece(program, self.work, shape):
                return None
            values = self._shaped(values, self._rows(temp, size), shape, size)
        if len(self.steps) == 1:
            return _step(*self.steps[0], values, program.arrays)
        # What a copy writes comes first, what a function writes last.
        steps = [
            (call, itemgetter(result, operands[0]), None)
            if function == COPY
            else (call, itemgetter(*operands) if len(operands) > 1 else _alone(operands[0]), result)
            for call, operands, result, function in self.steps
        ]

        def run(arrays: Sequence[Array], targets: Sequence[Array]) -> None:
            slots = (*arrays, *values, *targets)
            for call, pick, result in steps:
                if result is None:
                    call(*pick(slots), casting="unsafe")
                else:
                    call(*pick(slots), out=slots[result], casting="unsafe")

        return run

    def constants(self, numbers: Mapping[str, float]) -> list[Any]:
        """The values of the constant slots, in the type computed in."""
        if not self.program.constants:
            return []
        known, constants = self._last_constants
        if known is not numbers:
            with np.errstate(all="ignore"):
                constants = [_constant(number(term, numbers), self.work) for term in self.program.constants]
            self._last_constants = numbers, constants
        return constants

    def _pieces(
        self,
        arrays: Sequence[Array],
        targets: Sequence[Array],
        at: Sequence[Any],
        constants: Sequence[Any],
        rows: Sequence[Array],
        most: int,
    ) -> Call:
        """A call that goes through the pieces `at` of the arrays."""
        shaped: dict[tuple[int, ...], list[Any]] = {}

        def run() -> None:
            for where in at:
                pause()
                parts = [target[where] for target in targets]
                scratch = shaped.get(parts[0].shape)
                if scratch is None:
                    scratch = shaped[parts[0].shape] = self._shaped(constants, rows, parts[0].shape, most)
                values = [*[array[where] for array in arrays], *scratch, *parts]
                for call, operands, result, function in self.steps:
                    if function == COPY:
                        call(values[result], values[operands[0]], casting="unsafe")
                    else:
                        call(*[values[slot] for slot in operands], out=values[result], casting="unsafe")

        return run

    def _calls(self, values: Sequence[Any]) -> list[Call]:
        """The steps on these values."""
        return [
            partial(call, values[result], values[operands[0]], casting="unsafe")
            if function == COPY
            else partial(call, *[values[slot] for slot in operands], out=values[result], casting="unsafe")
            for call, operands, result, function in self.steps
        ]

    def _rows(self, temp: Sequence[Array], most: int) -> list[Array]:
        """The registers and the masks, a row each."""
        program = self.program
        if not self._enough(temp, most):
            temp = [self.xp.empty((program.registers, most), self.work), self.xp.empty((program.masks, most), bool)]
        return [*temp[0][: program.registers], *temp[1][: program.masks]]

    def _enough(self, temp: Sequence[Array], most: int) -> bool:
        rows = (self.program.registers, self.program.masks)
        return (
            len(temp) > 1
            and temp[0].dtype == self.work
            and all(
                array.shape[0] >= count and (array.shape[1] >= most or not count)
                for array, count in zip(temp, rows, strict=False)
            )
        )

    def _shaped(self, constants: Sequence[Any], rows: Sequence[Array], shape: tuple[int, ...], most: int) -> list[Any]:
        """The constants and the rows, in the shape of one piece."""
        size = math.prod(shape)
        values = list(constants)
        for slot in self.expanded:
            k = slot - self.program.arrays
            values[k] = _filled(values[k], self.work, most)[:size].reshape(shape)
        return values + [row[:size].reshape(shape) for row in rows]


def _step(
    call: Callable[..., Any], operands: Sequence[int], result: int, function: str, values: Sequence[Any], arrays: int
) -> Reusable:
    """The only step of a program: `values` are in the slots behind those of the arrays."""
    of = operands[0]
    if function == COPY and of >= arrays:
        value = values[of - arrays]
        return lambda inputs, outputs: call(outputs[0], value, casting="unsafe")
    if function == COPY:
        return lambda inputs, outputs: call(outputs[0], inputs[of], casting="unsafe")
    if len(operands) == 1:
        return lambda inputs, outputs: call(inputs[of], out=outputs[0], casting="unsafe")
    if len(operands) == 2:
        a, b = operands
        if a < arrays and b < arrays:
            return lambda inputs, outputs: call(inputs[a], inputs[b], out=outputs[0], casting="unsafe")
        if a < arrays:
            right = values[b - arrays]
            return lambda inputs, outputs: call(inputs[a], right, out=outputs[0], casting="unsafe")
        left = values[a - arrays]
        return lambda inputs, outputs: call(left, inputs[b], out=outputs[0], casting="unsafe")

    def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        slots = [*inputs, *values, *outputs]
        call(*[slots[slot] for slot in operands], out=slots[result], casting="unsafe")

    return run


def _alone(slot: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes one slot out of a sequence, as a sequence of length 1."""
    return itemgetter(slice(slot, slot + 1))


def _slices(shape: tuple[int, ...], most: int) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array of `shape` into pieces of at most `most` elements, along as few axes as will do."""
    axis, inner = 0, math.prod(shape[1:])
    while inner > most:
        axis += 1
        inner //= shape[axis]
    step = max(most // inner, 1)
    for outer in np.ndindex(*shape[:axis]):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))


def _constant(value: float, work: np.dtype[Any]) -> Any:
    """A number for arrays of type `work`: a scalar of it, or of float32; integers are wrapped as C converts them."""
    if work.kind in "iu":
        return np.asarray(int(value)).astype(work)[()]
    return work.type(value)


@lru_cache(maxsize=64)
def _filled(value: Any, work: np.dtype[Any], size: int) -> Array:
    array = np.full(size, value, work)
    array.flags.writeable = False
    return array
