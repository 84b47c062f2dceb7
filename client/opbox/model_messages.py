"""Requests for models, and their answers, as the Open Inference Protocol has them over HTTP.

Tensors travel as bytes both ways, one behind the other. Nothing here sends, and nothing is opbox's own: any server that
speaks the protocol understands the requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES, datatype_of, dtype_of
from opbox_protocol.errors import MXNetError, WireError, error_from_json
from opbox_protocol.strict_json import strict_json
from opbox_protocol.transport import Reply

from .http_messages import Received, read_reply, with_pause

__all__ = ["encode_json", "encode_request", "read_object", "read_outputs"]

Array = np.ndarray[Any, Any]


def encode_json(body: Mapping[str, Any]) -> tuple[dict[str, str], list[Any]]:
    """The headers and the body of a request that is a JSON object."""
    text = strict_json(body).encode()
    return {"Content-Type": "application/json", "Content-Length": str(len(text))}, [text]


def encode_request(
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None,
    classes: Mapping[str, int],
    parameters: Mapping[str, Any],
) -> tuple[dict[str, str], list[Any]]:
    """The headers and the body of a request for outputs, in pieces that are the arrays' own memory.

    Args:
        inputs: arrays by input; byte strings and texts travel as BYTES.
        outputs: the names of those that are wanted; None for the model's own choice.
        classes: the number of classes to tell instead of values, by output.
        parameters: of the request.

    Raises:
        WireError: an array of a type that cannot travel.
    """
    described, buffers = [], []
    for name, array in inputs.items():
        datatype, values = _values(array)
        size = {"binary_data_size": len(values)}
        described.append({"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": size})
        if len(values):
            buffers.append(values)
    header: dict[str, Any] = {"inputs": described}
    wanted = [*(outputs or ()), *(name for name in classes if name not in (outputs or ()))]
    if wanted:
        header["outputs"] = [
            {"name": name, "parameters": {"binary_data": True, **_classification(classes.get(name))}} for name in wanted
        ]
    header["parameters"] = {"binary_data_output": True, **parameters}
    text = strict_json(header).encode()
    head = text.ljust(-(-len(text) // wire.ALIGNMENT) * wire.ALIGNMENT)  # the server need not copy the first tensor
    headers = {
        "Content-Type": "application/octet-stream",
        wire.HEADER_LENGTH: str(len(head)),
        "Content-Length": str(wire.frame_size(head, buffers)),
    }
    return headers, [head, *buffers]


def read_outputs(
    received: Received, address: str, method: str, path: str, sent: int, *, tls: bool, reached: bool
) -> Reply | MXNetError:
    """Return the outputs of an answer, with its JSON object, or the error that it tells; see `read_reply`.

    Raises:
        MXNetError: the answer is not of the protocol.
    """
    reply = read_object(received, address, method, path, sent, tls=tls, reached=reached)
    if isinstance(reply, MXNetError) or received.status != 200:
        return reply
    return Reply(reply.header, _outputs(reply.header, memoryview(received.body)[_json_size(received) :]))


def read_object(
    received: Received, address: str, method: str, path: str, sent: int, *, tls: bool, reached: bool
) -> Reply | MXNetError:
    """Return the JSON object of an answer, a list as its "rows", or the error that it tells; see `read_reply`.

    Raises:
        MXNetError: the answer is not of the protocol.
    """
    try:
        header = json.loads(bytes(memoryview(received.body)[: _json_size(received)]) or b"{}")
    except ValueError:
        header = None
    if received.status < 300 and isinstance(header, dict | list):
        return Reply(header if isinstance(header, dict) else {"rows": header})
    if received.status >= 400 and isinstance(header, dict) and isinstance(header.get("error"), str):
        return with_pause(error_from_json(received.status, header), received)
    return read_reply(received, address, method, path, sent, tls=tls, reached=reached)


def _json_size(received: Received) -> int:
    length = received.headers.get(wire.HEADER_LENGTH, "")
    return int(length) if length.isdecimal() else len(received.body)


def _classification(count: int | None) -> dict[str, int]:
    return {} if count is None else {"classification": count}


def _values(array: Array) -> tuple[str, Any]:
    """An array's datatype and its bytes."""
    if array.dtype.kind not in "OSU":
        raw = np.ascontiguousarray(array, dtype=DATATYPES[datatype_of(array.dtype)])
        return datatype_of(array.dtype), memoryview(raw.reshape(-1).view(np.uint8).data)
    texts = [text.encode() if isinstance(text, str) else text for text in array.reshape(-1).tolist()]
    stray = next((text for text in texts if not isinstance(text, bytes)), None)
    if stray is not None:
        raise WireError(f"expected numbers, bytes or texts in an array, got {type(stray).__name__}")
    return "BYTES", b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _outputs(header: Mapping[str, Any], payload: memoryview) -> dict[str, Array]:
    """The outputs by name: views of the answer's bytes; those of type BYTES are arrays of bytes objects."""
    outputs: dict[str, Array] = {}
    at = 0
    try:
        for row in header["outputs"]:
            shape, datatype = tuple(row["shape"]), row["datatype"]
            size = row.get("parameters", {}).get("binary_data_size")
            if size is None:
                values = np.array(row["data"], object if datatype == "BYTES" else dtype_of(datatype))
            elif datatype == "BYTES":
                values = _texts(payload[at : at + size], math.prod(shape))
            else:
                values = np.frombuffer(payload[at : at + size], dtype_of(datatype))
            at += size or 0
            outputs[row["name"]] = values.reshape(shape)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(
            f"the answer: outputs: expected tensors of the Open Inference Protocol, got another form ({error!r})"
        ) from None
    return outputs


def _texts(payload: memoryview, count: int) -> Array:
    texts = np.empty(count, object)
    at = 0
    for position in range(count):
        size = int.from_bytes(payload[at : at + 4], "little")
        texts[position] = bytes(payload[at + 4 : at + 4 + size])
        at += 4 + size
    if at != len(payload):
        raise ValueError(f"{count} texts of {at} bytes in {len(payload)}")
    return texts
