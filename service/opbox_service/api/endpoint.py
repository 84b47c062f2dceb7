"""The endpoint of all calls to the engine: raw ASGI, so that a tensor's bytes are copied as little as may be.

The body is received straight into the buffer that the worker maps; the answer is sent from the buffer that the worker
wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from opbox_protocol.errors import BadRequestError, CancelledError, LimitError, MXNetError, QuotaError
from opbox_protocol.wire import HEADER_LENGTH, NonFinite

from ..buffers import INLINE, Lease
from ..carriers import Answer, Call, RawRequest, RawResponse
from ..codec import lay_out
from ..routes.health import Place
from ..routes.route import Route, RunsOn
from ..settings import Settings
from ..worker.pool import WorkerPool
from .identity import Identity
from .metrics import Metrics

__all__ = ["ApiState", "RequestContext", "Disconnected", "Endpoint", "Receive", "Scope", "Send", "content_length"]

Scope: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[MutableMapping[str, Any]]]"
Send: TypeAlias = "Callable[[MutableMapping[str, Any]], Awaitable[None]]"

PIECE = 8 << 20
"""Bytes of an answer that a client has `stall_s` to read."""
TAIL = (1 << 16) + 1
"""More than the server's high-water mark for writing."""

WORTH_COMPRESSING = 4096
"""Bytes of an answer from which on it is compressed for a client that asks."""
WATCHED_S = 0.05
"""How long a request may take before its client is watched."""

_NON_FINITE = re.compile(rb"non-finite\s*=\s*\"?(string|null)\b", re.IGNORECASE)
USUAL_URGENCY = 3
"""Of requests that state none (RFC 9218, header `Priority: u=3`); those of a greater number go behind."""

_URGENCY = re.compile(rb"(?:^|[,\s])u=([0-7])(?![0-9])")
_DIGITS = re.compile(rb"[0-9]{1,18}")
_HEADER_LENGTH = HEADER_LENGTH.lower().encode()


class Disconnected(Exception):
    """The client went away before its request was whole."""


@dataclass(slots=True)
class RequestContext:
    """One request on its way through the API process: its id, caller and route, and what its answer was.

    Attributes:
        route, parameters: its route, and the parameters in its path; None when it has no route.
        received, sent: bytes of the bodies.
        started: whether the answer has been begun.
        whole: whether all of the request's body has been read.
        error: the sentence that it is answered with, for the log.
    """

    request_id: str
    identity: Identity
    headers: dict[bytes, bytes]
    route: Route | None
    parameters: Mapping[str, str]
    status: int = 0
    received: int = 0
    sent: int = 0
    started: bool = False
    whole: bool = False
    error: str = ""

    @property
    def closes(self) -> bool:
        """Whether the connection is to end with the answer: much of a body is still to come that nobody wants."""
        length = self.headers.get(b"content-length", b"0")
        much = b"transfer-encoding" in self.headers or len(length) > 6
        return much and not self.whole


class ApiState(Place, Protocol):
    """The parts of the API process that the endpoint and the middleware use."""

    stopping: bool

    @property
    def pool(self) -> WorkerPool:
        """Where calls run."""


class Endpoint:
    """Reads a request, makes the call, sends the answer.

    Args:
        server: the API process, and its workers.
        settings: the limits.
        metrics: counts commands.
    """

    def __init__(self, server: ApiState, settings: Settings, metrics: Metrics) -> None:
        self._server = server
        self._pool = server.pool
        self._settings = settings
        self._metrics = metrics
        self._under_way: dict[tuple[str, str], RawRequest] = {}
        self._bytes_of_owner: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request whose `scope["opbox"]` is its RequestContext, which has a route.

        Raises:
            MXNetError: the request was refused, or the call not brought to an end.
            Disconnected: the client is gone.
        """
        context: RequestContext = scope["opbox"]
        headers, identity, route = context.headers, context.identity, context.route
        assert route is not None
        request = RawRequest(
            route, context.parameters, scope["path"], identity.owner, identity.scopes, context.request_id
        )
        if route.runs_on is RunsOn.API:
            response = self._own_answer(request)
            context.whole = True
        else:
            length = content_length(headers)
            self._check_length(length)
            request.header_length = _header_length(headers, length, self._settings)
            accept = headers.get(b"accept", b"")
            request.binary = request.header_length is not None or b"application/octet-stream" in accept
            request.non_finite = _non_finite(accept)
            request.weight = identity.weight
            urgency = _URGENCY.search(headers.get(b"priority", b""))
            request.interactive = urgency is None or int(urgency[1]) <= USUAL_URGENCY
            with self._holding(identity.owner, length or 0):
                request.body = await self._body(request, length, headers, receive)
                context.whole = True
                context.received = len(request.view)
                response = await self._answer(request, receive)
        try:
            self._bytes_of_owner[identity.owner] += response.size
            if response.commands:
                self._metrics.count_commands(response.commands)
            context.status, context.sent = response.status, response.size
            if response.status >= 400:
                context.error = _sentence(response.body)
            elif response.size >= WORTH_COMPRESSING and response.header_length is None and _takes_gzip(headers):
                await _send_compressed(context, response, send)
                return
            await _send(context, response, send, self._settings.stall_s)
        finally:
            self._let_go(identity.owner, response.size)
            response.release()

    def _check_length(self, length: int | None) -> None:
        """LimitError for a body that is too large for anybody, whatever its owner may have just now."""
        limit = self._settings.max_body_bytes
        if length is not None and length > limit:
            raise LimitError(f"body: expected at most {limit} bytes, got {length}")

    @contextlib.contextmanager
    def _holding(self, owner: str, nbytes: int) -> Iterator[None]:
        """Count a body as its owner's in the block; QuotaError when the owner's bodies and answers are too many."""
        limit, used = self._settings.max_owner_buffer_bytes, self._bytes_of_owner.get(owner, 0)
        if used + nbytes > limit:
            raise QuotaError(
                f"transfer buffers: expected at most {limit} bytes of an owner's bodies and unread answers, got {used} "
                f"and {nbytes} more: read the answers, or wait for other requests to end"
            )
        self._bytes_of_owner[owner] += nbytes
        try:
            yield
        finally:
            self._let_go(owner, nbytes)

    def _let_go(self, owner: str, nbytes: int) -> None:
        self._bytes_of_owner[owner] -= nbytes
        if not self._bytes_of_owner[owner]:
            del self._bytes_of_owner[owner]

    async def _answer(self, request: RawRequest, receive: Receive) -> RawResponse:
        """The worker's answer. A client that goes away meanwhile, or another request, stops the work."""
        key = (request.owner, request.request_id)
        self._under_way[key] = request
        loop = asyncio.get_running_loop()
        watching: list[asyncio.Task[None]] = []
        # A task costs as much as a small call, so that only those get one that take a while.
        timer = loop.call_later(WATCHED_S, lambda: watching.append(loop.create_task(_watch(request, receive))))
        try:
            return await self._pool.call(request)
        finally:
            timer.cancel()
            for task in watching:
                task.cancel()
            if self._under_way.get(key) is request:
                del self._under_way[key]

    def cancel(self, owner: str, request_id: str) -> bool:
        """Stop a request of the owner's; False when there is none of that id."""
        request = self._under_way.get((owner, request_id))
        if request is None:
            return False
        request.cancel(CancelledError(f"{request}: cancelled by request"))
        return True

    def _own_answer(self, request: RawRequest) -> RawResponse:
        """The answer of a route that the API process serves itself."""
        answers: list[Answer | BaseException] = []
        call = Call(request.route, request.parameters, owner=request.owner)
        try:
            request.route.handler(self._server, call, answers.append)
        except MXNetError as error:
            answers.append(error)
        return lay_out(answers[0], request, self._settings)

    async def _body(
        self, request: RawRequest, length: int | None, headers: dict[bytes, bytes], receive: Receive
    ) -> Lease | bytes:
        limit = self._settings.max_body_bytes
        if length is None:
            if b"transfer-encoding" not in headers:
                return b""
            return self._leased(request, await _chunked(receive, limit))
        if length == 0:
            return b""
        if length <= INLINE:
            return await _small(receive, length)
        lease = self._pool.lease(request, length)
        try:
            await _receive_into(lease.view, receive)
        except BaseException:
            lease.release()
            raise
        return lease

    def _leased(self, request: RawRequest, body: bytes) -> Lease | bytes:
        """A body that came in pieces, where one of its length belongs."""
        if len(body) <= INLINE:
            return body
        lease = self._pool.lease(request, len(body))
        lease.view[:] = body
        return lease


async def _watch(request: RawRequest, receive: Receive) -> None:
    """Stop a request whose client goes away."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            request.cancel(CancelledError(f"{request}: its client went away"))
            return


def content_length(headers: dict[bytes, bytes]) -> int | None:
    """The Content-Length; None when there is none."""
    text = headers.get(b"content-length")
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise BadRequestError(f"Content-Length: expected a number of bytes, got {text[:40]!r}")
    return int(text)


def _header_length(headers: dict[bytes, bytes], length: int | None, settings: Settings) -> int | None:
    text = headers.get(_HEADER_LENGTH)
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise BadRequestError(f"{HEADER_LENGTH}: expected a number of bytes, got {text.decode('latin-1')[:40]!r}")
    header_length = int(text)
    if header_length > settings.max_header_bytes:
        raise LimitError(f"{HEADER_LENGTH}: expected at most {settings.max_header_bytes} bytes, got {header_length}")
    if length is not None and header_length > length:
        raise BadRequestError(f"{HEADER_LENGTH}: expected at most the body's {length} bytes, got {header_length}")
    return header_length


async def _small(receive: Receive, length: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
    if len(body) != length:
        raise BadRequestError(f"body: expected {length} bytes, as Content-Length says, got {len(body)}")
    return body


async def _receive_into(view: memoryview, receive: Receive) -> None:
    at, size = 0, len(view)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        end = at + len(chunk)
        if end > size:
            raise BadRequestError(f"body: expected {size} bytes, as Content-Length says, got more")
        view[at:end] = chunk
        at = end
        if not message.get("more_body", False):
            break
    if at != size:
        raise BadRequestError(f"body: expected {size} bytes, as Content-Length says, got {at}")


async def _chunked(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise LimitError(f"body: expected at most {limit} bytes, got more")
        parts.append(chunk)
        if not message.get("more_body", False):
            return b"".join(parts)


def _non_finite(accept: bytes) -> NonFinite:
    """How the client wants NaN and the infinities in JSON: `Accept: application/json;non-finite=null`."""
    if b"non-finite" not in accept:
        return "string"
    wanted = _NON_FINITE.search(accept)
    if wanted is None:
        raise BadRequestError(
            "Accept: expected non-finite=string or non-finite=null, as in application/json;non-finite=null, "
            f"got {accept.decode('latin-1')[:80]!r}"
        )
    return "null" if wanted[1].lower() == b"null" else "string"


def _takes_gzip(headers: dict[bytes, bytes]) -> bool:
    """Whether Accept-Encoding names gzip, and not to refuse it."""
    for coding in headers.get(b"accept-encoding", b"").lower().split(b","):
        name, _, quality = coding.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.strip() not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def _sentence(body: memoryview | bytes) -> str:
    """What an error's JSON object says, for the log."""
    try:
        return str(json.loads(bytes(body))["error"])
    except (ValueError, LookupError, TypeError, RecursionError):  # a process that runs somebody's code may write this
        return "an answer that is no error's JSON object"


async def _send_compressed(context: RequestContext, response: RawResponse, send: Send) -> None:
    """Send JSON or text by gzip; it is made by a thread, as other requests are to have their turn meanwhile."""
    level = 6 if response.size < TAIL else 1
    body = await asyncio.to_thread(gzip.compress, response.body, level, mtime=0)
    context.sent = len(body)
    headers = [
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", context.request_id.encode()),
        (b"content-type", response.content_type.encode()),
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
    ]
    context.started = True
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send(context: RequestContext, response: RawResponse, send: Send, stall_s: float) -> None:
    body = response.body
    size = len(body)
    headers = [
        (b"content-length", b"%d" % size),
        (b"x-request-id", context.request_id.encode()),
    ]
    if response.header_length is None:
        headers.append((b"content-type", response.content_type.encode()))
    else:
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((_HEADER_LENGTH, b"%d" % response.header_length))
    context.started = True
    if response.status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if response.status >= 400:
        body = _with_request_id(body, context.request_id)
        size = len(body)
        headers[0] = (b"content-length", b"%d" % size)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if size <= 2 * TAIL:
        await send({"type": "http.response.body", "body": bytes(body)})
        return
    # The server may hold what it could not write yet, and the buffer is reused as soon as this returns. The end goes
    # as a copy, larger than what the server lets wait: when it has been taken in, all before it is on its way.
    view = memoryview(body)
    pieces = [view[at : min(at + PIECE, size - TAIL)] for at in range(0, size - TAIL, PIECE)]
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    for piece in (*pieces, bytes(view[-TAIL:]), b""):
        message = {"type": "http.response.body", "body": piece, "more_body": bool(piece)}
        if transport is None:
            await send(message)
            continue
        try:
            async with asyncio.timeout(stall_s):
                await send(message)
        except TimeoutError:
            # What the server has not written yet lies in the buffer, which others use next: it must not go out later.
            transport.abort()
            raise Disconnected from None


def _with_request_id(body: memoryview | bytes, request_id: str) -> bytes:
    """An error's JSON object with the request's id in it."""
    return bytes(body).rstrip()[:-1] + b',"request_id":"%b"}' % request_id.encode()
