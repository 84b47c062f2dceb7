"""Compiling formulas: terms to a list of steps over numbered slots.

Slots are numbered: the arrays that are read, the numbers, the registers (of the type computed in), the masks (bool),
the targets. Equal parts are computed once, registers are reused, and a value is computed straight into its target
where nothing reads the memory that it overwrites afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .functions import FUNCTIONS
from .language import Term, parts, read, substitute

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
class _Call:
    """A call of a function of the library, whose arguments read arrays: one object for all that are equal."""

    function: str
    arguments: tuple[_Lowered, ...]


_Lowered: TypeAlias = "_Call | Term"
"""What a term is in functions of the library: a call, the name of an array, or a term over parameters alone."""


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
        self.calls: dict[_Call, None] = {}
        self._known: dict[tuple[str, tuple[_Lowered, ...]], _Call] = {}
        self._lowered: dict[int, _Lowered] = {}
        """What parts of terms are in functions of the library, by `id`."""
        self._reading: dict[int, bool] = {}
        """Whether parts of terms read arrays, by `id`."""
        self._expanded: dict[int, Term] = {}
        """The formulas of functions that are made of others, by the `id` of their call."""

    def compile(self) -> Program:
        values = [self._value(target.term) for target in self.targets]
        for value in values:
            self._visit(value)
        return self._place(list(self.calls), values)

    # -- from the language's functions to those of the library ----------------------------------------------------

    def _value(self, term: Term) -> _Lowered:
        """Lower a target's term: a bare array as it is, else a number or a mask; all are copied if need be."""
        return term if isinstance(term, str) and term in self.arrays else self._lower(term)

    def _lower(self, term: Term) -> _Lowered:
        """The term in functions of the library: a number or a mask."""
        waiting = [term]
        while waiting:
            part = waiting[-1]
            missing = [one for one in self._needed(part) if id(one) not in self._lowered]
            if missing:
                waiting += reversed(missing)
                continue
            waiting.pop()
            self._lowered[id(part)] = self._in_library(part)
        return self._lowered[id(term)]

    def _needed(self, term: Term) -> Sequence[Term]:
        """The terms that are to be lowered before this one."""
        if not isinstance(term, tuple) or not self._reads(term):
            return ()
        formula = self._formula(term[0])
        if not formula:
            return term[1]
        expanded = self._expanded.get(id(term))
        if expanded is None:
            values = dict(zip(_ARGUMENTS, term[1], strict=False))
            expanded = self._expanded[id(term)] = substitute(read(formula, _ARGUMENTS), values)
        return (expanded,)

    def _formula(self, function: str) -> str:
        """What a function is made of; empty where it is the library's."""
        row = FUNCTIONS[function]
        return (self.integers and row.on_integers) or (self.singles and row.on_singles) or row.formula

    def _in_library(self, term: Term) -> _Lowered:
        """As `_lower`, once what is `_needed` has been lowered."""
        if not isinstance(term, tuple):
            return self._call(COPY, term) if term in self.convert else term
        if not self._reads(term):
            return term  # over parameters alone: one number
        function, inner = term
        if function == "where":
            return self._call("select", self._mask(inner[0]), self._number(inner[1]), self._number(inner[2]))
        if id(term) in self._expanded:
            return self._lowered[id(self._expanded[id(term)])]
        return self._call(function, *map(self._mask if function in _LOGICAL else self._number, inner))

    def _call(self, function: str, *arguments: _Lowered) -> _Lowered:
        """The one object for this call; a term where it reads parameters alone."""
        call = self._known.get((function, arguments))
        if call is not None:
            return call
        terms = tuple([one for one in arguments if not isinstance(one, _Call) and one not in self.arrays])
        if len(terms) == len(arguments):
            return (function, terms)
        call = self._known[function, arguments] = _Call(function, arguments)
        return call

    def _number(self, term: Term) -> _Lowered:
        lowered = self._lowered[id(term)]
        return self._call(COPY, lowered) if self._is_mask(lowered) else lowered

    def _mask(self, term: Term) -> _Lowered:
        if isinstance(term, str) and term in self.masks:
            if self.masks[term]:
                return term
            # With a number of another type, the library would convert the array first.
            return self._call("logical_or", term, term) if term in self.convert else self._call("not_equal", term, 0)
        lowered = self._lowered[id(term)]
        return lowered if self._is_mask(lowered) else self._call("not_equal", lowered, 0)

    def _is_mask(self, value: _Lowered) -> bool:
        if isinstance(value, _Call):
            return value.function != COPY and FUNCTIONS[value.function].mask
        return isinstance(value, str) and self.masks.get(value, False)

    def _reads(self, term: Term) -> bool:
        """Return whether a term reads arrays."""
        reading = self._reading
        for part in parts(term, reading):
            inner = part[1] if isinstance(part, tuple) else ()
            reading[id(part)] = part in self.arrays if not inner else any(reading[id(one)] for one in inner)
        return reading[id(term)]

    # -- from terms to slots --------------------------------------------------------------------------------------

    def _visit(self, value: _Lowered) -> None:
        """Put the calls that a value is made of in order, and what is constant in them aside."""
        waiting = [value]
        while waiting:
            part = waiting[-1]
            if isinstance(part, _Call) and part not in self.calls:
                missing = [one for one in part.arguments if not self._is_visited(one)]
                if missing:
                    waiting += reversed(missing)
                    continue
                self.calls[part] = None
            elif not isinstance(part, _Call) and not self._is_visited(part):
                self.constants.append(part)
            waiting.pop()

    def _is_visited(self, value: _Lowered) -> bool:
        if isinstance(value, _Call):
            return value in self.calls
        return value in self.constants or (isinstance(value, str) and value in self.arrays)

    def _place(self, calls: list[_Call], values: list[_Lowered]) -> Program:
        end = len(calls)
        last: dict[_Lowered, int] = {}
        for i, term in enumerate(calls):
            last.update(dict.fromkeys(term.arguments, i))
        last.update(dict.fromkeys(values, end))
        position: dict[_Lowered, int] = {term: i for i, term in enumerate(calls)}
        read_at = {self.arrays[name]: i for name, i in last.items() if isinstance(name, str) and name in self.arrays}
        # A target's memory is free once the arrays that it may be have been read.
        free_at = [max([read_at.get(array, -1) for array in target.over], default=-1) for target in self.targets]
        direct: dict[_Lowered, int] = {}
        for k, (target, value) in enumerate(zip(self.targets, values, strict=True)):
            at = position.get(value)
            if at is None or value in direct or target.convert or self._is_mask(value):
                continue
            if free_at[k] <= at:
                direct[value] = k
        rows, masks = _Rows(), _Rows()
        where: dict[_Lowered, tuple[str, int]] = {}
        steps: list[tuple[str, tuple[_Lowered, ...], tuple[str, int], list[int]]] = []
        lent: dict[int, _Lowered] = {}
        for i, term in enumerate(calls):
            scratch = [rows.take() for _ in range(0 if term.function == COPY else FUNCTIONS[term.function].scratch)]
            for part in dict.fromkeys(term.arguments):
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
                free = self._lendable(i, last[term], position, free_at, direct, lent)
                where[term] = ("row", rows.take()) if free is None else ("target", free)
                if free is not None:
                    lent[free] = term
            for index in scratch:
                rows.give(index)
            steps.append((term.function, term.arguments, where[term], scratch))
        return self._program(steps, values, direct, where, rows.count, masks.count)

    def _lendable(
        self,
        step: int,
        until: int,
        position: Mapping[_Lowered, int],
        free_at: Sequence[int],
        direct: Mapping[_Lowered, int],
        lent: Mapping[int, _Lowered],
    ) -> int | None:
        """A target that may hold a value from `step` to `until`, before its own is written: one register less."""
        for value, k in direct.items():
            if k in lent or not step < position[value] or until > position[value]:
                continue
            if free_at[k] <= step:
                return k
        return None

    def _program(
        self,
        steps: list[tuple[str, tuple[_Lowered, ...], tuple[str, int], list[int]]],
        values: list[_Lowered],
        direct: Mapping[_Lowered, int],
        where: Mapping[_Lowered, tuple[str, int]],
        rows: int,
        masks: int,
    ) -> Program:
        constants = len(self.arrays)
        start = {"row": constants + len(self.constants)}
        start["mask"] = start["row"] + rows
        start["target"] = start["mask"] + masks

        def slot(term: _Lowered) -> int:
            if term in where:
                kind, index = where[term]
                return start[kind] + index
            if isinstance(term, str) and term in self.arrays:
                return self.arrays[term]
            assert not isinstance(term, _Call)
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
