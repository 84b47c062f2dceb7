"""Parses a raw request, calls the engine, and lays its answer out as bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

from opbox_ops.backend import device_error
from opbox_protocol import wire
from opbox_protocol.errors import LimitError, error_to_json

from . import json_text
from .buffers import INLINE
from .carriers import NO_LIMIT, Answer, AnswerLimit, Call, RawRequest, RawResponse, Rest
from .engine import Engine
from .logs import exceptions_of
from .memory_shares import HOST
from .models.known_requests import RecurringRequest, RequestKey
from .models.model_host import ModelHost
from .routes.models import Body
from .routes.route import Route, RunsOn
from .settings import Settings
from .stateless.recent_headers import LARGEST, ReadHeader, RecentHeaders
from .task import Task
from .validation import validate

__all__ = ["error_response", "infer_again", "lay_out", "limits_of", "read", "recurring_request", "serve"]

Send: TypeAlias = "Callable[[RawResponse], None]"
MAX_PATH = 256
"""Maximum number of characters in the path of a request that may come again."""
LARGE_JSON = 8 << 20
"""Parsed JSON of at least this many bytes is returned to the system when it is freed."""


def limits_of(settings: Settings) -> wire.Limits:
    """Return the limits of the reader of frames."""
    return wire.Limits(
        header_bytes=settings.max_header_bytes,
        tensor_bytes=min(settings.max_body_bytes, settings.max_elements * 8),
        tensors=settings.max_tensors,
        rank=settings.max_rank,
        json_depth=settings.max_json_depth,
        json_values=settings.max_json_values,
        json_keys=settings.max_json_keys,
        parse=json_text.parse,
    )


def answer_limit_of(settings: Settings, binary: bool) -> AnswerLimit:
    """Return the largest size of an answer, in bytes or in JSON."""
    return _answer_limit(settings.max_answer_bytes, None if binary else settings.max_json_values)


@lru_cache(maxsize=16)
def _answer_limit(nbytes: int, values: int | None) -> AnswerLimit:
    return AnswerLimit(nbytes, values)


def serve(engine: Engine, request: RawRequest, limits: wire.Limits, send: Send, task: Task | None = None) -> Rest:
    """Make a call; `send` gets the answer, by this thread or another. What is returned is left to do (Engine.begin).

    Args:
        engine: makes it.
        request: as it came.
        limits: see `limits_of`.
        send: takes the answer laid out.
        task: stops the work.
    """
    settings = engine.settings
    memory = engine.ledger.of(request.owner, HOST)
    json_bytes = 0  # of `memory`

    def done(answer: Answer | BaseException) -> None:
        nonlocal json_bytes
        response = lay_out(answer, request, settings)
        if json_bytes:
            memory.give(json_bytes)
            if json_bytes >= LARGE_JSON:
                engine.sessions.return_later(json_bytes, request)
            json_bytes = 0
        if response.status in (202, 429) and task is not None and task.turn is not None:
            response.queue = task.turn.outlook()
        if task is not None and task.stages is not None:
            response.stages = task.stages.end()
        send(response)

    def answered(response: RawResponse) -> None:
        if task is not None and task.stages is not None:
            response.stages = task.stages.end()
        send(response)

    try:
        recurring = recurring_request(request, engine.models)
        if recurring is not None and recurring.known is not None:
            engine.admit(request.owner, request.quota)
            infer_again(request, recurring, answered, done)
            return None
        taken = _parsed_bytes(request, settings)
        if taken:
            memory.take(taken)
            json_bytes = taken
        call = read(request, limits, settings, task, json_bytes, engine.recent_headers)
        call.recurring = None if recurring is None else recurring._replace(places=call.places)
    except Exception as error:
        done(error)
        return None
    return engine.begin(call, done)


def recurring_request(request: RawRequest, models: ModelHost) -> RecurringRequest | None:
    """The request for a model that a raw request is, if it may come again; with the one that came before."""
    data, length, reference = request.view, request.header_length, request.model
    if reference is None or not length or length > LARGEST or len(request.path) > MAX_PATH:
        return None
    if not request.route.tensors:
        return None
    # With the path itself, as an owner may call a model by two names, and an answer has the one of the request.
    key = RequestKey.of(request.owner, request.path, bytes(data[:length]))
    size = len(data) - length
    model = models.loaded(reference)
    return RecurringRequest(key, (), size, model, None if model is None else model.known_requests.get(key, size))


def infer_again(
    request: RawRequest,
    recurring: RecurringRequest,
    send: Send,
    fail: Callable[[Exception], None],
    *,
    waited_for: bool = False,
) -> None:
    """Run a model on the tensors of a request whose JSON came before.

    Args:
        request: what came.
        recurring: the same, with the one before.
        send: takes the answer laid out, by this thread or another.
        fail: takes an error instead.
        waited_for: whether other calls wait for this thread.
    """
    known, model, id = recurring.known, recurring.model, recurring.key.id
    assert known is not None
    assert model is not None

    def take(outputs: dict[str, Any]) -> None:
        head = known.head(id, outputs)
        payloads = [_payload(array) for array in outputs.values()]
        send(RawResponse(200, [head, *payloads], len(head)))

    try:
        tensors = wire.tensors_at(known.places, memoryview(request.view)[request.header_length :])
        form = known.form
        # It was as large before, and no larger than an answer may be.
        model.infer(request.owner, tensors, form.outputs, take, fail, NO_LIMIT, known.wishes, form, waited_for)
    except Exception as error:
        fail(error)


def _payload(array: Any) -> bytes | memoryview:
    """A tensor's bytes: a small one's copied, which takes less time than to make a view."""
    small = array.nbytes <= INLINE and array.dtype.kind in "fiub" and sys.byteorder == "little"
    return array.tobytes() if small else wire.values_of(array)


def _parsed_bytes(request: RawRequest, settings: Settings) -> int:
    """Bytes of memory that the request's JSON takes at most; 0 where it is to be refused for its size."""
    length = request.header_length
    size, most = (len(request.view), settings.max_json_bytes) if length is None else (length, settings.max_header_bytes)
    return 0 if size > most else json_text.parsed_bytes(size, settings.max_json_values, settings.max_json_keys)


def read(
    request: RawRequest,
    limits: wire.Limits,
    settings: Settings,
    task: Task | None = None,
    json_bytes: int = 0,
    recent: RecentHeaders | None = None,
) -> Call:
    """The call that a raw request makes, whose JSON takes `json_bytes` at most.

    Headers of calls without a session are looked for, and kept, in `recent`.

    Raises:
        WireError, BadRequestError, LimitError: what does not fit, in one sentence.
    """
    data, length, route = request.view, request.header_length, request.route
    text = None
    known = None
    if recent is not None and length is not None and length <= LARGEST and _recurs(route):
        text = bytes(data[:length])
        known = recent.get(request.owner, route.path, text, len(data))
    if length == 0 and route.takes_raw:
        return _raw_call(request, limits, settings, task)
    if known is None:
        frame = _frame(data, length, limits, settings)
        known = ReadHeader(validate(route.request or Body, frame.header), frame.places, len(data))
        tensors = frame.tensors
        if recent is not None and text is not None:
            known = recent.keep(request.owner, route.path, text, known)
    else:
        tensors = wire.tensors_at(known.places, memoryview(data)[length:])
    return Call(
        route,
        request.parameters,
        known.body,
        tensors,
        request.owner,
        request.scopes,
        answer_limit_of(settings, request.binary),
        task,
        request.quota,
        json_bytes,
        request.model,
        places=known.places,
    )


def _raw_call(request: RawRequest, limits: wire.Limits, settings: Settings, task: Task | None) -> Call:
    """The call of a request whose body is a model's input and nothing else."""
    raw, route = memoryview(request.view), request.route
    if len(raw) > limits.tensor_bytes:
        raise LimitError(f"body: expected at most {limits.tensor_bytes} bytes, got {len(raw)}")
    return Call(
        route,
        request.parameters,
        validate(route.request or Body, {"parameters": {"binary_data_output": True}}),
        {},
        request.owner,
        request.scopes,
        answer_limit_of(settings, request.binary),
        task,
        request.quota,
        model=request.model,
        raw=raw,
    )


def _recurs(route: Route) -> bool:
    """Return whether calls of a route come with the same header again: a session's have the number of their batch."""
    return route.tensors and route.runs_on in (RunsOn.ANY_WORKER, RunsOn.MODEL_WORKER)


def _frame(data: memoryview | bytes, length: int | None, limits: wire.Limits, settings: Settings) -> wire.Frame:
    if not len(data):
        return wire.Frame({}, {})
    if length is None:
        # All of it is JSON, numbers included: it has a limit of its own.
        most = settings.max_json_bytes
        if len(data) > most:
            raise LimitError(
                f"body: expected at most {most} bytes of JSON, got {len(data)}: send tensors as bytes behind a header"
            )
        limits = replace(limits, header_bytes=most)
    elif length > limits.header_bytes:
        raise LimitError(f"header: expected at most {limits.header_bytes} bytes, got {length}")
    return wire.decode(data, length, limits=limits)


def lay_out(answer: Answer | BaseException, request: RawRequest, settings: Settings) -> RawResponse:
    """An answer's bytes; valid as long as its tensors are."""
    try:
        if isinstance(answer, BaseException):
            return error_response(answer)
        if answer.text is not None or answer.stream is not None:
            return RawResponse(
                answer.status,
                [answer.text or b""],
                content_type=answer.content_type,
                headers=answer.headers,
                stream=answer.stream,
            )
        if answer.inferred is not None:
            return _lay_out_inferred(answer, answer.inferred, request, settings)
        answer_limit_of(settings, request.binary).check("the answer", answer.tensors.values())
        if answer.tensors and request.binary:
            head, buffers = wire.encode(answer.header, answer.tensors, write=json_text.text)
            return RawResponse(answer.status, [head, *buffers], len(head), answer.commands)
        parts: list[bytes | memoryview]
        if answer.tensors or (request.route.tensors and answer.status == 200):
            parts = [*json_text.write_tensors(answer.header, answer.tensors, request.non_finite)]
        else:
            parts = [*json_text.write_pieces(answer.header, request.non_finite)]
        size = sum(map(len, parts))
        if size > settings.max_json_bytes:
            raise LimitError(
                f"the answer: expected at most {settings.max_json_bytes} bytes of JSON, got {size}: ask for bytes "
                "(Accept: application/octet-stream), or for less at a time"
            )
        return RawResponse(answer.status, parts, None, answer.commands)
    except Exception as error:
        return error_response(error)


def _lay_out_inferred(answer: Answer, in_bytes: frozenset[str], request: RawRequest, settings: Settings) -> RawResponse:
    """The bytes of a model's answer: each tensor in JSON or behind it, without gaps, as the request asks."""
    listed = [array for name, array in answer.tensors.items() if name not in in_bytes]
    binary = {name: array for name, array in answer.tensors.items() if name in in_bytes}
    answer_limit_of(settings, True).check("the answer", binary.values())
    answer_limit_of(settings, False).check("the answer", listed)
    payloads = {name: wire.values_of(array) for name, array in binary.items()}
    head = b"".join(json_text.write_tensors(answer.header, answer.tensors, request.non_finite, payloads))
    if len(head) > settings.max_json_bytes:
        raise LimitError(
            f"the answer: expected at most {settings.max_json_bytes} bytes of JSON, got {len(head)}: ask for bytes "
            '("parameters": {"binary_data": true} of an output), or for less at a time'
        )
    if not in_bytes:
        return RawResponse(answer.status, [head])
    return RawResponse(answer.status, [head, *payloads.values()], len(head))


def error_response(error: BaseException) -> RawResponse:
    """An error's answer, without the request's id, which the API process adds."""
    error = device_error(error) or error
    status, header = error_to_json(error)
    return RawResponse(status, [json_text.write(header)], problem=exceptions_of(error) if status == 500 else None)
