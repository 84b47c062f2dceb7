"""JSON as the server reads and writes it: by a compiled parser, and large answers in pieces.

Text that holds NaN or Infinity bare, which JSON has not and Python's own writer does, is left to Python's own parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import orjson

from opbox_protocol.collector import collection_paused
from opbox_protocol.datatypes import datatype_of
from opbox_protocol.strict_json import NonFinite, json_values, strict_json

from .json_pieces import PIECE as PARSED_BYTES
from .json_pieces import parse_in_pieces

__all__ = ["parse", "parsed_bytes", "write", "write_tensors"]

SMALL = 1 << 16
"""JSON up to this many bytes is not counted against a quota."""
OBJECT_BYTES, VALUE_BYTES, TEXT_BYTES = 184, 72, 2
"""Maximum bytes of memory per key, per other value, and per character of strings."""
PIECE = 1 << 15
"""Number of values to write before other threads get their turn."""


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
    return strict_json(value, non_finite, str).encode("utf-8", "replace")


def write_tensors(
    header: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]], non_finite: NonFinite = "string"
) -> Iterator[bytes]:
    """The pieces of one JSON object: `header`, and under `outputs` the tensors with their values in flat lists."""
    head = write(dict(header), non_finite)[:-1]
    yield head + (b"," if len(head) > 1 else b"") + b'"outputs":['
    written: dict[int, list[bytes]] = {}
    for position, (name, array) in enumerate(tensors.items()):
        described = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array.dtype)}
        yield (b"," if position else b"") + write(described)[:-1] + b',"data":['
        pieces = written.get(id(array))
        if pieces is None:
            pieces = written[id(array)] = list(_values(array, non_finite))
        yield from pieces
        yield b"]}"
    yield b"]}"


def _values(array: np.ndarray[Any, Any], non_finite: NonFinite) -> Iterator[bytes]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, PIECE):
        piece = flat[start : start + PIECE]
        if piece.dtype == ml_dtypes.bfloat16:
            piece = piece.astype(np.float32)
        if piece.dtype.kind != "f" or np.isfinite(piece).all():
            text = orjson.dumps(np.ascontiguousarray(piece), option=orjson.OPT_SERIALIZE_NUMPY)
        else:
            text = write(json_values(piece, non_finite))
        yield (b"," if start else b"") + text[1:-1]
