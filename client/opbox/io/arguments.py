"""Arguments of the iterators that MXNet writes in C++: their types are checked, and text is read as MXNet reads it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any, TypeVar

import numpy as np

from opbox_protocol.errors import MXNetError
from opbox_protocol.near_names import near_names

from ..base import user_level, value_text

__all__ = ["PARTS", "read_arguments", "warn_of_unused"]

T = TypeVar("T")
_UNUSED = frozenset({"verbose", "device_id", "ctx", "silent", "data_name", "label_name", "prefetch_buffer", "name"})
"""Arguments that every iterator accepts."""


def read_arguments(subject: str, values: Mapping[str, Any], *tables: type[Any]) -> list[Any]:
    """Instances of data classes with the arguments that a user passed.

    A name that none has is a warning, as MXNet takes such names without a word.

    Args:
        subject: the iterator, for errors.
        values: arguments by name.
        tables: data classes, a field for each argument. The annotation is its type, the default MXNet's.

    Raises:
        MXNetError: a value of another type, or no value for a field without a default.
    """
    known = {field.name: field for table in tables for field in fields(table)}
    warn_of_unused(subject, [name for name in values if name not in known and name not in _UNUSED], known)
    return [
        table(
            **{field.name: _read(subject, field, values[field.name]) for field in fields(table) if field.name in values}
        )
        for table in tables
    ]


def warn_of_unused(subject: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Warn of names that an iterator has no use for, with those of `known` that may be meant."""
    for name in names:
        near = near_names(name, known)
        meant = f": did you mean {' or '.join(near)}?" if near else ""
        warnings.warn(f"{subject}: {name} is no argument of it, and is not used{meant}", stacklevel=user_level())


def _read(subject: str, field: Field[Any], value: Any) -> Any:
    """A value as the type of a field."""
    kind = str(field.type)
    if isinstance(value, str) and kind != "str":
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise MXNetError(f"{subject}: {field.name}: expected {kind}, got {value!r}") from None
    if value is None and "None" in kind:
        return None
    try:
        return _TYPES[kind.removesuffix(" | None")](value)
    except (TypeError, ValueError):
        raise MXNetError(f"{subject}: {field.name}: expected {kind}, got {value_text(value)}") from None


def _integer(value: Any) -> int:
    if not isinstance(value, int | np.integer | bool) and not (isinstance(value, float) and value.is_integer()):
        raise TypeError
    return int(value)


def _path(value: Any) -> str:
    return str(getattr(value, "__fspath__", lambda: value)() if value is not None else "")


def _items(value: Any, kind: Any) -> tuple[Any, ...]:
    return tuple(kind(item) for item in (value if isinstance(value, tuple | list | np.ndarray) else (value,)))


_TYPES: Mapping[str, Any] = {
    "int": _integer,
    "float": float,
    "bool": bool,
    "str": _path,
    "tuple[int, ...]": lambda value: _items(value, _integer),
    "tuple[float, ...]": lambda value: _items(value, float),
}

PARTS = "part_index: expected 0 to num_parts - 1, which is {last}, got {got}"
"""Error message for a part that does not exist."""
