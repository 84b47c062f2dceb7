"""exchange: the requests and answers of one call, as the gateways before a server let them through.

Most calls are one request and its answer. A body that is larger than a gateway takes goes in parts, and an answer that
takes longer than a gateway waits is asked for again. Nothing here sends: `exchange` yields a request and is sent the
answer, so that it serves threads and asyncio alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opbox_protocol import routes, zstd
from opbox_protocol.errors import LimitError, MXNetError, TransportError
from opbox_protocol.transport import Reply, Travel
from opbox_protocol.wire import BODY_PARTS, PART, PREFER, RECEIVED, RUNNING, ZSTD

from .call_numbers import CallNumbers
from .gateway import Gateway
from .http_messages import Received, engine_seconds
from .repeated_calls import Attempts

__all__ = ["OutgoingCall", "Request", "exchange"]

SHRINKABLE_BYTES = 1 << 15
"""Bodies of at least this many bytes are compressed where that pays."""
SHRINKING = {"Accept-Encoding": f"{zstd.CODING}, identity;q=0.5"}
"""Asks the server to compress its answer, if that shrinks."""
GAVE_UP = (504, 524)
"""Statuses of gateways that did not wait for the server's answer."""
MAX_LOSSES = 3
"""Number of times that a server may lose the parts of a body."""


@dataclass(slots=True)
class Request:
    """A request over HTTP.

    Attributes:
        method, path, headers: as they are sent.
        chunks: the body, in pieces.
        sent: its bytes.
    """

    method: str
    path: str
    headers: dict[str, str]
    chunks: Sequence[Any] = ()
    sent: int = 0


@dataclass(slots=True)
class OutgoingCall:
    """A call that is to be made.

    Attributes:
        method, path: of its route.
        headers: of all its requests.
        body_headers: those of its body.
        chunks: the body, in pieces that are the tensors' own memory.
        attempts: of the call.
        timeout: seconds to wait for its answer.
        address: the server's URL, as the user named it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body_headers: Mapping[str, str]
    chunks: Sequence[Any]
    attempts: Attempts
    timeout: float
    address: str
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.use(self.body_headers, self.chunks)

    def use(self, headers: Mapping[str, str], chunks: Sequence[Any]) -> None:
        """Send this body."""
        self.body_headers, self.chunks = headers, chunks
        self.nbytes = int(headers.get("Content-Length", "0"))

    def request(self, numbers: CallNumbers, gateway: Gateway) -> Request:
        """Return the request with the whole body."""
        headers = {**self._headers(numbers, gateway), **self.body_headers}
        return Request(self.method, self.path, headers, self.chunks, self.nbytes)

    def part(self, numbers: CallNumbers, gateway: Gateway, begin: int, end: int) -> Request:
        """Return the request with a part of the body; with none of it, it asks what has become of the call."""
        size = {PART: f"{begin}/{self.nbytes}", "Content-Length": str(end - begin)}
        headers = {**self._headers(numbers, gateway), **self.body_headers, **size}
        return Request(self.method, self.path, headers, _cut(self.chunks, begin, end), end - begin)

    def _headers(self, numbers: CallNumbers, gateway: Gateway) -> dict[str, str]:
        number = self.attempts.number
        wait = {} if number is None else {PREFER: f"wait={gateway.wait_s}"}
        answer = SHRINKING if gateway.link.is_slow_down and _compresses() else {}
        return {**self.headers, **numbers.headers(number), **wait, **answer}


def exchange(
    call: OutgoingCall, gateway: Gateway, numbers: CallNumbers, read: Callable[[Received, Request], Reply | MXNetError]
) -> Generator[Request, Received, Reply]:
    """Make a call: yield its requests, be sent their answers, and return its reply.

    Args:
        call: the call.
        gateway: what is known of what lets it through, and learns more.
        numbers: of calls.
        read: returns the server's reply, or its error; raises the error of an answer that is not the server's.

    Raises:
        MXNetError: the server, or a gateway, refused.
        TransportError: the answer takes longer than the call's timeout.
    """
    begun, attempts, losses = time.monotonic(), call.attempts, 0
    sent, came, engine_s = 0, 0, 0.0
    if attempts.body is None:
        if gateway.extensions is None and _may_shrink(call, gateway):
            about = Request("GET", routes.ABOUT, dict(call.headers))
            gateway.extensions = _extensions(read((yield about), about))
        attempts.body = _body(call, gateway)
    call.use(*attempts.body)
    while True:
        request = _next_request(call, gateway, numbers)
        sent_at = time.monotonic()
        received = yield request
        server_s = engine_seconds(received)
        gateway.link.add(request.sent, received.came, time.monotonic() - sent_at - server_s)
        sent, came, engine_s = sent + request.sent, came + received.came, engine_s + server_s
        try:
            reply = read(received, request)
        except LimitError:
            if gateway.extensions is None:
                about = Request("GET", routes.ABOUT, dict(call.headers))
                gateway.extensions = _extensions(read((yield about), about))
            if BODY_PARTS not in gateway.extensions or not gateway.refused(request.sent):
                raise
            continue
        except TransportError:
            if received.status in GAVE_UP:
                gateway.gave_up(time.monotonic() - sent_at)
                if call.method == "POST":
                    attempts.take_number()
            raise
        if isinstance(reply, MXNetError):
            raise reply
        if received.status == 202 and RUNNING in reply.header:
            attempts.running = True
            if time.monotonic() - begun > call.timeout:
                raise TransportError(
                    f"{call.address}: no answer within {call.timeout:g} s; OPBOX_TIMEOUT sets how long to wait"
                )
        elif received.status == 202 and RECEIVED in reply.header:
            nbytes = int(reply.header[RECEIVED])
            losses += nbytes <= attempts.received
            if losses > MAX_LOSSES:
                raise TransportError(
                    f"{call.address}: {call.method} {call.path}: expected it to take the parts of a body of "
                    f"{call.nbytes} bytes, got {nbytes} of them after {losses} tries"
                )
            attempts.received, attempts.running = nbytes, False
        else:
            return Reply(reply.header, reply.tensors, Travel(sent, came, time.monotonic() - begun, engine_s))


def _next_request(call: OutgoingCall, gateway: Gateway, numbers: CallNumbers) -> Request:
    attempts, limit = call.attempts, gateway.body_bytes
    if attempts.running:
        return call.part(numbers, gateway, 0, 0)
    if limit is None or (call.nbytes <= limit and not attempts.received):
        return call.request(numbers, gateway)
    attempts.take_number()
    return call.part(numbers, gateway, attempts.received, min(call.nbytes, attempts.received + limit))


def _compresses() -> bool:
    """Return whether this machine can compress bodies, and the user lets it."""
    return zstd.is_available() and os.environ.get("OPBOX_COMPRESS") != "0"


def _may_shrink(call: OutgoingCall, gateway: Gateway) -> bool:
    return call.nbytes >= SHRINKABLE_BYTES and gateway.link.is_slow_up and _compresses()


def _body(call: OutgoingCall, gateway: Gateway) -> tuple[Mapping[str, str], Sequence[Any]]:
    """Return the headers and pieces of a call's body, compressed where that pays."""
    headers, chunks = call.body_headers, call.chunks
    if _may_shrink(call, gateway) and ZSTD in (gateway.extensions or ()) and gateway.link.pays(zstd.sample(chunks)):
        chunks = zstd.compress(chunks)
        size = str(sum(map(len, chunks)))
        headers = {**headers, "Content-Length": size, "Content-Encoding": zstd.CODING}
    return headers, chunks


def _extensions(about: Reply | MXNetError) -> frozenset[str]:
    """Return what the server's answer about itself says that it can."""
    return frozenset() if isinstance(about, MXNetError) else frozenset(map(str, about.header.get("extensions", ())))


def _cut(chunks: Sequence[Any], begin: int, end: int) -> list[Any]:
    """Return bytes of a body in pieces, in pieces that share its memory."""
    pieces, at = [], 0
    for chunk in chunks:
        size = len(chunk)
        if begin < at + size and at < end:
            pieces.append(memoryview(chunk).cast("B")[max(0, begin - at) : end - at])
        at += size
    return pieces
