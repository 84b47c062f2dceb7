"""Reads ModelInferRequest: as the body of a request that REST makes, a JSON header and the tensors' bytes behind it.

The tensors' bytes are not copied: they stay where they are in the message. Everything else in a message takes many
times its size when protobuf has read it, so its fields are counted before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson

from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import BadRequestError, LimitError

from ..settings import Settings
from .call import Message
from .contents import read_contents
from .field_table import FieldTable, wire_fields
from .messages import message_class, parse

__all__ = ["InferBody", "InferRequestReader", "parameter_value"]

_REQUEST = message_class("ModelInferRequest")
_INPUT = _REQUEST.InferInputTensor
_NAME = _REQUEST.DESCRIPTOR.full_name
_INPUTS, _OUTPUTS, _RAW = (
    _REQUEST.DESCRIPTOR.fields_by_name[name].number for name in ("inputs", "outputs", "raw_input_contents")
)
_INPUT_CONTENTS = _INPUT.DESCRIPTOR.fields_by_name["contents"].number
_TABLE = FieldTable(_REQUEST.DESCRIPTOR, values="InferTensorContents")
_FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
"""The field of InferTensorContents that has the values of a datatype."""
MIN_FIELDS = 1000
FIELDS_OF_TENSOR = 8
"""Fields that a request may have for each of its tensors: name, type, dimensions, parameters."""


class InferBody(NamedTuple):
    """A body.

    Attributes:
        model, version: what it is for; the version may be empty.
        id: of the request.
        header: the JSON.
        tensors: the bytes behind it, in pieces.
    """

    model: str
    version: str
    id: str
    header: bytes
    tensors: Sequence[bytes | memoryview]


@dataclass(slots=True)
class _MessageParts:
    """The parts of a ModelInferRequest.

    Attributes:
        inputs: each without its contents, and those.
        raw: raw_input_contents.
        rest: everything else, as protobuf has it.
    """

    inputs: list[tuple[Any, list[memoryview]]] = field(default_factory=list)
    raw: list[memoryview] = field(default_factory=list)
    rest: Any = None


class InferRequestReader:
    """Reads ModelInferRequest within limits.

    Args:
        settings: has them.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_tensors = settings.max_tensors
        self._max_fields = max(MIN_FIELDS, FIELDS_OF_TENSOR * settings.max_tensors)
        self._max_header_bytes = settings.max_header_bytes
        self._max_contents_bytes = settings.max_json_bytes
        self._max_values = settings.max_json_values

    def read(self, message: Message) -> InferBody:
        """Read a message.

        Args:
            message: as it came.

        Raises:
            BadRequestError: it is no ModelInferRequest, or its tensors contradict their description; one sentence.
            LimitError: it is too large.
        """
        parts = self._split(message)
        request = parts.rest
        parameters = {key: parameter_value(key, value) for key, value in request.parameters.items()}
        inputs, tensors = _tensors(parts)
        header: dict[str, Any] = {
            "parameters": {**parameters, "binary_data_output": True},
            "inputs": inputs,
        }
        if request.id:
            header["id"] = request.id
        if len(request.outputs):
            header["outputs"] = [_output(output) for output in request.outputs]
        return InferBody(request.model_name, request.model_version, request.id, orjson.dumps(header), tensors)

    def _split(self, message: Message) -> _MessageParts:
        """The parts of a message, after a look at their sizes."""
        _TABLE.count(message, self._max_fields, self._max_values)
        parts, view = _MessageParts(), memoryview(message)
        rest: list[memoryview] = []
        outputs, described, contents = 0, 0, 0
        for number, begin, value, end in wire_fields(message, 0, len(message), _NAME):
            if number == _RAW:
                parts.raw.append(view[value:end])
                continue
            if number == _INPUTS:
                of_input = [*wire_fields(message, value, end, _NAME)]
                texts = [view[first:last] for inner, first, _, last in of_input if inner != _INPUT_CONTENTS]
                values = [view[first:last] for inner, _, first, last in of_input if inner == _INPUT_CONTENTS]
                contents += sum(map(len, values))
                described += sum(map(len, texts))
                self._check("inputs", len(parts.inputs) + 1, self._max_tensors, "tensors")
                self._check("the request without its tensors", described, self._max_header_bytes, "bytes")
                parts.inputs.append((parse(_INPUT, b"".join(texts)), values))
                continue
            outputs += number == _OUTPUTS
            described += end - begin
            rest.append(view[begin:end])
        self._check("outputs", outputs, self._max_tensors, "tensors")
        self._check("raw_input_contents", len(parts.raw), self._max_tensors, "tensors")
        self._check("the request without its tensors", described, self._max_header_bytes, "bytes")
        if contents > self._max_contents_bytes:
            raise LimitError(
                f"contents: expected at most {self._max_contents_bytes} bytes of values, got {contents}: send them in "
                "raw_input_contents"
            )
        parts.rest = parse(_REQUEST, b"".join(rest))
        return parts

    @staticmethod
    def _check(subject: str, size: int, limit: int, unit: str) -> None:
        if size > limit:
            raise LimitError(f"{subject}: expected at most {limit} {unit}, got {size}")


def parameter_value(key: str, parameter: Any) -> Any:
    """A parameter's value, as JSON has it.

    Raises:
        BadRequestError: it has none.
    """
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        raise BadRequestError(f"parameters: {key[:80]!r}: expected a value, got none")
    return getattr(parameter, choice)


def _output(output: Any) -> dict[str, Any]:
    """An output that is asked for, as JSON has it."""
    parameters = {key: parameter_value(key, value) for key, value in output.parameters.items()}
    parameters.pop("binary_data", None)  # every tensor comes as bytes
    return {"name": output.name, "parameters": parameters} if parameters else {"name": output.name}


def _tensors(parts: _MessageParts) -> tuple[list[dict[str, Any]], list[bytes | memoryview]]:
    """The inputs as JSON describes them, and the bytes of those whose values the message has."""
    described: list[dict[str, Any]] = []
    tensors: list[bytes | memoryview] = []
    raw = iter(parts.raw)
    shared = 0
    for tensor, contents in parts.inputs:
        parameters = {key: parameter_value(key, value) for key, value in tensor.parameters.items()}
        entry: dict[str, Any] = {"name": tensor.name, "shape": [*tensor.shape], "datatype": tensor.datatype}
        if "shared_memory_region" in parameters:
            shared += 1
            parameters.pop("binary_data_size", None)
            if contents:
                raise BadRequestError(f"input {tensor.name!r}: expected no contents beside shared memory, got some")
        else:
            values = _values(tensor, contents, parts.raw, next(raw, None))
            parameters["binary_data_size"] = len(values)
            tensors.append(values)
        if parameters:
            entry["parameters"] = parameters
        described.append(entry)
    if parts.raw and len(parts.raw) != len(parts.inputs) - shared:
        raise BadRequestError(
            f"raw_input_contents: expected {len(parts.inputs) - shared}, one for each input"
            f"{' that is not in shared memory' if shared else ''}, got {len(parts.raw)}"
        )
    return described, tensors


def _values(
    tensor: Any, contents: list[memoryview], all_raw: Sequence[memoryview], raw: memoryview | None
) -> bytes | memoryview:
    """An input's bytes, from raw_input_contents or its contents."""
    dtype = DATATYPES.get(tensor.datatype)
    whole = dtype is not None and all(length >= 0 for length in tensor.shape)
    size = math.prod(tensor.shape) * dtype.itemsize if dtype is not None and whole else None
    if all_raw:
        if contents:
            raise BadRequestError(
                f"input {tensor.name!r}: expected no contents beside raw_input_contents, got some: send either"
            )
        values: bytes | memoryview = b"" if raw is None else raw
        if raw is not None and size is not None and len(raw) != size:
            raise BadRequestError(
                f"input {tensor.name!r}: raw_input_contents: expected {size} bytes by its shape and datatype, got "
                f"{len(raw)}"
            )
        return values
    if dtype is None or size is None:  # the reader of the body says what is wrong
        return b""
    if not contents and size:
        raise BadRequestError(f"input {tensor.name!r}: expected its values in raw_input_contents or contents, got none")
    return _listed(tensor, contents, dtype)


def _listed(tensor: Any, contents: list[memoryview], dtype: np.dtype[Any]) -> bytes:
    """The bytes of values that stand in an input's contents."""
    name, expected = tensor.name, _FIELDS.get(tensor.datatype)
    got, values = read_contents(contents)
    if expected is None and got:
        raise BadRequestError(f"input {name!r}: expected {tensor.datatype} in raw_input_contents, got {got[0]}")
    if expected is not None and got not in ([], [expected]):
        wrong = next(field for field in got if field != expected)
        raise BadRequestError(f"input {name!r}: contents: expected {expected} for {tensor.datatype}, got {wrong}")
    count = math.prod(tensor.shape)
    if len(values) != count:
        raise BadRequestError(f"input {name!r}: contents: expected {count} values by its shape, got {len(values)}")
    bounds = None if dtype.kind not in "iu" else np.iinfo(dtype)
    if bounds is not None and count and not bounds.min <= int(values.min()) <= int(values.max()) <= bounds.max:
        outside = next(value for value in values.tolist() if not bounds.min <= value <= bounds.max)
        raise BadRequestError(
            f"input {name!r}: contents: expected values of {tensor.datatype} ({bounds.min} to {bounds.max}), got "
            f"{outside}"
        )
    return values.astype(dtype, copy=False).tobytes()
