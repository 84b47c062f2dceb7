"""Formulas: what an elementwise operator computes, as data.

A formula is a line of Python arithmetic over named arrays, parameters and the functions of `functions.py`:

    Expression("g / (1 + square(x))", arrays=("g", "x"))

Its term is the same as nested tuples, for whoever differentiates it, runs it or writes a kernel from it:

    ("divide", ("g", ("add", (1, ("square", ("x",))))))

A sum of 3,000 arrays is a term 3,000 deep, so nothing here calls itself for what is inside a term; only `read` does,
whose formulas somebody has written by hand. A part that occurs in several places may be one object there, and is seen
once.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TypeAlias, TypeVar

import numpy as np

from ..backend.numpy import NumpyBackend
from .functions import FUNCTIONS, resolve

__all__ = ["Expression", "Term", "call", "count_leaves", "definitions", "fold", "number", "parts", "read"]
__all__ += ["substitute", "write"]

Value = TypeVar("Value")

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
        self.arrays = tuple(arrays)
        self.parameters = tuple(parameters)
        self.term = read(text, (*arrays, *parameters))
        self.text = text

    @classmethod
    def of(cls, term: Term, arrays: Sequence[str], parameters: Sequence[str] = ()) -> Expression:
        """The formula of a term."""
        formula = cls.__new__(cls)
        formula.arrays, formula.parameters, formula.term = tuple(arrays), tuple(parameters), term
        return formula

    @cached_property
    def text(self) -> str:
        """The formula as it was written, or one that reads as its term."""
        return write(self.term)

    def __repr__(self) -> str:
        return f"Expression({self.text!r}, {self.arrays})"

    @cached_property
    def names(self) -> frozenset[str]:
        """The arrays and parameters that the formula really reads."""
        return frozenset([part for part in parts(self.term) if isinstance(part, str)])

    @cached_property
    def exact(self) -> bool:
        """True if integers need no conversion to floating point."""
        return all(
            FUNCTIONS[part[0]].exact if isinstance(part, tuple) else isinstance(part, int | str)
            for part in parts(self.term)
        )


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


def parts(term: Term, known: Container[int] = ()) -> Iterator[Term]:
    """The term and all that is in it, from left to right and the innermost first, each object once.

    Args:
        known: the `id`s of parts that are left out, with what is in them.
    """
    seen: set[int] = set()
    waiting = [term]
    while waiting:
        part = waiting[-1]
        if id(part) in seen or id(part) in known:
            waiting.pop()
            continue
        inner = part[1] if isinstance(part, tuple) else ()
        missing = [one for one in inner if id(one) not in seen and id(one) not in known]
        if missing:
            waiting += reversed(missing)
            continue
        waiting.pop()
        seen.add(id(part))
        yield part


def fold(term: Term, combine: Callable[[Term, list[Value]], Value]) -> Value:
    """The value of a term: `combine` makes it of a part and the values of what is in that, from the innermost out."""
    values: dict[int, Value] = {}
    for part in parts(term):
        inner = [values[id(one)] for one in part[1]] if isinstance(part, tuple) else []
        values[id(part)] = combine(part, inner)
    return values[id(term)]


def count_leaves(term: Term) -> Counter[int | float | str]:
    """How often the term, written out, has each name and number."""
    times: Counter[int] = Counter({id(term): 1})
    counts: Counter[int | float | str] = Counter()
    for part in reversed(list(parts(term))):
        if isinstance(part, tuple):
            for one in part[1]:
                times[id(one)] += times[id(part)]
        else:
            counts[part] += times[id(part)]
    return counts


def substitute(term: Term, values: Mapping[str, Term]) -> Term:
    """The term with terms for names."""

    def replaced(part: Term, inner: list[Term]) -> Term:
        if isinstance(part, tuple):
            return call(part[0], *inner)
        return values.get(part, part) if isinstance(part, str) else part

    return fold(term, replaced)


def number(term: Term, values: Mapping[str, float]) -> float:
    """The value of a term over parameters alone: in float64, or a Python integer where it is one."""

    def value_of(part: Term, arguments: list[float]) -> float:
        if isinstance(part, str):
            return values[part]
        return _result(part[0], arguments) if isinstance(part, tuple) else part

    return fold(term, value_of)


def _result(function: str, arguments: Sequence[float]) -> float:
    """The number that a function gives for numbers."""
    if function == "where":
        return arguments[1 if arguments[0] else 2]
    row = FUNCTIONS[function]
    if row.formula:
        return number(read(row.formula, _ARGUMENTS[: len(arguments)]), dict(zip(_ARGUMENTS, arguments, strict=False)))
    with np.errstate(all="ignore"):
        if function in _WHOLE and all(isinstance(argument, int) for argument in arguments):
            return int(_WHOLE[function](*arguments))
        result = resolve(function, np, NumpyBackend.special)(*map(float, arguments))
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
    return fold(term, _written)


def _written(part: Term, inner: list[str]) -> str:
    if isinstance(part, tuple):
        function = part[0]
        if function in _SIGNS:
            return f"({inner[0]} {_SIGNS[function]} {inner[1]})"
        return f"(-{inner[0]})" if function == "negative" else f"{function}({', '.join(inner)})"
    if isinstance(part, str):
        return part
    return repr(part) if math.isfinite(part) and part >= 0 else f"(-{-part!r})" if part < 0 else repr(part)
