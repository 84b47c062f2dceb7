"""One request on its way through the API process, and the ASGI calls that it comes by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from opbox_protocol.errors import MXNetError

from ..carriers import RawResponse
from ..logs import Exceptions
from ..routes.route import Route
from ..stages import Stage
from .caller import Identity

__all__ = [
    "FORWARDED",
    "Disconnected",
    "ForwardedRequest",
    "Receive",
    "RequestContext",
    "RequestTrace",
    "Scope",
    "Send",
    "Tracing",
]

Scope: TypeAlias = "MutableMapping[str, Any]"
Receive: TypeAlias = "Callable[[], Awaitable[MutableMapping[str, Any]]]"
Send: TypeAlias = "Callable[[MutableMapping[str, Any]], Awaitable[None]]"


FORWARDED = "opbox.forwarded"
"""The key under which a scope has the ForwardedRequest of a request that came by another protocol than HTTP."""


class Disconnected(Exception):
    """The client went away before its request was whole."""


class RequestTrace(Protocol):
    """The span of a request, and those below it.

    Attributes:
        trace_id: of all spans that it belongs to, in hexadecimal digits.
        traceparent: itself, as W3C's header names it.
    """

    trace_id: str
    traceparent: str

    def received(self) -> None:
        """Note that the body is there."""

    def answered(self, stages: Sequence[Stage]) -> None:
        """Note that the answer is there, and the stages that the worker reports."""

    def end(self, context: RequestContext) -> None:
        """End the spans; the request has been answered."""


class Tracing(Protocol):
    """Makes spans of requests."""

    def begin(self, context: RequestContext, method: str, path: str) -> RequestTrace:
        """The span of a request that has just come and has a route."""


@dataclass(slots=True)
class RequestContext:
    """One request on its way through the API process: its id, caller and route, and what its answer was.

    Attributes:
        route, parameters: its route, and the parameters in its path; None when it has no route.
        received, sent: bytes of the bodies.
        started: whether the answer has been begun.
        last: whether its connection ends with the answer, as the server is stopping.
        whole: whether all of the request's body has been read.
        since: when it had been, by time.perf_counter; 0 before.
        error: the sentence that it is answered with, for the log.
        problem: the exception behind an internal error, for the log.
        head: whether only the head of the answer is wanted (HEAD), which the server then sends alone.
        expected: whether an error that it is answered with is a step of the protocol, and nobody's mistake.
        streamed: whether the answer comes in pieces for as long as the client reads.
        send_whole: sends an answer in one write, where the server that carries the app can (http_protocol.SEND_WHOLE).
        transport: what its answer is written to; None where the server that carries the app does not show it.
        trace: its span; None where it is not traced.
        identify_again: the caller behind the header Authorization; AuthenticationError when its token is none any more.
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
    last: bool = False
    whole: bool = False
    since: float = 0.0
    error: str = ""
    problem: Exceptions | None = None
    head: bool = False
    expected: bool = False
    streamed: bool = False
    transport: asyncio.WriteTransport | None = None
    trace: RequestTrace | None = None
    send_whole: Callable[[Send, int, bytes, bytes], bool] | None = None
    identify_again: Callable[[bytes | None], Identity] | None = None

    @property
    def ids(self) -> dict[str, str]:
        """What errors and log lines name it by: its id, and its trace where it has one."""
        trace = {} if self.trace is None else {"trace_id": self.trace.trace_id}
        return {"request_id": self.request_id, **trace}

    @staticmethod
    def transport_of(send: Send) -> asyncio.WriteTransport | None:
        """Return the transport that uvicorn's `send` writes to."""
        transport: asyncio.WriteTransport | None = getattr(getattr(send, "__self__", None), "transport", None)
        return transport

    @property
    def closes(self) -> bool:
        """True if the connection closes after the answer: the server stops, or an unwanted body is still arriving."""
        length = self.headers.get(b"content-length", b"0")
        much = b"transfer-encoding" in self.headers or len(length) > 6
        return self.last or (much and not self.whole)


@dataclass(slots=True)
class ForwardedRequest:
    """A request of another protocol, which goes the same way as HTTP's: what HTTP has in its path and headers.

    Attributes:
        route, parameters: its route, and the parameters that HTTP has in the path.
        identity: who makes it.
        refused: why it is to be refused; None where it is not.
        take: takes the answer in place of `send`; the answer's memory is valid until that has returned.
    """

    route: Route
    parameters: Mapping[str, str]
    identity: Identity
    refused: MXNetError | None
    take: Callable[[RequestContext, RawResponse], Awaitable[None]]
