"""Compiling formulas: terms to a list of steps over numbered slots.

Slots are numbered: the arrays that are read, the numbers, the registers (of the type computed in), the masks (bool),
the targets. Equal parts are computed once, registers are reused, and a value is computed straight into its target
where nothing reads the memory that it overwrites afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .functions import FUNCTIONS
from .language import Term, leaves, read, substitute

__all__ = ["COPY", "Program", "Instruction", "Target", "compile_terms"]

COPY = "copy"
"""The step that converts: an array to the type computed in, a mask to numbers, a value to its target's type."""

_ARGUMENTS = ("a", "b", "c")
_LOGICAL = ("logical_not", "logical_and", "logical_or", "logical_xor")


@dataclass(frozen=True, slots=True)
class Target:
    """A value that the program writes to an output.

    Attributes:
        term: the value.
        convert: whether its type is not the one computed in.
        over: the positions of the arrays whose memory it may be.
    """

    term: Term
    convert: bool = False
    over: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Instruction:
    """Slot `result` = function(slots `operands`)."""

    function: str
    operands: tuple[int, ...]
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The steps for some targets.

    Attributes:
        arrays: how many slots are arrays.
        constants: what is in the constant slots: numbers, or terms over parameters.
        registers, masks: how many of each.
        targets: how many.
        shared: how many of them may be an array's memory.
        steps: in order.
    """

    arrays: int
    constants: tuple[Term, ...]
    registers: int
    masks: int
    targets: int
    shared: int
    steps: tuple[Instruction, ...]


def compile_terms(
    targets: Sequence[Target],
    arrays: Mapping[str, int],
    *,
    convert: frozenset[str] = frozenset(),
    masks: Mapping[str, bool] | None = None,
    integers: bool = False,
    singles: bool = False,
) -> Program:
    """Compile the terms of `targets`.

    Args:
        targets: what to write, in order; a target of no array's memory but that of those in its `over`.
        arrays: position of each array by name; other names are parameters.
        convert: the arrays whose type is not the one computed in.
        masks: the arrays that are read as yes or no alone, whatever their type; True: of bool.
        integers, singles: whether the type computed in is an integer type, or float32.
    """
    return _ProgramCompiler(targets, arrays, convert, masks or {}, integers, singles).compile()


class _ProgramCompiler:
    def __init__(
        self,
        targets: Sequence[Target],
        arrays: Mapping[str, int],
        convert: frozenset[str],
        masks: Mapping[str, bool],
        integers: bool,
        singles: bool,
    ) -> None:
        self.targets = targets
        self.arrays = arrays
        self.convert = convert
        self.masks = masks
        self.integers, self.singles = integers, singles
        self.constants: list[Term] = []
        self.calls: dict[Term, None] = {}

    def compile(self) -> Program:
        values = [self._value(target.term) for target in self.targets]
        for value in values:
            self._visit(value)
        return self._place(list(self.calls), values)

    # -- from the language's functions to those of the library ----------------------------------------------------

    def _value(self, term: Term) -> Term:
        """Lower a target's term: a bare array as it is, else a number or a mask; all are copied if need be."""
        return term if isinstance(term, str) and term in self.arrays else self._lower(term)

    def _lower(self, term: Term) -> Term:
        """The term in functions of the library: a number or a mask."""
        if not isinstance(term, tuple):
            return (COPY, (term,)) if term in self.convert else term
        if not self._reads(term):
            return term  # over parameters alone: one number
        name, parts = term
        row = FUNCTIONS[name]
        if name == "where":
            return ("select", (self._mask(parts[0]), self._number(parts[1]), self._number(parts[2])))
        formula = (self.integers and row.on_integers) or (self.singles and row.on_singles) or row.formula
        if formula:
            return self._lower(substitute(read(formula, _ARGUMENTS), dict(zip(_ARGUMENTS, parts, strict=False))))
        if name in _LOGICAL:
            return (name, tuple(map(self._mask, parts)))
        return (name, tuple(map(self._number, parts)))

    def _number(self, term: Term) -> Term:
        lowered = self._lower(term)
        return (COPY, (lowered,)) if self._is_mask(lowered) else lowered

    def _mask(self, term: Term) -> Term:
        if isinstance(term, str) and term in self.masks:
            # With a number of another type, the library would convert the array first.
            compared = ("logical_or", (term, term)) if term in self.convert else ("not_equal", (term, 0))
            return term if self.masks[term] else compared
        lowered = self._lower(term)
        return lowered if self._is_mask(lowered) else ("not_equal", (lowered, 0))

    def _is_mask(self, term: Term) -> bool:
        if isinstance(term, tuple):
            return term[0] != COPY and FUNCTIONS[term[0]].mask and self._reads(term)
        return isinstance(term, str) and self.masks.get(term, False)

    def _reads(self, term: Term) -> bool:
        return any(leaf in self.arrays for leaf in leaves(term))

    # -- from terms to slots --------------------------------------------------------------------------------------

    def _visit(self, term: Term) -> None:
        if term in self.calls or (isinstance(term, str) and term in self.arrays):
            return
        if not isinstance(term, tuple) or not self._reads(term):
            if term not in self.constants:
                self.constants.append(term)
            return
        for part in term[1]:
            self._visit(part)
        self.calls[term] = None

    def _place(self, calls: list[Term], values: list[Term]) -> Program:
        end = len(calls)
        last: dict[Term, int] = {}
        for i, term in enumerate(calls):
            assert isinstance(term, tuple)
            last.update(dict.fromkeys(term[1], i))
        last.update(dict.fromkeys(values, end))
        position = {term: i for i, term in enumerate(calls)}
        read_at = {self.arrays[name]: i for name, i in last.items() if isinstance(name, str) and name in self.arrays}
        direct: dict[Term, int] = {}
        for k, (target, value) in enumerate(zip(self.targets, values, strict=True)):
            at = position.get(value)
            if at is None or value in direct or target.convert or self._is_mask(value):
                continue
            if all(read_at.get(array, -1) <= at for array in target.over):
                direct[value] = k
        rows, masks = _Rows(), _Rows()
        where: dict[Term, tuple[str, int]] = {}
        steps: list[tuple[str, tuple[Term, ...], tuple[str, int], list[int]]] = []
        lent: dict[int, Term] = {}
        for i, term in enumerate(calls):
            assert isinstance(term, tuple)
            scratch = [rows.take() for _ in range(0 if term[0] == COPY else FUNCTIONS[term[0]].scratch)]
            for part in dict.fromkeys(term[1]):
                if last[part] == i and part in where:
                    kind, index = where[part]
                    if kind == "target":
                        lent.pop(index, None)
                    else:
                        (rows if kind == "row" else masks).give(index)
            if term in direct:
                where[term] = ("target", direct[term])
            elif self._is_mask(term):
                where[term] = ("mask", masks.take())
            else:
                free = self._lendable(i, last[term], position, read_at, direct, lent)
                where[term] = ("row", rows.take()) if free is None else ("target", free)
                if free is not None:
                    lent[free] = term
            for index in scratch:
                rows.give(index)
            steps.append((term[0], term[1], where[term], scratch))
        return self._program(steps, values, direct, where, rows.count, masks.count)

    def _lendable(
        self,
        step: int,
        until: int,
        position: Mapping[Term, int],
        read_at: Mapping[int, int],
        direct: Mapping[Term, int],
        lent: Mapping[int, Term],
    ) -> int | None:
        """A target that may hold a value from `step` to `until`, before its own is written: one register less."""
        for value, k in direct.items():
            if k in lent or not step < position[value] or until > position[value]:
                continue
            if all(read_at.get(array, -1) <= step for array in self.targets[k].over):
                return k
        return None

    def _program(
        self,
        steps: list[tuple[str, tuple[Term, ...], tuple[str, int], list[int]]],
        values: list[Term],
        direct: Mapping[Term, int],
        where: Mapping[Term, tuple[str, int]],
        rows: int,
        masks: int,
    ) -> Program:
        constants = len(self.arrays)
        start = {"row": constants + len(self.constants)}
        start["mask"] = start["row"] + rows
        start["target"] = start["mask"] + masks

        def slot(term: Term) -> int:
            if term in where:
                kind, index = where[term]
                return start[kind] + index
            if isinstance(term, str) and term in self.arrays:
                return self.arrays[term]
            return constants + self.constants.index(term)

        done = [
            Instruction(name, (*map(slot, parts), *(start["row"] + k for k in scratch)), start[kind] + index)
            for name, parts, (kind, index), scratch in steps
        ]
        for k, value in enumerate(values):
            if direct.get(value) != k:
                done.append(Instruction(COPY, (slot(value),), start["target"] + k))
        shared = sum(bool(target.over) for target in self.targets)
        return Program(constants, tuple(self.constants), rows, masks, len(values), shared, tuple(done))


class _Rows:
    """Registers: the lowest free one is taken first."""

    def __init__(self) -> None:
        self.count = 0
        self.free: list[int] = []

    def take(self) -> int:
        if not self.free:
            self.count += 1
            return self.count - 1
        index = min(self.free)
        self.free.remove(index)
        return index

    def give(self, index: int) -> None:
        self.free.append(index)
