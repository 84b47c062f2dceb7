"""Functions of formulas that are operators of C: the text is the same for the CPU's kernels and for CUDA's."""

from __future__ import annotations

from .program import COPY

__all__ = ["C_OPERATORS"]

C_OPERATORS = {
    "add": "{a} + {b}",
    "subtract": "{a} - {b}",
    "multiply": "{a} * {b}",
    "divide": "{a} / {b}",
    "negative": "-{a}",
    "square": "{a} * {a}",
    "equal": "{a} == {b}",
    "not_equal": "{a} != {b}",
    "greater": "{a} > {b}",
    "less": "{a} < {b}",
    "greater_equal": "{a} >= {b}",
    "less_equal": "{a} <= {b}",
    "logical_not": "!{a}",
    "select": "{a} ? {b} : {c}",
    COPY: "{a}",
}
"""The text by function, over the operands a, b and c."""
