"""JSON that every parser takes, in which NaN and the infinities have a form too: Python's own would write them bare."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

__all__ = ["NonFinite", "json_values", "strict_json"]

NonFinite: TypeAlias = Literal["string", "null"]
"""The forms of NaN and the infinities in JSON, which has no such numbers: by their names, or all as null."""


def json_values(flat: np.ndarray[Any, Any], non_finite: NonFinite) -> list[Any]:
    """A flat array's elements as JSON has them."""
    if flat.dtype == ml_dtypes.bfloat16:
        flat = flat.astype(np.float32)
    values: list[Any] = flat.tolist()
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        return [value if math.isfinite(value) else _spelled(value, non_finite) for value in values]
    return values


def _spelled(value: float, non_finite: NonFinite) -> str | None:
    """Return the spelling of a number that JSON cannot write (NaN, the infinities)."""
    if non_finite == "null":
        return None
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def strict_json(value: Any, non_finite: NonFinite = "string", default: Callable[[Any], Any] | None = None) -> str:
    """JSON that every parser takes: Python's own would write NaN and Infinity bare.

    Args:
        value: what to write.
        non_finite: how those are written.
        default: makes a value of JSON of one that is none.

    Example:
        >>> strict_json({"loss": math.nan}), strict_json({"loss": math.nan}, "null")
        ('{"loss":"NaN"}', '{"loss":null}')
    """
    write = _STRICT.encode if default is None else _strict(default).encode
    try:
        return write(value)
    except ValueError:
        return write(_finite(value, non_finite))


def _strict(default: Callable[[Any], Any] | None) -> json.JSONEncoder:
    # Whoever writes a value that holds itself gets a RecursionError with or without the check, which takes a fifth.
    return json.JSONEncoder(
        separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False, default=default
    )


_STRICT = _strict(None)


def _finite(value: Any, non_finite: NonFinite) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else _spelled(value, non_finite)
    if isinstance(value, Mapping):
        return {key: _finite(item, non_finite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, non_finite) for item in value]
    return value
