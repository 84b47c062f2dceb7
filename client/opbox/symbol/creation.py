"""Symbols of constants, and functions that take numbers in the place of symbols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _schema
from ..python_operators import apply_to_any
from .arithmetic import apply
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


def _new(op: str, params: dict[str, Any], name: str | None, attr: Any, inputs: Sequence[Symbol] = ()) -> Symbol:
    return Symbol(create(_schema.get(op), op.lower(), inputs, {}, params, name, attr))


def _dtype(dtype: Any) -> Any:
    return np.float32 if dtype is None else np.dtype(dtype)


def zeros(shape: Any, dtype: Any = None, name: str | None = None, attr: Any = None, **kwargs: Any) -> Symbol:
    """Zeros; a 0 in `shape` is a dimension that inference finds."""
    return _new("_zeros", {"shape": shape, "dtype": _dtype(dtype), **kwargs}, name, attr)


def ones(shape: Any, dtype: Any = None, name: str | None = None, attr: Any = None, **kwargs: Any) -> Symbol:
    """Ones."""
    return _new("_ones", {"shape": shape, "dtype": _dtype(dtype), **kwargs}, name, attr)


def full(shape: Any, val: float, dtype: Any = None, name: str | None = None, attr: Any = None, **kwargs: Any) -> Symbol:
    """`val` everywhere."""
    return _new("_full", {"shape": shape, "dtype": _dtype(dtype), "value": float(val), **kwargs}, name, attr)


def eye(N: int, M: int = 0, k: int = 0, dtype: Any = None, name: str | None = None, **kwargs: Any) -> Symbol:
    """An N by M matrix with ones on diagonal `k`."""
    return _new("_eye", {"N": N, "M": M, "k": k, "dtype": _dtype(dtype), **kwargs}, name, None)


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
    return _new("_arange", {**params, "dtype": _dtype(dtype)}, name, None)


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, name: str | None = None, dtype: Any = None
) -> Symbol:
    """`num` evenly spaced values from `start` to `stop`."""
    params = {"start": start, "stop": stop, "num": num, "endpoint": endpoint, "dtype": _dtype(dtype)}
    return _new("_linspace", params, name, None)


def histogram(a: Symbol, bins: Any = 10, range: Any = None, **kwargs: Any) -> Symbol:
    """Counts of `a`'s values in `bins`: a symbol of edges, or a number of bins over `range`."""
    if isinstance(bins, Symbol):
        return _new("_histogram", kwargs, None, None, [a, bins])
    if range is None:
        raise ValueError(
            "histogram: range: expected (lowest, highest), got None: a symbol has no values to take it from"
        )
    return _new("_histogram", {"bin_cnt": bins, "range": range, **kwargs}, None, None, [a])


def split_v2(ary: Symbol, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Symbol:
    """Parts of an array along `axis`: a number of equal ones, or those between given indices."""
    return ary.split_v2(indices_or_sections, axis, squeeze_axis)


def pow(base: Any, exp: Any) -> Any:
    """base ** exp, for symbols and numbers."""
    return apply_to_any(apply, Symbol, "power", base, exp)


power = pow


def maximum(left: Any, right: Any) -> Any:
    """The larger of two, element by element, for symbols and numbers."""
    return apply_to_any(apply, Symbol, "maximum", left, right)


def minimum(left: Any, right: Any) -> Any:
    """The smaller of two, element by element, for symbols and numbers."""
    return apply_to_any(apply, Symbol, "minimum", left, right)


def hypot(left: Any, right: Any) -> Any:
    """sqrt(left ** 2 + right ** 2), for symbols and numbers."""
    return apply_to_any(apply, Symbol, "hypot", left, right)
