"""Values as Python text, which makes them again elsewhere.

literal({"a": (1, 2.5)})             # plain values: what ast.literal_eval reads, and a few more
expression(np.array([1.0, 2.0]))     # numpy's values and argparse's too: what eval reads
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["MAX_SOURCE_ELEMENTS", "expression", "literal"]

MAX_SOURCE_ELEMENTS = 1 << 16
"""Maximum number of elements of an array that travels as source."""


def literal(value: Any) -> str | None:
    """Python text of a plain value (numbers, strings, and tuples, lists, sets, dicts of them), or None."""
    return _text(value, literal)


def expression(value: Any) -> str | None:
    """Python text of a plain value, of numpy's arrays, numbers and types, and of an argparse.Namespace, or None."""
    kind = type(value)
    if kind is np.ndarray:
        return _array(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        number = literal(value.item())
        return f"__import__('numpy').dtype({value.dtype.str!r}).type({number})"
    if isinstance(value, np.dtype) and value.names is None:
        return f"__import__('numpy').dtype({value.str!r})"
    if kind in (argparse.Namespace, SimpleNamespace):
        fields = expression(vars(value))
        return fields and f"__import__({kind.__module__!r}).{kind.__name__}(**{fields})"
    return _text(value, expression)


def _array(value: Any) -> str | None:
    if value.dtype.kind not in "biuf" or not value.dtype.isnative or value.size > MAX_SOURCE_ELEMENTS:
        return None
    text = f"__import__('numpy').array({literal(value.ravel().tolist())}, {value.dtype.name!r})"
    return text if value.ndim == 1 else f"{text}.reshape({value.shape})"


def _text(value: Any, write: Callable[[Any], str | None]) -> str | None:
    """The text of a plain value, whose parts `write` writes."""
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) is float:
        if math.isnan(value):
            return "float('nan')"
        return repr(value) if math.isfinite(value) else ("1e999" if value > 0 else "-1e999")
    if type(value) in (set, frozenset) and not value:
        return f"{type(value).__name__}()"
    if type(value) in (tuple, list, set, frozenset):
        parts = [write(element) for element in value]
        if any(part is None for part in parts):
            return None
        # A set's order differs from run to run; the hash of a bundle must not.
        known = [part for part in parts if part is not None]
        inner = ", ".join(sorted(known) if type(value) in (set, frozenset) else known)
        if type(value) is tuple:
            return f"({inner},)" if len(parts) == 1 else f"({inner})"
        if type(value) is list:
            return f"[{inner}]"
        return f"{{{inner}}}" if type(value) is set else f"frozenset({{{inner}}})"
    if type(value) is dict:
        pairs = [(write(k), write(v)) for k, v in value.items()]
        if any(k is None or v is None for k, v in pairs):
            return None
        return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"
    return None
