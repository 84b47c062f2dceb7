"""Shortens a user's value for an error message, without writing out the rest of the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["excerpt"]


def excerpt(value: Any, most: int = 80) -> str:
    """The first `most` characters of `repr(value)`, and … where there are more; of a long value no more is looked at.

    Example:
        >>> excerpt(list(range(10**6)), 8)
        '[0, 1, 2…'
    """
    text, length = [], 0
    for piece in _spelt(value, most):
        text.append(piece)
        length += len(piece)
        if length > most:
            return "".join(text)[:most] + "…"
    return "".join(text)


def _spelt(value: Any, most: int) -> Iterator[str]:
    """`repr(value)`, piece by piece; strings no further than `most` characters."""
    if isinstance(value, str | bytes | bytearray):
        yield repr(value if len(value) <= most else value[: most + 1])
    elif isinstance(value, Mapping):
        yield "{"
        for position, (key, item) in enumerate(value.items()):
            yield ", " if position else ""
            yield from _spelt(key, most)
            yield ": "
            yield from _spelt(item, most)
        yield "}"
    elif isinstance(value, list | tuple):
        opening, closing = "[]" if isinstance(value, list) else "()"
        yield opening
        for position, item in enumerate(value):
            yield ", " if position else ""
            yield from _spelt(item, most)
        yield ",)" if closing == ")" and len(value) == 1 else closing
    else:
        yield " ".join(repr(value).split())
