"""Symbols of constants, and functions that take numbers in the place of symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _schema
from ..base import is_number
from .arithmetic import binary
from .compose import create
from .symbol import Symbol

__all__ = [
    "arange",
    "eye",
    "full",
    "histogram",
    "hypot",
    "linspace",
    "maximum",
    "minimum",
    "ones",
    "pow",
    "power",
    "split_v2",
    "zeros",
]


def _made(op: str, params: dict[str, Any], name: str | None, attr: Any, inputs: Sequence[Symbol] = ()) -> Symbol:
    return Symbol(create(_schema.get(op), op.lower(), inputs, {}, params, name, attr))


def _dtype(dtype: Any) -> Any:
    return np.float32 if dtype is None else np.dtype(dtype)


def zeros(shape: Any, dtype: Any = None, name: str | None = None, attr: Any = None, **kwargs: Any) -> Symbol:
    """Zeros; a 0 in `shape` is a dimension that inference finds."""
    return _made("_zeros", {"shape": shape, "dtype": _dtype(dtype), **kwargs}, name, attr)


def ones(shape: Any, dtype: Any = None, name: str | None = None, attr: Any = None, **kwargs: Any) -> Symbol:
    """Ones."""
    return _made("_ones", {"shape": shape, "dtype": _dtype(dtype), **kwargs}, name, attr)


def full(shape: Any, val: float, dtype: Any = None, name: str | None = None, attr: Any = None, **kwargs: Any) -> Symbol:
    """`val` everywhere."""
    return _made("_full", {"shape": shape, "dtype": _dtype(dtype), "value": float(val), **kwargs}, name, attr)


def eye(N: int, M: int = 0, k: int = 0, dtype: Any = None, name: str | None = None, **kwargs: Any) -> Symbol:
    """An N by M matrix with ones on diagonal `k`."""
    return _made("_eye", {"N": N, "M": M, "k": k, "dtype": _dtype(dtype), **kwargs}, name, None)


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool = False,
    name: str | None = None,
    dtype: Any = None,
) -> Symbol:
    """start, start + step, … up to `stop` (0 to `start` when there is none), each `repeat` times."""
    params = {"start": start, "stop": stop, "step": step, "repeat": repeat, "infer_range": infer_range}
    return _made("_arange", {**params, "dtype": _dtype(dtype)}, name, None)


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, name: str | None = None, dtype: Any = None
) -> Symbol:
    """`num` evenly spaced values from `start` to `stop`."""
    params = {"start": start, "stop": stop, "num": num, "endpoint": endpoint, "dtype": _dtype(dtype)}
    return _made("_linspace", params, name, None)


def histogram(a: Symbol, bins: Any = 10, range: Any = None, **kwargs: Any) -> Symbol:
    """Counts of `a`'s values in `bins`: a symbol of edges, or a number of bins over `range`."""
    if isinstance(bins, Symbol):
        return _made("_histogram", kwargs, None, None, [a, bins])
    if range is None:
        raise ValueError(
            "histogram: range: expected (lowest, highest), got None: a symbol has no values to take it from"
        )
    return _made("_histogram", {"bin_cnt": bins, "range": range, **kwargs}, None, None, [a])


def split_v2(ary: Symbol, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Symbol:
    """Parts of an array along `axis`: a number of equal ones, or those between given indices."""
    if isinstance(indices_or_sections, int):
        indices, sections = [], indices_or_sections
    elif isinstance(indices_or_sections, tuple):
        indices, sections = [0, *indices_or_sections], 0
    else:
        raise ValueError(f"indices_or_sections: expected a number or a tuple of numbers, got {indices_or_sections!r}")
    params = {"indices": indices, "axis": axis, "squeeze_axis": squeeze_axis, "sections": sections}
    return _made("_split_v2", params, None, None, [ary])


def _either(left: Any, right: Any, pair: tuple[str, str], scalar: tuple[str, str], reverse: tuple[str, str]) -> Any:
    """A function of two symbols, or of a symbol and a number in either place."""
    if isinstance(left, Symbol):
        return binary(left, right, pair, scalar)
    if isinstance(right, Symbol):
        return binary(right, left, pair, reverse)
    raise TypeError(f"types ({type(left)}, {type(right)}) not supported")


def pow(base: Any, exp: Any) -> Any:
    """base ** exp, for symbols and numbers."""
    if is_number(base) and is_number(exp):
        return base**exp
    return _either(
        base, exp, ("_power", "_power"), ("_power_scalar", "_powerscalar"), ("_rpower_scalar", "_rpowerscalar")
    )


power = pow


def maximum(left: Any, right: Any) -> Any:
    """The larger of two, element by element, for symbols and numbers."""
    if is_number(left) and is_number(right):
        return max(left, right)
    scalar = ("_maximum_scalar", "_maximumscalar")
    return _either(left, right, ("_maximum", "_maximum"), scalar, scalar)


def minimum(left: Any, right: Any) -> Any:
    """The smaller of two, element by element, for symbols and numbers."""
    if is_number(left) and is_number(right):
        return min(left, right)
    scalar = ("_minimum_scalar", "_minimumscalar")
    return _either(left, right, ("_minimum", "_minimum"), scalar, scalar)


def hypot(left: Any, right: Any) -> Any:
    """sqrt(left ** 2 + right ** 2), for symbols and numbers."""
    if is_number(left) and is_number(right):
        return np.hypot(left, right)
    scalar = ("_hypot_scalar", "_hypotscalar")
    return _either(left, right, ("_hypot", "_hypot"), scalar, scalar)
