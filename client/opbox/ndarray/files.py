"""Files of arrays, in MXNet's binary format: lists, or arrays by name (`.params`).

    u64 0x112, u64 0, u64 count, arrays, u64 names, (u64 length, bytes) a name
    array: u32 0xF993FAC9, i32 storage type 0, u32 rank, i64 sizes, i32 device, i32 device number, i32 type, the values

Earlier versions of the format (without storage type; sizes of 32 bits) are read too. All little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import DamagedFileError, MXNetError
from opbox_protocol.mxnet import TYPES

from ..base import value_text
from ..context import current_context
from ..file_errors import file_errors, path_of
from ..numpy_mode import is_np_shape
from .array import NDArray, from_host

__all__ = ["load", "load_frombuffer", "read_arrays", "save"]

LIST_MAGIC = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
MAX_RANK = 32


def save(fname: str | Path, data: Any) -> None:
    """Write an array, a list of arrays, or a dict of arrays by name.

    Raises:
        TypeError: something else.
        FileError: the file cannot be written.
    """
    path = path_of(fname, "save: fname")
    names: list[str] = []
    if hasattr(data, "asnumpy"):
        arrays = [data]
    elif isinstance(data, Mapping):
        names, arrays = list(data), list(data.values())
    elif isinstance(data, Sequence) and not isinstance(data, str):
        arrays = list(data)
    else:
        raise TypeError(f"save: expected an NDArray, a list of them or a dict of them by name, got {data!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"save: expected names that are strings, got {value_text(name)}")
    for array in arrays:
        if not hasattr(array, "asnumpy"):
            raise TypeError(f"save: expected NDArrays only, got {value_text(array)}: mx.nd.array(…) makes one")
    # All are asked for before the first is waited for: one request.
    pending = [a._fetch_async() if isinstance(a, NDArray) else None for a in arrays]
    values = [p.result() if p is not None else a.asnumpy() for p, a in zip(pending, arrays, strict=True)]
    chunks = [struct.pack("<QQQ", LIST_MAGIC, 0, len(values))]
    for array in values:
        chunks += _written(array)
    chunks.append(struct.pack("<Q", len(names)))
    for name in names:
        raw = name.encode()
        chunks += [struct.pack("<Q", len(raw)), raw]
    with file_errors(fname, "written"), path.open("wb") as file:
        file.writelines(chunks)


def _written(values: np.ndarray[Any, Any]) -> list[Any]:
    if values.dtype not in TYPES:
        raise MXNetError(f"save: expected one of MXNet's element types, got {values.dtype}")
    # The second version takes rank 0 and sizes of 0 for unknown; the third has them, and is all that MXNet reads in
    # numpy mode.
    magic = V3 if is_np_shape() or values.ndim == 0 or 0 in values.shape else V2
    head = struct.pack("<IiI", magic, 0, values.ndim) + struct.pack(f"<{values.ndim}q", *values.shape)
    return [head, struct.pack("<iii", 1, 0, TYPES.index(values.dtype)), np.ascontiguousarray(values).tobytes()]


def record(values: np.ndarray[Any, Any]) -> bytes:
    """An array as `save` and MXNet's pickles have it: its shape, its type and its values."""
    return b"".join(_written(values))


def of_record(raw: bytes, what: str) -> np.ndarray[Any, Any]:
    """The array of a record.

    Raises:
        MXNetError: the bytes are none; `what` says of what they are.
    """
    return _FieldReader(memoryview(raw), what).array()


def load(fname: str | Path) -> Any:
    """Read a file of `save`, or of MXNet: a dict when it has names, a list otherwise.

    Raises:
        FileError: it cannot be read.
        DamagedFileError: it is none, or cut off; an MXNetError as of MXNet.
    """
    path = path_of(fname, "load: fname")
    with file_errors(path, "read"):
        buffer = path.read_bytes()
    return load_frombuffer(buffer, what=str(fname))


def load_frombuffer(buf: Any, what: str = "buffer") -> Any:
    """Read arrays from the bytes of a file."""
    values, names = read_arrays(buf, what)
    session = current_context().session
    arrays = [from_host(value, session) for value in values]
    return dict(zip(names, arrays, strict=True)) if names else arrays


def read_arrays(buf: Any, what: str) -> tuple[list[np.ndarray[Any, Any]], list[str]]:
    """The arrays of a file's bytes, and their names if it has some. No session is needed.

    Raises:
        MXNetError: the bytes are no file of arrays; `what` says of what they are.
    """
    reader = _FieldReader(memoryview(buf).cast("B"), what)
    magic, _, count = reader.take("<QQQ")
    if magic != LIST_MAGIC:
        raise DamagedFileError(f"{what}: expected a file of arrays as mx.nd.save writes it, got other bytes")
    values = [reader.array() for _ in range(count)]
    names = [reader.name() for _ in range(reader.take("<Q")[0])]
    if names and len(names) != len(values):
        raise DamagedFileError(f"{what}: expected {len(values)} names, got {len(names)}")
    return values, names


class _FieldReader:
    """Takes fields from the front of a buffer."""

    def __init__(self, buffer: memoryview, what: str) -> None:
        self._buffer = buffer
        self._at = 0
        self._what = what

    def bytes(self, size: int) -> bytes:
        if not 0 <= size <= len(self._buffer) - self._at:
            raise DamagedFileError(
                f"{self._what}: expected {size} more bytes, got {len(self._buffer) - self._at}: it is cut off, "
                "or no file of mx.nd.save's"
            )
        self._at += size
        return bytes(self._buffer[self._at - size : self._at])

    def name(self) -> str:
        raw = self.bytes(self.take("<Q")[0])
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise DamagedFileError(f"{self._what}: expected an array's name in UTF-8, got {raw[:40]!r}") from None

    def take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def array(self) -> np.ndarray[Any, Any]:
        magic = self.take("<I")[0]
        if magic in (V2, V3):
            stype = self.take("<i")[0]
            if stype != 0:
                raise DamagedFileError(f"{self._what}: expected dense arrays, got storage type {stype}")
        rank = self.take("<I")[0] if magic in (V1, V2, V3) else magic
        if rank > MAX_RANK:
            raise DamagedFileError(
                f"{self._what}: expected at most {MAX_RANK} dimensions, got {rank}: it is no file of arrays"
            )
        shape = self.take(f"<{rank}{'q' if magic in (V1, V2, V3) else 'I'}")
        if rank == 0 and magic != V3:
            return np.zeros((0,), np.float32)
        flag = self.take("<iii")[2]
        if not 0 <= flag < len(TYPES):
            raise DamagedFileError(f"{self._what}: expected an element type from 0 to {len(TYPES) - 1}, got {flag}")
        if any(size < 0 for size in shape):
            raise DamagedFileError(f"{self._what}: expected sizes of 0 or more, got {shape}")
        dtype = TYPES[flag]
        size = dtype.itemsize
        for dimension in shape:
            size *= dimension
        values = np.frombuffer(bytearray(self.bytes(size)), dtype)
        try:
            return values.reshape(shape)
        except ValueError:  # one size is 0, and the product of the others is too large
            raise DamagedFileError(f"{self._what}: expected sizes that an array can have, got {shape}") from None
