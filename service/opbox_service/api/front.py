"""In front of every route: request id, authentication, how many at a time, errors, metrics, logs.

The routes that carry tensors go from here straight to the endpoint; FastAPI's own layers cost as much as the call.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections import Counter
from typing import Any

import structlog

from opbox_protocol.errors import NotReadyError, QuotaError, error_to_json

from ..settings import Settings
from .endpoint import Context, Disconnected, Endpoint, Receive, Scope, Send
from .identity import Identity, Tokens
from .metrics import Metrics

__all__ = ["Front", "send_error"]

OPEN = frozenset({"/v2/health/live"})
"""What needs no token."""
HOT = frozenset({"/v1/forward", "/v1/backward", "/v1/infer_shape", "/v1/infer_type"})
NOBODY = Identity("", frozenset())

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")
_log = structlog.get_logger("opbox.requests")


class Front:
    """An ASGI app around another.

    Args:
        app: FastAPI, for what is not a hot route.
        endpoint: the hot routes.
        settings, metrics: of the server.
    """

    def __init__(self, app: Any, endpoint: Endpoint, settings: Settings, metrics: Metrics) -> None:
        self.app = app
        self._endpoint = endpoint
        self._settings = settings
        self._metrics = metrics
        self._tokens = Tokens(settings)
        self._in_flight: Counter[str] = Counter()
        self._total = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        headers = dict(scope["headers"])
        context = scope["opbox"] = Context(_request_id(headers), NOBODY, headers)
        problem: BaseException | None = None
        try:
            await self._serve(scope, receive, send, context)
        except Disconnected:
            context.status = 499
        except Exception as error:
            problem = error
            if context.started:
                raise
            await send_error(error, context, _telling(send, context))
        finally:
            seconds = time.perf_counter() - begun
            self._metrics.count(scope["method"], scope["path"], context.status, seconds, context.received, context.sent)
            if context.status >= 400 or self._settings.log_requests:
                _tell(scope, context, seconds, problem)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, context: Context) -> None:
        path: str = scope["path"]
        if path not in OPEN:
            identity = context.identity = self._tokens.identify(context.headers.get(b"authorization"))
            if path.startswith("/v1/"):
                identity.require("run")
        owner = context.identity.owner
        self._check_in_flight(owner)
        self._in_flight[owner] += 1
        self._total += 1
        try:
            if scope["method"] == "POST" and (path in HOT or path.endswith("/commands")):
                await self._endpoint(scope, receive, send)
            else:
                await self.app(scope, receive, _telling(send, context))
        finally:
            self._total -= 1
            self._in_flight[owner] -= 1
            if not self._in_flight[owner]:
                del self._in_flight[owner]

    def _check_in_flight(self, owner: str) -> None:
        told = self._settings
        if self._in_flight[owner] >= told.max_in_flight_per_owner:
            limit = told.max_in_flight_per_owner
            raise QuotaError(f"requests: expected at most {limit} of an owner at a time: wait for one to end")
        if self._total >= told.max_in_flight:
            raise NotReadyError(f"requests: expected at most {told.max_in_flight} at a time: try again in a moment")

    @property
    def in_flight(self) -> int:
        """Requests being answered."""
        return self._total


def _request_id(headers: dict[bytes, bytes]) -> str:
    """The client's X-Request-Id when it is one, or a new one."""
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return secrets.token_hex(8)


def _telling(send: Send, context: Context) -> Send:
    """`send`, which adds the request id and notes what is answered."""

    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            context.status = message["status"]
            context.started = True
            given = [pair for pair in message.get("headers", []) if pair[0].lower() != b"x-request-id"]
            message = {**message, "headers": [*given, (b"x-request-id", context.request_id.encode())]}
        else:
            context.sent += len(message.get("body", b""))
        await send(message)

    return wrapped


async def send_error(error: BaseException, context: Context, send: Send, status: int | None = None) -> None:
    """Answer with an error, in the one form that errors have; with another `status` than its own if one is given."""
    usual, told = error_to_json(error)
    status = status or usual
    body = json.dumps({**told, "request_id": context.request_id}, ensure_ascii=False, default=str).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if context.closes:
        headers.append((b"connection", b"close"))
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _tell(scope: Scope, context: Context, seconds: float, problem: BaseException | None) -> None:
    level = _log.error if context.status >= 500 else _log.info
    facts: dict[str, Any] = {
        "request_id": context.request_id,
        "method": scope["method"],
        "path": scope["path"],
        "status": context.status,
        "ms": round(seconds * 1e3, 3),
        "owner": context.identity.owner,
        "received": context.received,
        "sent": context.sent,
    }
    if problem is not None:
        facts["error"] = str(problem)[:500]
        if context.status == 500:
            facts["exc_info"] = problem
    level("request", **facts)
