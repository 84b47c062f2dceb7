"""The ground of the client: MXNetError, the mark for a parameter that was not passed, and the user's source line."""

from __future__ import annotations

import os
import sys
from numbers import Number
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

import numpy as np

from opbox_protocol.errors import MXNetError

__all__ = [
    "CodePlace",
    "MXNetError",
    "NotImplementedForSymbol",
    "Null",
    "check_call",
    "is_number",
    "line_of",
    "mx_real_t",
    "py_str",
    "source_line",
    "source_place",
    "user_level",
    "value_text",
]

mx_real_t = np.float32
"""The element type that arrays have by default."""
string_types = (str,)
numeric_types = (float, int, np.generic)
integer_types = (int, np.int32, np.int64)
_OWN_NUMBERS = frozenset({float, int})
"""Python's own number types, checked before the slower abstract class."""


def py_str(text: bytes | str) -> str:
    """The text of bytes, such as a key that a store's updater is called with."""
    return text.decode() if isinstance(text, bytes) else text


def check_call(ret: int) -> None:
    """Check the result of a call: 0 is success.

    Raises:
        MXNetError: it is another number. Errors of opbox are raised where they happen, so nobody returns one.
    """
    if ret != 0:
        raise MXNetError(f"check_call: expected 0, for success, got {ret!r}")


class _NullType:
    """The mark for a parameter that was not given, where None is a value."""

    def __repr__(self) -> str:
        return "_Null"

    def __bool__(self) -> bool:
        return False


Null: Final = _NullType()
_Null = Null


class NotImplementedForSymbol(MXNetError):
    """Raised by methods of symbols that need values, which only arrays have."""

    def __init__(self, name: str, alias: str | None = None) -> None:
        named = f" (namely operator {alias!r})" if alias else ""
        super().__init__(
            f"{name}{named}: expected an NDArray, got a Symbol, which has no values: bind it first, or use its eval()"
        )


def is_number(value: Any) -> bool:
    """Return whether a value is a plain real number, numpy's included."""
    return (
        type(value) in _OWN_NUMBERS
        or (isinstance(value, Number) and not isinstance(value, complex | np.complexfloating))
        or (isinstance(value, np.generic) and value.dtype.kind in "biuf")
    )


LONGEST_VALUE = 60
"""Maximum number of characters of a value in an error."""


def value_text(value: Any) -> str:
    """A value as an error shows it, in one short line: the kind and shape of an array, the beginning of what is long.

    Example:
        >>> value_text(np.zeros((2, 3)))
        'an ndarray of shape (2, 3)'
    """
    value = value.item() if isinstance(value, np.generic) else value
    shape, kind = getattr(value, "shape", None), type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(shape, tuple):
        article = "an" if kind.lower().startswith(("a", "e", "i", "o", "nd")) else "a"
        return f"{article} {kind} of shape {shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_inside: dict[str, bool] = {}


CodePlace: TypeAlias = tuple[CodeType, int] | None
"""A place in the user's code: its code object, and the position of an instruction there."""


def source_place() -> CodePlace:
    """The place in the user's code that is running: in the nearest frame outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        inside = _inside.get(code.co_filename)
        if inside is None:
            inside = _inside[code.co_filename] = os.path.abspath(code.co_filename).startswith(_HERE)
        if not inside:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def user_level() -> int:
    """The `stacklevel` with which a warning of the calling function names the user's line."""
    place, frame, level = source_place(), sys._getframe(1), 1
    while frame.f_back is not None and (place is None or frame.f_code is not place[0]):
        frame, level = frame.f_back, level + 1
    return level


def line_of(place: CodePlace) -> str | None:
    """The file and line of a place in the code: "train.py:12", or "Cell In[9], line 1" in a notebook."""
    if place is None:
        return None
    code, position = place
    lines = (line for start, end, line in code.co_lines() if start <= position < end)
    number = next(lines, None) or code.co_firstlineno
    cell = cell_name(code.co_filename)
    return f"{os.path.basename(code.co_filename)}:{number}" if cell is None else f"{cell}, line {number}"


def cell_name(file: str) -> str | None:
    """Return IPython's name for a notebook cell, "Cell In[9]", from its file name; None for files."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    described = shell.compile.format_code_name(file) if shell is not None else None
    return f"{described[0]} {described[1]}" if described is not None else None


def source_line() -> str | None:
    """The file and line of the user's code that is running: the nearest frame outside of this package."""
    return line_of(source_place())
