"""Writes ModelInferResponse from the answer that REST makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from .messages import message_class

__all__ = ["of_stream", "stream_error", "write_answer"]

_RESPONSE = message_class("ModelInferResponse")
_STREAMED = message_class("ModelStreamInferResponse")
_RAW_TAG = bytes([_RESPONSE.DESCRIPTOR.fields_by_name["raw_output_contents"].number << 3 | 2])
_ANSWER_TAG = bytes([_STREAMED.DESCRIPTOR.fields_by_name["infer_response"].number << 3 | 2])
_FINAL = _RESPONSE()
_FINAL.parameters["triton_final_response"].bool_param = True
_LAST = _FINAL.SerializeToString()
"""What a message of a stream has in addition: no other answers its request."""


def write_answer(head: bytes, payload: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The message with a model's outputs, in pieces: the tensors' bytes are where they were.

    Args:
        head: the answer's JSON.
        payload: the outputs' bytes: one piece with all of them, or a piece for each.
    """
    answer = orjson.loads(head)
    message = _RESPONSE(model_name=answer["model_name"], model_version=answer["model_version"])
    if answer.get("id") is not None:
        message.id = answer["id"]
    for key, value in answer.get("parameters", {}).items():
        _set(message.parameters[key], value)
    sizes = []
    for tensor in answer["outputs"]:
        output = message.outputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        parameters = tensor.get("parameters") or {}
        sizes.append(parameters.pop("binary_data_size", 0))  # 0: it is in shared memory
        for key, value in parameters.items():
            _set(output.parameters[key], value)
    # Parts of a message may follow each other in any order, so that protobuf need not copy the tensors.
    pieces: list[bytes | memoryview] = [message.SerializeToString()]
    for values, size in zip(_cut(payload, sizes), sizes, strict=True):
        pieces += [_RAW_TAG + _varint(size), values]
    return pieces


def of_stream(answer: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The message of a stream that has an answer, in pieces."""
    return [_ANSWER_TAG + _varint(sum(map(len, answer)) + len(_LAST)), *answer, _LAST]


def stream_error(sentence: str, request_id: str) -> bytes:
    """The message of a stream that says why a request has no answer."""
    message = _STREAMED(error_message=sentence, infer_response=_RESPONSE(id=request_id))
    data: bytes = message.SerializeToString()
    return data


def _set(parameter: Any, value: bool | int | float | str) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _cut(payload: Sequence[bytes | memoryview], sizes: Sequence[int]) -> Iterator[bytes | memoryview]:
    """A piece for each size."""
    if len(payload) == len(sizes) and [len(piece) for piece in payload] == [*sizes]:
        yield from payload
        return
    whole = memoryview(payload[0] if len(payload) == 1 else b"".join(payload))
    at = 0
    for size in sizes:
        yield whole[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    """An integer as protobuf writes it."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)
