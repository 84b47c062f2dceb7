"""Formulas: what an elementwise operator computes, as data.

A formula is a line of Python arithmetic over named arrays, parameters and the functions of `functions.py`:

    Expression("g / (1 + square(x))", arrays=("g", "x"))

Its term is the same as nested tuples, for whoever differentiates it, runs it or writes a kernel from it:

    ("divide", ("g", ("add", (1, ("square", ("x",))))))
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeAlias

import numpy as np

from ..backend.numpy import NumpyBackend
from .functions import FUNCTIONS, resolve

__all__ = ["Expression", "Term", "call", "definitions", "leaves", "number", "read", "substitute", "write"]

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
_CONSTANTS = {"pi": math.pi, "inf": math.inf, "nan": math.nan}
_FOLDED = frozenset(("add", "subtract", "multiply", "divide", "power", "negative", "square", "sqrt", "log"))
"""Functions that are computed at once where all their arguments are numbers."""

Term: TypeAlias = "int | float | str | tuple[str, tuple[Term, ...]]"
"""A number, the name of an array or parameter, or a function of terms."""


class Expression:
    """A formula that has been read.

    Args:
        text: the formula.
        arrays: names of the arrays that it may read.
        parameters: names of the numbers that each call gives.

    Attributes:
        text, arrays, parameters: the arguments.
        term: the formula as nested tuples.

    Raises:
        ValueError: something that formulas do not have.
    """

    def __init__(self, text: str, arrays: Sequence[str], parameters: Sequence[str] = ()) -> None:
        self.text = text
        self.arrays = tuple(arrays)
        self.parameters = tuple(parameters)
        self.term = read(text, (*arrays, *parameters))

    @classmethod
    def of(cls, term: Term, arrays: Sequence[str], parameters: Sequence[str] = ()) -> Expression:
        """The formula of a term."""
        return cls(write(term), arrays, parameters)

    def __repr__(self) -> str:
        return f"Expression({self.text!r}, {self.arrays})"

    @cached_property
    def names(self) -> frozenset[str]:
        """The arrays and parameters that the formula really reads."""
        return frozenset(leaf for leaf in leaves(self.term) if isinstance(leaf, str))

    @cached_property
    def exact(self) -> bool:
        """True if integers need no conversion to floating point."""
        return _exact(self.term)


def _exact(term: Term) -> bool:
    if isinstance(term, tuple):
        return FUNCTIONS[term[0]].exact and all(map(_exact, term[1]))
    return isinstance(term, int | str)


@cache
def read(text: str, names: tuple[str, ...]) -> Term:
    """The term of a formula over `names`; ValueError says what formulas do not have."""
    return _FormulaReader(text, names).term(ast.parse(text.strip(), mode="eval").body)


def definitions(lines: str, names: Sequence[str]) -> dict[str, Term]:
    """The terms of several lines `name = formula`; a formula reads what the lines before it have named.

    Args:
        lines: the lines; a name may be one of `names`, which has its new value on the lines after it.
        names: arrays and parameters.

    Example:
        >>> definitions("t = a * b\\na = t + 1", ("a", "b"))["a"]
        ('add', (('multiply', ('a', 'b')), 1))
    """
    values: dict[str, Term] = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, _, formula = line.partition(" = ")
        values[name] = substitute(read(formula, (*names, *(n for n in values if n not in names))), values)
    return values


class _FormulaReader:
    def __init__(self, text: str, names: tuple[str, ...]) -> None:
        self.text = text
        self.names = names

    def term(self, node: ast.expr) -> Term:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name) and node.id in self.names:
            return node.id
        if isinstance(node, ast.Name) and node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return call(_OPERATORS[type(node.op)], self.term(node.left), self.term(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return call(_OPERATORS[type(node.op)], self.term(node.operand))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
            return call(_OPERATORS[type(node.ops[0])], self.term(node.left), self.term(node.comparators[0]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
            return call(node.func.id, *map(self.term, node.args))
        raise ValueError(f"formula {self.text!r}: {ast.unparse(node)!r} is not an array, parameter, number or function")


def call(function: str, *terms: Term) -> Term:
    """`function` of `terms`; a number at once where all are numbers and the function is simple."""
    if function in _FOLDED and not any(isinstance(term, str | tuple) for term in terms):
        return number((function, terms), {})
    return (function, terms)


def leaves(term: Term) -> Iterator[int | float | str]:
    """The names and numbers in a term, from left to right."""
    if isinstance(term, tuple):
        for part in term[1]:
            yield from leaves(part)
    else:
        yield term


def substitute(term: Term, values: Mapping[str, Term]) -> Term:
    """The term with terms for names."""
    if isinstance(term, tuple):
        return call(term[0], *(substitute(part, values) for part in term[1]))
    return values.get(term, term) if isinstance(term, str) else term


def number(term: Term, values: Mapping[str, float]) -> float:
    """The value of a term over parameters alone: in float64, or a Python integer where it is one."""
    if isinstance(term, str):
        return values[term]
    if not isinstance(term, tuple):
        return term
    name, row = term[0], FUNCTIONS[term[0]]
    if name == "where":
        chosen = 1 if number(term[1][0], values) else 2
        return number(term[1][chosen], values)
    arguments = [number(part, values) for part in term[1]]
    if row.formula:
        return number(read(row.formula, _ARGUMENTS[: len(arguments)]), dict(zip(_ARGUMENTS, arguments, strict=False)))
    with np.errstate(all="ignore"):
        if name in _WHOLE and all(isinstance(argument, int) for argument in arguments):
            return int(_WHOLE[name](*arguments))
        result = resolve(name, np, NumpyBackend.special)(*map(float, arguments))
    return int(result) if row.mask else float(result)


_ARGUMENTS = ("a", "b", "c")
_WHOLE: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "negative": operator.neg,
    "square": lambda a: a * a,
    "maximum": max,
    "minimum": min,
}
"""Functions whose results are whole where Python's integers go in."""
_SIGNS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "modulo": "%"}
_SIGNS |= {"equal": "==", "not_equal": "!=", "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<="}


def write(term: Term) -> str:
    """A formula that reads as this term."""
    if isinstance(term, tuple):
        function, parts = term[0], [write(part) for part in term[1]]
        if function in _SIGNS:
            return f"({parts[0]} {_SIGNS[function]} {parts[1]})"
        return f"(-{parts[0]})" if function == "negative" else f"{function}({', '.join(parts)})"
    if isinstance(term, str):
        return term
    return repr(term) if math.isfinite(term) and term >= 0 else f"(-{-term!r})" if term < 0 else repr(term)
