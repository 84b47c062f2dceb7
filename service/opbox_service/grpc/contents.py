"""Reads InferTensorContents: a tensor's values as a list of numbers.

Packed lists, as clients write them, become arrays without an object for each number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .field_table import number_of_varints, unreadable, wire_fields_with_kinds
from .messages import message_class, parse

__all__ = ["read_contents"]

_CONTENTS = message_class("InferTensorContents")
_FIELDS = {field.number: field for field in _CONTENTS.DESCRIPTOR.fields}
_NAME = _CONTENTS.DESCRIPTOR.full_name
_PACKED = 2
_BLOCK_BYTES = 1 << 16
"""Bytes of a list to read at a time: what reads them takes many times as much."""
_DTYPES = {
    "bool_contents": np.dtype(np.bool_),
    "int_contents": np.dtype(np.int32),
    "int64_contents": np.dtype(np.int64),
    "uint_contents": np.dtype(np.uint32),
    "uint64_contents": np.dtype(np.uint64),
    "fp32_contents": np.dtype("<f4"),
    "fp64_contents": np.dtype("<f8"),
}


def read_contents(parts: Sequence[memoryview]) -> tuple[list[str], NDArray[Any]]:
    """The fields that contents have, by number, and the values of the only one.

    Args:
        parts: of the message, which may come in several.
    """
    lists: dict[int, list[NDArray[Any]]] = {}
    for part in parts:
        for number, begin, value, end, kind in wire_fields_with_kinds(part, 0, len(part), _NAME):
            field = _FIELDS.get(number)
            if field is None:
                continue
            dtype = _DTYPES.get(field.name)
            if kind != _PACKED or dtype is None:  # one value
                listed = getattr(parse(_CONTENTS, bytes(part[begin:end])), field.name)
                values = np.array(listed, dtype if dtype is not None else object)
            elif dtype.kind == "f":
                if (end - value) % dtype.itemsize:
                    raise unreadable(part, _NAME)
                values = np.frombuffer(part[value:end], dtype)
            else:
                values = _integers(part[value:end], dtype)
            if len(values):
                lists.setdefault(number, []).append(values)
    names = [_FIELDS[number].name for number in sorted(lists)]
    if len(names) != 1:
        return names, np.empty(0, np.uint8)
    (arrays,) = lists.values()
    return names, arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _integers(view: memoryview, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values of a packed list of integers, of which protobuf takes as many bits as the type has."""
    data = np.frombuffer(view, np.uint8)
    values = np.empty(number_of_varints(view, 0, len(view)), dtype)
    if len(data) and data[-1] >= 128:
        raise unreadable(view, _NAME)
    at = done = 0
    while at < len(data):
        ends = np.flatnonzero(data[at : at + _BLOCK_BYTES] < 128) + 1
        if not len(ends):
            raise unreadable(view, _NAME)
        starts = np.concatenate(([0], ends[:-1]))
        lengths = ends - starts
        if (longest := int(lengths.max())) > 10:
            raise unreadable(view, _NAME)
        numbers = np.zeros(len(ends), np.uint64)
        for place in range(longest):
            chosen = lengths > place
            digits = (data[at + starts[chosen] + place] & 127).astype(np.uint64)
            numbers[chosen] |= digits << np.uint64(7 * place)
        values[done : done + len(ends)] = numbers if dtype.kind == "u" and dtype.itemsize == 8 else _cut(numbers, dtype)
        done += len(ends)
        at += int(ends[-1])
    return values


def _cut(numbers: NDArray[np.uint64], dtype: np.dtype[Any]) -> NDArray[Any]:
    return numbers != 0 if dtype.kind == "b" else numbers.astype(dtype)
