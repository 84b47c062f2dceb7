"""Formulas: what an elementwise operator computes, as data.

A formula is a line of Python arithmetic over named arrays, parameters and the functions of `functions.py`:

    Expression("g / (1 + square(x))", arrays=("g", "x"))

It is kept as text and compiled once into a list of steps over numbered slots, equal parts computed once and registers
reused. The attribute `FExpression` of an operator holds its formula, for a pass that fuses neighbours or writes a
kernel from it; `evaluate` runs it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from .functions import FUNCTIONS

__all__ = ["Expression", "Step"]

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.Mod: "modulo",
    ast.USub: "negative",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
}
_CONSTANTS = {"pi": math.pi, "inf": math.inf}
_FOLDED: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negative": lambda a: -a,
    "sqrt": math.sqrt,
    "log": math.log,
}

Term: TypeAlias = "int | float | str | tuple[str, tuple[Term, ...]]"
"""A number, the name of an array or parameter, or a function of terms."""


@dataclass(frozen=True, slots=True)
class Step:
    """Slot `result` = function(slots `operands`)."""

    function: str
    operands: tuple[int, ...]
    result: int


class Expression:
    """A compiled formula.

    Slots are numbered: first the arrays, then the constants, then the registers.

    Args:
        text: the formula.
        arrays: names of the arrays, in the order in which they will be given.
        parameters: names of the numbers that are given at each call.

    Attributes:
        text, arrays, parameters: as given.
        term: the formula as nested tuples, for passes.
        constants: the numbers (or names of parameters) in the constant slots.
        steps: the compiled steps; empty when the formula is a bare array or number.
        result: the slot that holds the result.
        registers: how many registers the steps use.
        exact: whether integers need no conversion to floating point.

    Raises:
        ValueError: something that formulas do not have.
    """

    def __init__(self, text: str, arrays: Sequence[str], parameters: Sequence[str] = ()) -> None:
        self.text = text
        self.arrays = tuple(arrays)
        self.parameters = tuple(parameters)
        self.term = self._term(ast.parse(text, mode="eval").body)
        self.constants: list[float | str] = []
        self._collect(self.term)
        self.steps, self.result, self.registers = self._compile()

    def __repr__(self) -> str:
        return f"Expression({self.text!r}, {self.arrays})"

    @cached_property
    def names(self) -> frozenset[str]:
        """The arrays and parameters that the formula really reads."""
        return frozenset(node.id for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Name))

    @cached_property
    def exact(self) -> bool:
        return all(FUNCTIONS[step.function].exact for step in self.steps) and all(
            isinstance(value, int | str) for value in self.constants
        )

    def _term(self, node: ast.expr) -> Term:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name) and (node.id in self.arrays or node.id in self.parameters):
            return node.id
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _call(_OPERATORS[type(node.op)], (self._term(node.left), self._term(node.right)))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return _call(_OPERATORS[type(node.op)], (self._term(node.operand),))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
            return _call(_OPERATORS[type(node.ops[0])], (self._term(node.left), self._term(node.comparators[0])))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            return _call(node.func.id, tuple(self._term(arg) for arg in node.args))
        raise ValueError(f"formula {self.text!r}: {ast.unparse(node)!r} is not an array, parameter, number or function")

    def _collect(self, term: Term) -> None:
        if isinstance(term, tuple):
            for part in term[1]:
                self._collect(part)
        elif term not in self.arrays and term not in self.constants:
            self.constants.append(term)

    def _leaf(self, term: int | float | str) -> int:
        if isinstance(term, str) and term in self.arrays:
            return self.arrays.index(term)
        return len(self.arrays) + self.constants.index(term)

    def _compile(self) -> tuple[tuple[Step, ...], int, int]:
        calls: list[tuple[str, tuple[Term, ...]]] = []

        def visit(term: Term) -> None:
            if isinstance(term, tuple) and term not in calls:
                for part in term[1]:
                    visit(part)
                calls.append(term)

        visit(self.term)
        last = {part: i for i, call in enumerate(calls) for part in call[1] if isinstance(part, tuple)}
        base = len(self.arrays) + len(self.constants)
        free: list[int] = []
        used = 0
        held: dict[Term, int] = {}
        steps: list[Step] = []
        for i, call in enumerate(calls):
            operands = tuple(held[part] if isinstance(part, tuple) else self._leaf(part) for part in call[1])
            free += {held[part] for part in call[1] if isinstance(part, tuple) and last[part] == i}
            if not free:
                free.append(base + used)
                used += 1
            held[call] = free.pop()
            steps.append(Step(call[0], operands, held[call]))
        result = held[self.term] if isinstance(self.term, tuple) else self._leaf(self.term)
        return tuple(steps), result, used


def _call(function: str, terms: tuple[Term, ...]) -> Term:
    if function in _FOLDED and not any(isinstance(term, str | tuple) for term in terms):
        return _FOLDED[function](*terms)
    return (function, terms)
