"""Frames between the tests and MXNet's process: a length, a JSON header, and the raw bytes of its arrays."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

import numpy as np

__all__ = ["receive", "send"]

LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, header: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
    """Write one frame."""
    contiguous = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in (arrays or {}).items()}
    described = {name: [array.dtype.name, list(array.shape)] for name, array in contiguous.items()}
    text = json.dumps({**header, "arrays": described}).encode()
    stream.write(LENGTH.pack(len(text)) + text)
    for array in contiguous.values():
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read one frame; EOFError when the other side is gone."""
    header = json.loads(_exactly(stream, LENGTH.unpack(_exactly(stream, LENGTH.size))[0]))
    arrays = {}
    for name, (dtype, shape) in header.pop("arrays").items():
        count = int(np.prod(shape, dtype=int))
        body = _exactly(stream, count * np.dtype(dtype).itemsize)
        arrays[name] = np.frombuffer(bytearray(body), np.dtype(dtype)).reshape(shape)
    return header, arrays


def _exactly(stream: BinaryIO, size: int) -> bytes:
    body = stream.read(size)
    if len(body) != size:
        raise EOFError("the other process has ended")
    return body
