"""Around an engine: reads a raw request, makes the call, and lays its answer out as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from opbox_protocol import wire
from opbox_protocol.errors import LimitError, error_to_json

from .carriers import Answer, Call, RawRequest, RawResponse, Rest
from .engine import Engine
from .routes.models import Body
from .settings import Settings
from .validation import validate

__all__ = ["error_response", "lay_out", "limits_of", "read", "serve"]

Send: TypeAlias = "Callable[[RawResponse], None]"


def limits_of(settings: Settings) -> wire.Limits:
    """What the reader of frames refuses."""
    return wire.Limits(
        header_bytes=settings.max_header_bytes,
        tensor_bytes=min(settings.max_body_bytes, settings.max_elements * 8),
        tensors=settings.max_tensors,
        rank=settings.max_rank,
        json_depth=settings.max_json_depth,
    )


def serve(engine: Engine, request: RawRequest, limits: wire.Limits, send: Send) -> Rest:
    """Make a call; `send` gets the answer, by this thread or another. What is returned is left to do (Engine.begin)."""

    def done(answer: Answer | BaseException) -> None:
        send(lay_out(answer, request))

    try:
        call = read(request, limits)
    except Exception as error:
        done(error)
        return None
    return engine.begin(call, done)


def read(request: RawRequest, limits: wire.Limits) -> Call:
    """The call that a raw request makes.

    Raises:
        WireError, BadRequestError, LimitError: what does not fit, in one sentence.
    """
    body, length = request.view, request.header_length
    header: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    if len(body):
        if length is None:
            # All of it is JSON, numbers included: the body's own limit holds.
            limits = wire.Limits(len(body), limits.tensor_bytes, limits.tensors, limits.rank, limits.json_depth)
        elif length > limits.header_bytes:
            raise LimitError(f"header: expected at most {limits.header_bytes} bytes, got {length}")
        frame = wire.decode(body, length, limits=limits)
        header, tensors = frame.header, frame.tensors
    route = request.route
    return Call(
        route, request.parameters, validate(route.request or Body, header), tensors, request.owner, request.scopes
    )


def lay_out(answer: Answer | BaseException, request: RawRequest) -> RawResponse:
    """An answer's bytes; valid as long as its tensors are."""
    try:
        if isinstance(answer, BaseException):
            return error_response(answer)
        if answer.text is not None:
            return RawResponse(answer.status, [answer.text], content_type=answer.content_type)
        if answer.tensors and request.binary:
            head, buffers = wire.encode(answer.header, answer.tensors)
            return RawResponse(answer.status, [head, *buffers], len(head), answer.commands)
        header = answer.header
        if answer.tensors or (request.route.tensors and answer.status == 200):
            header = wire.plain_json(header, answer.tensors)
        return RawResponse(answer.status, [_json(header)], None, answer.commands)
    except Exception as error:
        return error_response(error)


def error_response(error: BaseException) -> RawResponse:
    """An error's answer, without the request's id, which the API process adds."""
    status, header = error_to_json(error)
    return RawResponse(status, [_json(header)], problem=error if status == 500 else None)


def _json(header: Any) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False, default=str).encode("utf-8", "replace")
