"""Reads the JSON header of a frame, within limits that are checked before much is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import LimitError, WireError

__all__ = ["MAX_RANK", "NO_LIMITS", "Limits", "counted", "decode_header"]

MAX_RANK = 32
COUNTED_BYTES = 1 << 18
"""Bytes of JSON to count at a time; other threads run in between."""
_NEITHER = bytes(set(range(256)) - set(b'"\\[]{}'))
"""All bytes but quotes, backslashes and brackets."""
_NESTING = np.zeros(256, np.int8)
_NESTING[[*b"[{"]], _NESTING[[*b"]}"]] = 1, -1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a frame's reader, checked before anything is allocated.

    Attributes:
        header_bytes: of the JSON part.
        json_values, json_keys: in it; commas and brackets inside strings count as if they were JSON's own.
        json_depth: of its nesting.
        tensor_bytes, rank: of a tensor.
        tensors: of a frame.
        parse: reads JSON; ValueError where it is none.
    """

    header_bytes: int = 16 << 20
    tensor_bytes: int = 4 << 30
    tensors: int = 4096
    rank: int = MAX_RANK
    json_depth: int = 64
    json_values: int = 2_000_000
    json_keys: int = 1_000_000
    parse: Callable[[bytes], Any] = json.loads


NO_LIMITS = Limits(header_bytes=1 << 40, tensor_bytes=1 << 50, tensors=1 << 31, json_values=1 << 40, json_keys=1 << 40)


def decode_header(text: bytes | memoryview, limits: Limits = NO_LIMITS, subject: str = "header") -> dict[str, Any]:
    """The JSON object of a frame, its size and depth checked; `subject` names it in errors.

    Raises:
        WireError: not UTF-8, not JSON, not an object, too long or too deep.
        LimitError: too many values or keys, counted before any is made.
    """
    if len(text) > limits.header_bytes:
        raise WireError(f"{subject}: expected at most {limits.header_bytes} bytes, got {len(text)}")
    _count(text, limits)
    raw = bytes(text)
    most = limits.json_depth
    try:
        header = limits.parse(raw)
        deep = _opened(raw) > most and _deeper(raw, header, most)
    except RecursionError:
        deep = True
    except ValueError as error:
        raise WireError(f"{subject}: expected a JSON object, got malformed JSON: {error}") from None
    if deep:
        raise WireError(f"{subject}: expected JSON nested at most {most} deep, got more")
    if not isinstance(header, dict):
        raise WireError(f"{subject}: expected a JSON object, got {type(header).__name__}")
    return header


def counted(text: bytes | memoryview) -> tuple[int, int]:
    """Return how many values and keys a JSON text has at the most, counted by commas, brackets and colons."""
    counts = (1, 0)
    for counts in _running_counts(text):  # noqa: B007  (the last ones)
        pass
    return counts


def _running_counts(text: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """The numbers of values and keys so far, piece by piece."""
    characters = np.frombuffer(text, np.uint8)
    values, keys = 1, 0
    for start in range(0, len(characters), COUNTED_BYTES):
        piece = characters[start : start + COUNTED_BYTES]
        values += sum(int(np.count_nonzero(piece == mark)) for mark in b",[{")
        keys += int(np.count_nonzero(piece == ord(":")))
        yield values, keys


def _count(text: bytes | memoryview, limits: Limits) -> None:
    """Raise LimitError if JSON has too many values or keys."""
    if len(text) < min(limits.json_values, limits.json_keys):
        return  # each takes a byte
    for values, keys in _running_counts(text):
        if values > limits.json_values:
            raise LimitError(
                f"JSON: expected at most {limits.json_values} values, got more: send tensors as bytes behind a header"
            )
        if keys > limits.json_keys:
            raise LimitError(f"JSON: expected at most {limits.json_keys} keys, got more: send less at a time")


def _opened(text: bytes) -> int:
    """Return the number of opening brackets."""
    starts = range(0, len(text), COUNTED_BYTES)
    return sum([text.count(mark, start, start + COUNTED_BYTES) for start in starts for mark in (b"[", b"{")])


def _deeper(text: bytes, parsed: Any, most: int) -> bool:
    """Return whether JSON is nested more than `most` deep."""
    brackets = _brackets(text)
    if brackets is None:
        return _depth(parsed, most) > most
    return bool(np.cumsum(_NESTING[brackets], dtype=np.int32).max(initial=0) > most)


def _brackets(text: bytes) -> np.ndarray[Any, Any] | None:
    """The brackets of a valid JSON text, in order; None where strings may hold some, or backslashes."""
    pieces = [
        text[start : start + COUNTED_BYTES].translate(None, _NEITHER) for start in range(0, len(text), COUNTED_BYTES)
    ]
    # Strings without brackets and backslashes are pairs of quotes now. The first one with some leaves a quote here.
    marks = b"".join(pieces).replace(b'""', b"")
    return None if b'"' in marks or b"\\" in marks else np.frombuffer(marks, np.uint8)


def _depth(parsed: Any, limit: int) -> int:
    """Nesting of parsed JSON, level by level; counting stops just past `limit`.

    The parser itself refuses what would exhaust the stack.
    """
    depth = 0
    level = [parsed] if isinstance(parsed, dict | list) else []
    while level and depth <= limit:
        depth += 1
        inner: list[Any] = []
        for container in level:
            values = container.values() if type(container) is dict else container
            inner += [value for value in values if type(value) is dict or type(value) is list]
        level = inner
    return depth
