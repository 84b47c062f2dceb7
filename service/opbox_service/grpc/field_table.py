"""FieldTable: counts the fields of a message by gRPC on its bytes, before protobuf makes objects of them.

An empty field of 2 bytes takes a hundred when it has been read. A message nests as deep as its definition and no
deeper: protobuf keeps fields that it does not know as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError, LimitError

from .call import Message

__all__ = ["FieldTable", "number_of_varints", "unreadable", "wire_fields"]

_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}
"""Bytes of a value, by protobuf's wire type."""
_VARINTS = -1
_SHORT = 64
"""Bytes of a list from which on NumPy counts faster."""


@dataclass(slots=True)
class _Fields:
    """The fields of a message that have others inside.

    Attributes:
        messages: those that are messages, by number.
        packed: the size of a value of those that may be a list of numbers, by number.
        are_values: whether such lists are a tensor's values.
    """

    messages: dict[int, _Fields] = field(default_factory=dict)
    packed: dict[int, int] = field(default_factory=dict)
    are_values: bool = False


class FieldTable:
    """Counts the fields of a kind of messages.

    Args:
        descriptor: of the message.
        values: the name of the message whose packed lists are a tensor's values, which are counted apart.
    """

    def __init__(self, descriptor: Any, values: str = "") -> None:
        self._name = descriptor.full_name
        self._fields = _fields_of(descriptor, values)

    def count(self, data: Message, max_fields: int, max_values: int = 0) -> None:
        """Check the number of fields: with those inside others, of any number, and the values of packed lists.

        Raises:
            LimitError: there are more than `max_fields`, or than `max_values` of a tensor's values.
            BadRequestError: the bytes are no message.
        """
        fields = values = 0
        inside = [(self._fields, 0, len(data))]
        while inside:
            known, at, end = inside.pop()
            for number, _, begin, after, kind in wire_fields_with_kinds(data, at, end, self._name):
                fields += 1
                if kind == _LENGTH_DELIMITED:
                    if (message := known.messages.get(number)) is not None:
                        inside.append((message, begin, after))
                    elif (size := known.packed.get(number)) is not None:
                        count = number_of_varints(data, begin, after) if size == _VARINTS else (after - begin) // size
                        if known.are_values:
                            values += count
                        else:
                            fields += count
                if fields > max_fields:
                    raise LimitError(f"the message: expected at most {max_fields} fields, got more: send fewer")
                if values > max_values:
                    raise LimitError(
                        f"contents: expected at most {max_values} values, got more: send them in raw_input_contents"
                    )


def wire_fields(data: Message, at: int, end: int, name: str) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, where the field begins, where its value does, and its end.

    Args:
        data: has the message.
        at, end: where it is.
        name: of its kind, for the error.
    """
    for number, begin, value, after, _ in wire_fields_with_kinds(data, at, end, name):
        yield number, begin, value, after


def wire_fields_with_kinds(data: Message, at: int, end: int, name: str) -> Iterator[tuple[int, int, int, int, int]]:
    """As `wire_fields`, with protobuf's wire type."""
    while at < end:
        begin = at
        key, at = _varint(data, at, end, name)
        number, kind = key >> 3, key & 7
        if kind == _LENGTH_DELIMITED:
            size, at = _varint(data, at, end, name)
            after = at + size
        elif kind == 0:
            _, after = _varint(data, at, end, name)
        elif kind in _FIXED:
            after = at + _FIXED[kind]
        else:
            raise unreadable(data, name)
        if after > end or not number:
            raise unreadable(data, name)
        yield number, begin, at, after, kind
        at = after


def number_of_varints(data: Message, at: int, end: int) -> int:
    """How many integers of 7 bits a byte end between two places."""
    if end - at <= _SHORT:
        return sum(byte < 128 for byte in data[at:end])
    return int(np.count_nonzero(np.frombuffer(data, np.uint8)[at:end] < 128))


def unreadable(data: Message, name: str) -> BadRequestError:
    """The error of bytes that are no message."""
    return BadRequestError(f"the message: expected a {name}, got {len(data)} bytes that are none")


def _varint(data: Message, at: int, end: int, name: str) -> tuple[int, int]:
    """An integer of 7 bits a byte, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise unreadable(data, name)


def _fields_of(descriptor: Any, values: str) -> _Fields:
    fields = _Fields(are_values=descriptor.name == values)
    for entry in descriptor.fields:
        if entry.type == entry.TYPE_MESSAGE:
            fields.messages[entry.number] = _fields_of(entry.message_type, values)
        elif entry.type in (entry.TYPE_DOUBLE, entry.TYPE_FLOAT):
            fields.packed[entry.number] = 8 if entry.type == entry.TYPE_DOUBLE else 4
        elif entry.type not in (entry.TYPE_STRING, entry.TYPE_BYTES):
            fields.packed[entry.number] = _VARINTS
    return fields
