"""JSON as the server reads and writes it: by a compiled parser, and large answers in pieces.

Text that holds NaN or Infinity bare, which JSON has not and Python's own writer does, is left to Python's own parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import orjson

from opbox_ops.pausing import pause
from opbox_protocol.collector import collection_paused
from opbox_protocol.strict_json import NonFinite, json_values, strict_json
from opbox_protocol.wire import datatype_in_answer

from .json_pieces import PIECE as PARSED_BYTES
from .json_pieces import parse_in_pieces

__all__ = ["parse", "parsed_bytes", "text", "write", "write_pieces", "write_tensors"]

SMALL = 1 << 16
"""JSON up to this many bytes is not counted against a quota."""
OBJECT_BYTES, VALUE_BYTES, TEXT_BYTES = 184, 72, 2
"""Maximum bytes of memory per key, per other value, and per character of strings."""
PIECE = 1 << 15
"""Number of values to write before other threads get their turn."""
ITEMS = 1024
"""Number of values of lists and objects to write before other threads get their turn: about 1 ms."""
_LISTS = frozenset([list, tuple])


def parsed_bytes(size: int, values: int, keys: int) -> int:
    """Bytes of memory that JSON of `size` bytes takes at most when it has been parsed, the text's copy included.

    Args:
        size: of the text.
        values, keys: the most that it may have; a value takes 2 bytes of the text at the least, a key 4.
    """
    if size <= SMALL:
        return 0
    return TEXT_BYTES * size + VALUE_BYTES * min(values, size // 2) + OBJECT_BYTES * min(keys, size // 4)


def parse(text: bytes) -> Any:
    """Parse a JSON text; ValueError when it is invalid, RecursionError when it is nested too deep for the parser."""
    if len(text) <= PARSED_BYTES:
        return _parse(text)
    with collection_paused():
        return parse_in_pieces(text, _parse)


def _parse(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        if "depth limit" in str(error) or "ecursion" in str(error):
            raise RecursionError from None
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    value = json.loads(text)
    if b"\\ud" in text or b"\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError: half a pair of surrogates
    return value


def write(value: Any, non_finite: NonFinite = "string") -> bytes:
    """A JSON text; what JSON has no form for is a string in it, and NaN and the infinities as `non_finite` says."""
    return b"".join(write_pieces(value, non_finite))


def text(value: Any) -> str:
    """As `strict_json`, with turns for other threads where the text is long."""
    return strict_json(value) if _size(value, ITEMS) <= ITEMS else write(value).decode()


def write_pieces(value: Any, non_finite: NonFinite = "string", *, items: int = ITEMS) -> Iterator[bytes]:
    """The pieces of what `write` returns: Python's writer keeps the interpreter's lock for as long as it writes one.

    Args:
        value, non_finite: as of `write`.
        items: the most values of a piece.
    """
    if _size(value, items) <= items:
        yield strict_json(value, non_finite, str).encode("utf-8", "replace")
        return
    has_keys = type(value) is dict
    group: dict[Any, Any] = {}
    size, separator = 0, b"{" if has_keys else b"["
    for key, item in value.items() if has_keys else enumerate(value):
        larger = _size(item, items)
        if size and size + larger > items:
            pause()
            yield separator + _members(group, non_finite, has_keys=has_keys)
            group, size, separator = {}, 0, b","
        if larger <= items:
            group[key] = item
            size += larger
            continue
        # Of an object with this key alone, without its value and brackets.
        yield separator + (_members({key: 0}, non_finite, has_keys=True)[:-1] if has_keys else b"")
        yield from write_pieces(item, non_finite, items=items)
        separator = b","
    if group:
        yield separator + _members(group, non_finite, has_keys=has_keys)
    yield b"}" if has_keys else b"]"


def _members(group: Mapping[Any, Any], non_finite: NonFinite, *, has_keys: bool) -> bytes:
    """The text of some of an object's members, or of a list's, without brackets."""
    value = group if has_keys else [*group.values()]
    return strict_json(value, non_finite, str).encode("utf-8", "replace")[1:-1]


def _size(value: Any, most: int) -> int:
    """Return how many values JSON has, itself and those in it; counted up to `most`."""
    items = value.values() if type(value) is dict else value if type(value) in _LISTS else ()
    size = 1 + len(items)
    if size <= most:
        for item in items:
            if type(item) is dict or type(item) in _LISTS:
                size += _size(item, most - size) - 1
                if size > most:
                    break
    return size


def write_tensors(
    header: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    non_finite: NonFinite = "string",
    in_bytes: Mapping[str, memoryview] = MappingProxyType({}),
) -> Iterator[bytes]:
    """The pieces of one JSON object: `header`, and under `outputs` the tensors with their values in flat lists.

    Of those in `in_bytes` only the number of bytes is written. An array of byte strings is of the type BYTES.
    """
    head = write(dict(header), non_finite)[:-1]
    yield head + (b"," if len(head) > 1 else b"") + b'"outputs":['
    written: dict[int, list[bytes]] = {}
    for position, (name, array) in enumerate(tensors.items()):
        described: dict[str, Any] = {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatype_in_answer(array),
        }
        if name in in_bytes:
            described["parameters"] = {"binary_data_size": in_bytes[name].nbytes}
            yield (b"," if position else b"") + write(described)
            continue
        yield (b"," if position else b"") + write(described)[:-1] + b',"data":['
        pieces = written.get(id(array))
        if pieces is None:
            pieces = written[id(array)] = list(_values(array, non_finite))
        yield from pieces
        yield b"]}"
    yield b"]}"


def _values(array: np.ndarray[Any, Any], non_finite: NonFinite) -> Iterator[bytes]:
    flat = array.reshape(-1)
    if flat.dtype.kind == "S":
        yield write([text.decode("utf-8", "replace") for text in flat.tolist()])[1:-1]
        return
    for start in range(0, flat.size, PIECE):
        pause()
        piece = flat[start : start + PIECE]
        if piece.dtype == ml_dtypes.bfloat16:
            piece = piece.astype(np.float32)
        if piece.dtype.kind != "f" or np.isfinite(piece).all():
            text = orjson.dumps(np.ascontiguousarray(piece), option=orjson.OPT_SERIALIZE_NUMPY)
        else:
            text = write(json_values(piece, non_finite))
        yield (b"," if start else b"") + text[1:-1]
