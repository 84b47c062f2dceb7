"""Checks the answers of a process that runs a session's code, before anybody gets them."""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import STATUSES, AuthenticationError, error_from_json, error_to_json

from .. import json_text
from ..carriers import RawRequest, RawResponse
from ..routes.models import Error
from ..routes.route import RunsOn
from ..routes.sessions import SessionAnswer, SessionState
from ..session.moving import MOVED
from ..settings import Settings
from .bounded_json import read_bounded

__all__ = ["LARGEST_ERROR", "check_answer", "read_opened", "read_state"]

LARGEST_ERROR = 1 << 20
"""Maximum bytes of an error's JSON object."""
OPENED_BYTES = 1 << 16
"""Maximum bytes of the description of a session."""
QUEUED = (202, 429)
"""Statuses of answers that say how long the queue is."""
ERRORS = STATUSES - {AuthenticationError.status, MOVED}
"""Statuses of errors that such a process may answer with: tokens are none of its business."""


def check_answer(request: RawRequest, response: RawResponse, settings: Settings) -> None:
    """Check an answer against its route, and leave only what the process may say.

    Raises:
        ValueError: no worker answers so.
    """
    route, status, size, length = request.route, response.status, response.size, response.header_length
    response.commands = min(response.commands, settings.max_commands)
    if status not in QUEUED:
        response.queue = None
    elif response.queue is not None:
        before, wait_s = response.queue
        response.queue = min(before, settings.max_in_flight), min(wait_s, settings.deadline_s)
    if status != 500 and response.problem is not None:
        raise ValueError(f"expected no exception with an answer of status {status}")
    if status == route.status or (status == 202 and route.accepted is not None):
        if length is not None and not (route.tensors and (request.binary or route.runs_on is RunsOn.MODEL_WORKER)):
            raise ValueError("expected an answer of JSON, got one of bytes")
        head = size if length is None else length
        if head > settings.max_json_bytes or size - head > settings.max_answer_bytes:
            raise ValueError(f"expected an answer within the server's limits, got {size} bytes")
        return
    if status not in ERRORS:
        raise ValueError(f"expected a status of {route.method} {route.path}, got {status}")
    if length is not None:
        raise ValueError("expected an error of JSON, got one of bytes")
    response.parts = [json_text.write(_error(status, read_bounded(response.body, LARGEST_ERROR)))]


def _error(status: int, body: Any) -> dict[str, Any]:
    """The fields of an error that the API process passes on."""
    if type(body) is not dict:
        raise ValueError(f"expected an error's JSON object, got {body!r:.80}")
    fields = Error.model_validate({**body, "request_id": ""}, strict=True).model_dump(exclude={"request_id"})
    error = error_from_json(status, fields)
    if isinstance(error, AuthenticationError):
        raise ValueError("expected an error of a worker's, got one of tokens")
    return error_to_json(error)[1]


def read_opened(response: RawResponse) -> dict[str, Any]:
    """The session that an answer describes.

    Raises:
        ValueError: it describes none.
    """
    return SessionAnswer.model_validate(read_bounded(response.body, OPENED_BYTES), strict=True).model_dump()


def read_state(response: RawResponse, opened: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A session as its process describes it, in what can be true of it.

    Args:
        response: the answer, a list with the session.
        opened: what the API process knows of the session.
        settings: the limits.

    Raises:
        ValueError, LookupError, TypeError: the answer describes no session.
    """
    row = read_bounded(response.body, OPENED_BYTES)["sessions"][0]
    device, nbytes = opened["device"], settings.code_memory_bytes
    state = SessionState.model_validate({**row, **opened, "bytes_by_device": {}}, strict=True).model_dump()
    limits: dict[str, float] = {
        "idle_s": settings.max_ttl_s,
        "wait_s": settings.deadline_s,
        "calls_before": settings.max_in_flight,
        "waiting": settings.max_waiting,
        "objects": settings.max_session_objects,
        "executors": settings.max_session_objects,
        "bytes": nbytes,
        "peak_bytes": nbytes,
    }
    for name, value in state.items():
        if type(value) in (int, float):
            most = limits.get(name, 1 << 53)
            if not 0 <= value <= most:
                state[name] = type(value)(most if value > most else 0)
    return {**state, "bytes_by_device": {device: state["bytes"]}}
