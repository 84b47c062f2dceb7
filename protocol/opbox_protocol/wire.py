"""The wire format, for both sides: a JSON header, then the tensors' bytes.

A frame is a JSON object (UTF-8, padded with spaces to a multiple of 64 bytes) followed by the raw bytes of its tensors:
little-endian, row-major, each starting on a 64-byte boundary counted from the start of the frame. The header's length
travels beside the frame (HTTP header `Inference-Header-Content-Length`). The header lists tensors under `inputs` (of a
request) or `outputs` (of an answer) as in the Open Inference Protocol:

    {"name": "data", "shape": [2, 3], "datatype": "FP32", "parameters": {"binary_data_size": 24}}

A tensor without `binary_data_size` carries its values as a (nested or flat) list under `data`; values that JSON has no
numbers for are the strings "NaN", "Infinity" and "-Infinity" there, as in protobuf's JSON. A frame of the Open
Inference Protocol has no gaps between tensors; one written here says `"parameters": {"tensor_alignment": 64}` in its
header. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .datatypes import DATATYPES, datatype_of, dtype_of
from .errors import WireError
from .excerpt import excerpt
from .frame_header import NO_LIMITS, Limits, decode_header
from .strict_json import strict_json

__all__ = [
    "ALIGNMENT",
    "ANSWERED",
    "BODY_PARTS",
    "CALL",
    "HEADER_LENGTH",
    "PART",
    "PREFER",
    "RECEIVED",
    "RUNNING",
    "ZSTD",
    "Frame",
    "Limits",
    "TensorPlace",
    "datatype_in_answer",
    "decode",
    "decode_header",
    "encode",
    "frame_size",
    "tensors_at",
    "values_of",
]

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header that carries the length of the JSON part, in bytes."""
CALL = "Opbox-Call"
"""The HTTP header that numbers a call: made again under its number, it gets the answer of the first time."""
ANSWERED = "Opbox-Answered"
"""The HTTP header that says up to which number all answers have come."""
PART = "Opbox-Part"
"""The HTTP header of a part of a numbered call's body: its first byte, a slash, and the bytes of the whole body."""
PREFER = "Prefer"
"""The HTTP header that says, as in `wait=45`, after how many seconds a numbered call is answered that still runs."""
RECEIVED, RUNNING = "received", "running"
"""Fields of an answer 202: the bytes of the body that are here; and the number of a call that still runs."""
BODY_PARTS = "opbox_body_parts"
"""The extension, in the answer of `GET /v2`, of a server that takes bodies in parts."""
ZSTD = "opbox_zstd"
"""The extension of a server that takes bodies with `Content-Encoding: zstd`, and answers so."""
ALIGNMENT = 64

_quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Return a string as JSON."""
_INTEGERS = {int}
_ALIGNED = f'"parameters":{{"tensor_alignment":{ALIGNMENT}}}'
_BEYOND = 2.0**63
"""From here on parsers of JSON have floats for integers that their type does not hold, and those are others."""
_BYTES_END = 2**63
"""NumPy's arrays have fewer bytes, counted as if no size were 0."""
_SPELLED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
LISTED = 1 << 15
"""Number of JSON values to convert into an array at a time."""


class TensorPlace(NamedTuple):
    """The position of a tensor in a frame.

    Attributes:
        offset, size: bytes behind the header; size is None where the values stand in the header.
        values: those, in lists.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    size: int | None
    values: Any = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A decoded frame.

    Attributes:
        header: as it came.
        tensors: by name, in order; views of the body, not copies.
        places: where they lie in it.
    """

    header: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]
    places: Sequence[TensorPlace] = ()


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def encode(
    header: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    key: str = "outputs",
    write: Callable[[Mapping[str, Any]], str] = strict_json,
) -> tuple[bytes, list[memoryview]]:
    """The frame as its header's bytes and the buffers that follow it, padding included; tensors are not copied.

    Args:
        header: further keys of the JSON object; `key` is filled in here.
        tensors: arrays by name, of a datatype of the wire; made contiguous and little-endian if they are not.
        key: "inputs" for a request, "outputs" for an answer.
        write: makes JSON of the header's further keys.

    Returns:
        The header (its length is what HEADER_LENGTH announces) and the buffers to write behind it, in order.

    Raises:
        WireError: an element type that cannot travel.
    """
    described: list[str] = []
    buffers: list[memoryview] = []
    for name, array in tensors.items():
        datatype = datatype_of(array.dtype)
        raw = np.ascontiguousarray(array, dtype=DATATYPES[datatype])
        nbytes = raw.nbytes
        # A writer of JSON takes several times as long for a description as the rest does for a small tensor.
        described.append(
            f'{{"name":{_quoted(name)},"shape":[{",".join(map(str, array.shape))}],"datatype":"{datatype}",'
            f'"parameters":{{"binary_data_size":{nbytes}}}}}'
        )
        if nbytes:
            if buffers and len(buffers[-1]) % ALIGNMENT:
                buffers.append(memoryview(bytes(-len(buffers[-1]) % ALIGNMENT)))
            buffers.append(raw.reshape(-1).view(np.uint8).data)
    fields = [f'"{key}":[{",".join(described)}]']
    if header:
        parameters = header.get("parameters", {})
        rest = {name: value for name, value in header.items() if name not in (key, "parameters")}
        if rest:
            fields.insert(0, write(rest)[1:-1])
        if described:
            parameters = {**parameters, "tensor_alignment": ALIGNMENT}
        if parameters or "parameters" in header:
            fields.append('"parameters":' + strict_json(parameters))
    elif described:
        fields.append(_ALIGNED)
    text = ("{" + ",".join(fields) + "}").encode()
    return text.ljust(_padded(len(text))), buffers


def values_of(array: np.ndarray[Any, Any]) -> memoryview:
    """A tensor's bytes: little-endian and row-major; a copy where the array's are not.

    Byte strings travel as the Open Inference Protocol's BYTES: 4 bytes of length before each.

    Raises:
        WireError: an element type that cannot travel.
    """
    if array.dtype.kind == "S":
        return memoryview(b"".join(len(text).to_bytes(4, "little") + text for text in array.reshape(-1).tolist()))
    raw = np.ascontiguousarray(array, dtype=DATATYPES[datatype_of(array.dtype)])
    return memoryview(raw.reshape(-1).view(np.uint8).data)


def datatype_in_answer(array: np.ndarray[Any, Any]) -> str:
    """The name of an array's element type; BYTES for byte strings, which no request has.

    Raises:
        WireError: an element type that cannot travel.
    """
    return "BYTES" if array.dtype.kind == "S" else datatype_of(array.dtype)


def frame_size(head: bytes, buffers: Sequence[memoryview]) -> int:
    """Bytes of an encoded frame."""
    return len(head) + sum(len(buffer) for buffer in buffers)


def decode(body: Any, header_length: int | None = None, *, key: str = "inputs", limits: Limits = NO_LIMITS) -> Frame:
    """Read a frame. The tensors are views of `body`, which must live as long as they do.

    Args:
        body: the whole frame, bytes-like.
        header_length: bytes of the JSON part; None when the whole body is JSON.
        key: "inputs" or "outputs".
        limits: what to refuse.

    Raises:
        WireError, LimitError: one sentence on what does not fit.
    """
    view = memoryview(body).cast("B")
    subject = "header"
    if header_length is None:
        header_length, subject = len(view), "body"
    if not 0 <= header_length <= len(view):
        raise WireError(f"{HEADER_LENGTH}: expected at most the body's {len(view)} bytes, got {header_length}")
    header = decode_header(view[:header_length], limits, subject)
    payload = view[header_length:]
    places = tensor_places(header, len(payload), header_length, key, limits)
    return Frame(header, tensors_at(places, payload), places)


def tensor_places(
    header: Mapping[str, Any], nbytes: int, start: int, key: str, limits: Limits
) -> Sequence[TensorPlace]:
    """Return the positions of the tensors of `header[key]` in `nbytes` bytes, which begin at `start` in the frame."""
    entries = header.get(key, [])
    if not isinstance(entries, list):
        raise WireError(f"{key}: expected a list of tensors, got {type(entries).__name__}")
    if len(entries) > limits.tensors:
        raise WireError(f"{key}: expected at most {limits.tensors} tensors, got {len(entries)}")
    parameters = header.get("parameters")
    aligned = isinstance(parameters, dict) and parameters.get("tensor_alignment") == ALIGNMENT
    places: dict[str, TensorPlace] = {}
    offset = 0
    for position, entry in enumerate(entries):
        name, shape, dtype, size = _described(entry, f"{key}[{position}]", limits)
        if name in places:
            raise WireError(f"tensor {name!r} is given twice: names must differ")
        if size is None:
            places[name] = TensorPlace(name, shape, dtype, 0, None, entry.get("data"))
            continue
        if aligned and size:
            offset += -(start + offset) % ALIGNMENT
        if offset + size > nbytes:
            raise WireError(f"tensor {name!r}: expected {size} bytes behind the header, got {max(nbytes - offset, 0)}")
        places[name] = TensorPlace(name, shape, dtype, offset, size)
        offset += size
    if offset != nbytes:
        raise WireError(f"body: expected {start + offset} bytes for its header and tensors, got {start + nbytes}")
    return [*places.values()]


def tensors_at(places: Sequence[TensorPlace], payload: memoryview) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors by name: views of `payload`, which follows the header, or new arrays of values in that."""
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, shape, dtype, offset, size, values in places:
        if size is None:
            tensors[name] = _listed(name, shape, dtype, values)
            continue
        try:
            tensors[name] = (
                np.frombuffer(payload[offset : offset + size], dtype).reshape(shape) if size else np.empty(shape, dtype)
            )
        except ValueError as error:
            raise WireError(f"tensor {name!r}: cannot be read as {dtype} of shape {shape}: {error}") from None
    return tensors


def _described(entry: Any, where: str, limits: Limits) -> tuple[str, tuple[int, ...], np.dtype[Any], int | None]:
    if not isinstance(entry, dict):
        raise WireError(f"{where}: expected an object with name, shape and datatype, got {type(entry).__name__}")
    name, shape = entry.get("name"), entry.get("shape")
    if not isinstance(name, str):
        raise WireError(f"{where}: name: expected a string, got {excerpt(name)}")
    if not isinstance(shape, list) or not _are_sizes(shape):
        raise WireError(f"tensor {name!r}: shape: expected a list of integers of 0 or more, got {excerpt(shape)}")
    if len(shape) > limits.rank:
        raise WireError(f"tensor {name!r}: expected at most {limits.rank} dimensions, got {len(shape)}")
    if entry.get("datatype") == "BYTES":
        raise WireError(
            f"tensor {name!r}: datatype: expected numbers ({', '.join(DATATYPES)}), got BYTES: no model takes texts"
        )
    dtype = dtype_of(entry.get("datatype"))
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > limits.tensor_bytes:
        raise WireError(f"tensor {name!r}: expected at most {limits.tensor_bytes} bytes, got {nbytes} by its shape")
    if not nbytes and math.prod(filter(None, shape)) * dtype.itemsize >= _BYTES_END:
        raise WireError(
            f"tensor {name!r}: shape: expected sizes whose product, zeros left out, is less than 2**63 bytes, got "
            f"{tuple(shape)}"
        )
    parameters = entry.get("parameters", {})
    if not isinstance(parameters, dict):
        raise WireError(f"tensor {name!r}: parameters: expected an object, got {type(parameters).__name__}")
    size = parameters.get("binary_data_size")
    if size is None:
        return name, tuple(shape), dtype, None
    if "data" in entry:
        raise WireError(f"tensor {name!r}: expected either data or binary_data_size, got both")
    if type(size) is not int or size != nbytes:
        raise WireError(
            f"tensor {name!r}: binary_data_size: expected {nbytes} by its shape and datatype, got {excerpt(size)}"
        )
    return name, tuple(shape), dtype, size


def _are_sizes(shape: list[Any]) -> bool:
    # Without a frame of Python's for each size, as a generator takes.
    return _INTEGERS.issuperset(map(type, shape)) and min(shape, default=0) >= 0


def _listed(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], data: Any) -> np.ndarray[Any, Any]:
    if not isinstance(data, list):
        raise WireError(f"tensor {name!r}: expected a list under data, got {type(data).__name__}")
    try:
        array = _array(name, data, dtype).reshape(-1)
    except (ValueError, TypeError, OverflowError):
        raise WireError(f"tensor {name!r}: expected numbers of {dtype} under data, in even rows") from None
    if array.size != math.prod(shape):
        raise WireError(f"tensor {name!r}: expected {math.prod(shape)} values for shape {shape}, got {array.size}")
    return array.reshape(shape)


def _array(name: str, data: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Nested lists as an array, from pieces of at most LISTED values where it can be: others have turns in between.

    Raises:
        ValueError: rows of different lengths.
    """
    row, values = data[0] if data else None, 1
    while type(row) is list:
        values, row = values * max(len(row), 1), row[0] if row else None
    if values > LISTED:
        if not all(type(row) is list for row in data):
            raise ValueError("rows and values side by side")
        return np.stack([_array(name, row, dtype) for row in data])
    rows = LISTED // values
    if len(data) <= rows:
        return _values(name, data, dtype)
    return np.concatenate([_values(name, data[at : at + rows], dtype) for at in range(0, len(data), rows)])


def _values(name: str, data: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    values = np.asarray(data, dtype=object if dtype.kind in "iub" else None)
    if dtype.kind in "iub":
        whole = [_whole(name, value, dtype) for value in values.reshape(-1).tolist()]
        return np.asarray(whole, dtype).reshape(values.shape)
    if values.dtype.kind not in "fiub" and values.size:
        values = np.asarray(data, dtype=object)
        values = np.asarray([_real(name, value) for value in values.reshape(-1)]).reshape(values.shape)
    with np.errstate(over="ignore"):  # what is larger than its type's numbers becomes infinite
        return values.astype(dtype)


def _real(name: str, value: Any) -> float:
    """A number, or the name of one that JSON has none for."""
    number = _SPELLED.get(value) if isinstance(value, str) else value
    if not isinstance(number, int | float):
        raise WireError(
            f'tensor {name!r}: expected numbers under data, or "NaN", "Infinity", "-Infinity", got {excerpt(value, 40)}'
        )
    return float(number)


def _whole(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        if value in (0, 1):
            return bool(value)
        raise WireError(f"tensor {name!r}: expected booleans under data, got {excerpt(value, 40)}")
    if isinstance(value, float) and value.is_integer() and abs(value) < _BEYOND:
        value = int(value)
    if type(value) not in (int, bool) and not (isinstance(value, float) and value.is_integer()):
        raise WireError(f"tensor {name!r}: expected integers under data, got {excerpt(value, 40)}")
    bounds = np.iinfo(dtype)
    if not bounds.min <= value <= bounds.max or isinstance(value, float):
        raise WireError(f"tensor {name!r}: expected values of {dtype} ({bounds.min} to {bounds.max}), got {value}")
    return value
