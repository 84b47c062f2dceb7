"""Reads a `.proto` file into a descriptor, as protoc does; as much of the language as `inference.proto` has.

Modules that protoc writes run only with protobuf of its own version or the next; a descriptor runs with any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from google.protobuf import descriptor_pb2

__all__ = ["read_proto"]

_TOKEN = re.compile(r'//[^\n]*|\s+|("[^"]*"|[A-Za-z_][\w.]*|\d+|[{}()=;<>,])')
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}


def read_proto(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a file's messages, enumerations and service.

    Args:
        text: of the file.
        name: of the file.

    Example:
        >>> file = read_proto('syntax = "proto3"; package p; message M { repeated string a = 1; }', "m.proto")
        >>> file.message_type[0].field[0].name
        'a'
    """
    file = descriptor_pb2.FileDescriptorProto(name=name)
    reader = _Reader(text)
    while (word := reader.next()) is not None:
        if word == "syntax":
            reader.expect("=")
            file.syntax = reader.word().strip('"')
            reader.expect(";")
        elif word == "package":
            file.package = reader.word()
            reader.expect(";")
        elif word == "message":
            _read_message(reader, file.message_type.add())
        elif word == "enum":
            _read_enum(reader, file.enum_type.add())
        else:
            reader.expect_now("service", word)
            _read_service(reader, file.service.add(), file.package)
    _resolve(file)
    return file


class _Reader:
    """The words and signs of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = iter([token[1] for token in _TOKEN.finditer(text) if token[1] is not None])

    def next(self) -> str | None:
        """The next one; None at the end."""
        return next(self._tokens, None)

    def word(self) -> str:
        """The next one; ValueError at the end."""
        word = self.next()
        if word is None:
            raise ValueError("a .proto file: expected more, got its end")
        return word

    def expect(self, sign: str) -> None:
        """Go past a sign; ValueError where another comes."""
        self.expect_now(sign, self.word())

    def expect_now(self, sign: str, word: str) -> None:
        """Raise ValueError for a word that is not the sign."""
        if word != sign:
            raise ValueError(f"a .proto file: expected {sign!r}, got {word!r}")

    def block(self) -> Iterator[str]:
        """The first words of the statements between braces."""
        self.expect("{")
        while (word := self.word()) != "}":
            yield word

    def number(self) -> int:
        """The number behind `=`, and the end of the statement."""
        self.expect("=")
        number = int(self.word())
        self.expect(";")
        return number


def _read_message(reader: _Reader, message: descriptor_pb2.DescriptorProto) -> None:
    message.name = reader.word()
    for word in reader.block():
        if word == "message":
            _read_message(reader, message.nested_type.add())
        elif word == "enum":
            _read_enum(reader, message.enum_type.add())
        elif word == "oneof":
            message.oneof_decl.add(name=reader.word())
            for kind in reader.block():
                _read_field(reader, message, kind).oneof_index = len(message.oneof_decl) - 1
        else:
            _read_field(reader, message, word)


def _read_field(
    reader: _Reader, message: descriptor_pb2.DescriptorProto, word: str
) -> descriptor_pb2.FieldDescriptorProto:
    field = message.field.add(label=_FIELD.LABEL_OPTIONAL)
    if word == "map":
        reader.expect("<")
        key = reader.word()
        reader.expect(",")
        value = reader.word()
        reader.expect(">")
        field.name, field.label = reader.word(), _FIELD.LABEL_REPEATED
        entry = message.nested_type.add(name="".join(map(str.capitalize, field.name.split("_"))) + "Entry")
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
            _set_type(entry.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL), kind)
        field.type_name = entry.name
    else:
        if word == "repeated":
            field.label, word = _FIELD.LABEL_REPEATED, reader.word()
        _set_type(field, word)
        field.name = reader.word()
    field.number = reader.number()
    return field


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind


def _read_enum(reader: _Reader, enum: descriptor_pb2.EnumDescriptorProto) -> None:
    enum.name = reader.word()
    for word in reader.block():
        enum.value.add(name=word, number=reader.number())


def _read_service(reader: _Reader, service: descriptor_pb2.ServiceDescriptorProto, package: str) -> None:
    service.name = reader.word()
    for word in reader.block():
        reader.expect_now("rpc", word)
        method = service.method.add(name=reader.word())
        streams, method.input_type = _read_side(reader, package)
        if streams:  # as protoc does, which leaves out what is not so
            method.client_streaming = True
        reader.expect("returns")
        streams, method.output_type = _read_side(reader, package)
        if streams:
            method.server_streaming = True
        reader.expect(";")


def _read_side(reader: _Reader, package: str) -> tuple[bool, str]:
    """Whether a method's request or answer is a stream, and the full name of its message."""
    reader.expect("(")
    word = reader.word()
    streams = word == "stream"
    name = reader.word() if streams else word
    reader.expect(")")
    return streams, f".{package}.{name}"


def _resolve(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Give the fields whose type is a message or enumeration its full name."""
    kinds = {f".{file.package}.{enum.name}": _FIELD.TYPE_ENUM for enum in file.enum_type}

    def name_all(messages: object, scope: str) -> None:
        for message in messages:  # type: ignore[attr-defined]  # protobuf's lists have no type
            place = f"{scope}.{message.name}"
            kinds[place] = _FIELD.TYPE_MESSAGE
            kinds.update({f"{place}.{enum.name}": _FIELD.TYPE_ENUM for enum in message.enum_type})
            name_all(message.nested_type, place)

    def resolve_all(messages: object, scope: str) -> None:
        for message in messages:  # type: ignore[attr-defined]
            place = f"{scope}.{message.name}"
            for field in message.field:
                if field.type_name:
                    field.type_name = _full_name(field.type_name, place, kinds)
                    field.type = kinds[field.type_name]
            resolve_all(message.nested_type, place)

    name_all(file.message_type, f".{file.package}")
    resolve_all(file.message_type, f".{file.package}")


def _full_name(name: str, place: str, kinds: dict[str, int]) -> str:
    """The nearest definition of a name, seen from a message."""
    while f"{place}.{name}" not in kinds:
        if not place:
            raise ValueError(f"a .proto file: expected a type, got {name!r}, which is none")
        place = place.rpartition(".")[0]
    return f"{place}.{name}"
