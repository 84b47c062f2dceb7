"""Reads JSON that a process with somebody's code may have written: its size, depth and number of values are bounded."""

from __future__ import annotations

from typing import Any

import orjson

from ..json_pieces import nesting

__all__ = ["check_bounds", "read_bounded"]

SMALL = 2048
"""Bytes up to which a text is within any bounds but that of its depth, which the parser has too."""
MAX_DEPTH = 32
MAX_VALUES = 20_000


def check_bounds(text: bytes | memoryview, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> None:
    """Check a text before it is parsed: a byte of JSON may take dozens in memory.

    Args:
        text: UTF-8.
        max_depth: of lists and objects in each other.
        max_values: commas, and brackets that open, outside of strings.

    Raises:
        ValueError: the text is beyond a bound, or is no JSON.
    """
    if len(text) <= SMALL:
        return
    data = bytes(text)
    opening = data.count(b"[") + data.count(b"{")
    if opening <= max_depth and opening + data.count(b",") <= max_values:
        return
    try:
        depth, values = nesting(data)
    except RecursionError:
        raise ValueError("expected JSON, got lists or objects nested too deep") from None
    if depth > max_depth:
        raise ValueError(f"expected JSON of at most {max_depth} levels, got {depth}")
    if values > max_values:
        raise ValueError(f"expected JSON of at most {max_values} values, got {values}")


def read_bounded(
    text: bytes | memoryview, max_bytes: int, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES
) -> Any:
    """Parse a JSON text.

    Args:
        text: UTF-8.
        max_bytes: of it.
        max_depth, max_values: see `check_bounds`.

    Raises:
        ValueError: it is no JSON, or beyond a bound.

    Example:
        >>> read_bounded(b'{"id": 1}', 100)
        {'id': 1}
    """
    if len(text) > max_bytes:
        raise ValueError(f"expected JSON of at most {max_bytes} bytes, got {len(text)}")
    check_bounds(text, max_depth, max_values)
    return orjson.loads(bytes(text))
