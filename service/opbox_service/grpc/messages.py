"""The messages of the Open Inference Protocol by gRPC, made from `inference.proto` when this is imported."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from opbox_protocol.errors import BadRequestError

from .proto_text import read_proto

__all__ = ["FILE", "METHODS", "SERVICE", "message_class", "parse"]

FILE = read_proto(files(__package__).joinpath("inference.proto").read_text(encoding="utf-8"), "opbox/inference.proto")
"""The descriptor of `inference.proto`."""
_pool = descriptor_pool.DescriptorPool()  # another client's messages in this process have the same names
_pool.Add(FILE)
SERVICE = f"{FILE.package}.{FILE.service[0].name}"
METHODS = {method.name: method for method in FILE.service[0].method}
"""The service's methods by name."""


def message_class(name: str) -> Any:
    """The class of a message.

    Example:
        >>> message_class("ModelReadyRequest")(name="lenet").name
        'lenet'
    """
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{FILE.package}.{name.rpartition('.')[2]}"))


def parse(kind: Any, data: bytes) -> Any:
    """A message of a kind.

    Raises:
        BadRequestError: the bytes are none.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise BadRequestError(
            f"the message: expected a {kind.DESCRIPTOR.full_name}, got {len(data)} bytes that are none"
        ) from None
