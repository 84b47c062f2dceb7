"""What every other module stands on: MXNet's error, its mark for "not given", and the user's line."""

from __future__ import annotations

import os
import sys
from numbers import Number
from typing import Any, Final

import numpy as np

from opbox_protocol.errors import MXNetError

__all__ = ["MXNetError", "NotImplementedForSymbol", "Null", "is_number", "mx_real_t", "source_line"]

mx_real_t = np.float32
"""The element type that arrays have by default."""
string_types = (str,)
numeric_types = (float, int, np.generic)
integer_types = (int, np.int32, np.int64)


class _NullType:
    """The mark for a parameter that was not given, where None is a value."""

    def __repr__(self) -> str:
        return "_Null"

    def __bool__(self) -> bool:
        return False


Null: Final = _NullType()
_Null = Null


class NotImplementedForSymbol(MXNetError):
    """A thing that arrays can do and symbols, which have no values, cannot."""

    def __init__(self, name: str, alias: str | None = None) -> None:
        named = f" (namely operator {alias!r})" if alias else ""
        super().__init__(
            f"{name}{named}: expected an NDArray, got a Symbol, which has no values: bind it first, or use its eval()"
        )


def is_number(value: Any) -> bool:
    """Whether a value is a plain number, numpy's included."""
    return isinstance(value, Number) or (isinstance(value, np.generic) and value.dtype.kind in "biuf")


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_inside: dict[str, bool] = {}


def source_line() -> str | None:
    """The file and line of the user's code that is running: the nearest frame outside of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _inside.get(name)
        if inside is None:
            inside = _inside[name] = os.path.abspath(name).startswith(_HERE)
        if not inside:
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
