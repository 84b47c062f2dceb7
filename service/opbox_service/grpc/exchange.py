"""GrpcExchange: one request of the app that REST has, made by this process, and its answer.

A call by gRPC goes the way of a request by HTTP: the same middleware, endpoint, routes and workers. So tokens, quotas,
limits, metrics, logs and request ids are the same for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from opbox_protocol.errors import MXNetError
from opbox_protocol.wire import HEADER_LENGTH

from ..api.caller import Identity
from ..api.http_protocol import RECEIVE_INTO
from ..api.middleware import Middleware
from ..api.request_context import FORWARDED, ForwardedRequest, Receive, RequestContext
from ..carriers import RawResponse
from .call import GrpcCall, Message
from .methods import Method, RestRequest

__all__ = ["Caller", "GrpcExchange"]

LARGE = 1 << 20
"""Bytes from which on a message is copied by a thread, so that others have their turn."""
_leaving: set[asyncio.Task[None]] = set()
"""The requests whose clients have gone, until they end."""
_HEADER_LENGTH = HEADER_LENGTH.lower().encode()
_FROM_METADATA = (b"authorization", b"priority", b"traceparent", b"tracestate", b"x-request-id")
"""The metadata of a call that mean what the headers of these names do."""
_BACK = (b"retry-after", b"opbox-calls-before", b"opbox-wait")
"""The headers of an error that its call's metadata have too."""


class Caller(NamedTuple):
    """Where a call comes from.

    Attributes:
        headers: the ones of HTTP that its metadata have.
        address: of the client.
        authorization: the header of that name.
    """

    headers: list[tuple[bytes, bytes]]
    address: str
    authorization: bytes | None

    @classmethod
    def of(cls, call: GrpcCall) -> Caller:
        """The caller of a call."""
        headers = [(key, value) for key, value in call.metadata if key in _FROM_METADATA]
        return cls(headers, call.address, call.headers.get(b"authorization"))


class GrpcExchange:
    """One request and its answer.

    Args:
        method: writes the answer.
        request: what is asked for.
        caller: where it comes from.
        identity: who makes it.
        refused: why it is to be refused; None where it is not.
        copied: is called when the request's message is not needed any more.
        send: sends the answer's message, in pieces; they are the worker's memory, and count as the owner's until then.

    Attributes:
        status: of HTTP.
        error: the sentence of an error; empty where the answer has been sent.
        kind: the name of the error's class.
        metadata: of the answer.
        id: that the client gave the request; empty where there is none.
    """

    __slots__ = (
        "_caller", "_copied", "_gone", "_identity", "_method", "_refused", "_request", "_send_message", "_sent",
        "_work", "error", "id", "kind", "metadata", "status",
    )  # fmt: skip

    def __init__(
        self,
        method: Method,
        request: RestRequest,
        caller: Caller,
        identity: Identity,
        refused: MXNetError | None,
        copied: Callable[[], None],
        send: Callable[[Sequence[Message]], Awaitable[None]],
    ) -> None:
        self._method = method
        self._request = request
        self._caller = caller
        self._identity = identity
        self._refused = refused
        self._copied = copied
        self._send_message = send
        self._gone = asyncio.Event()
        self._sent = False
        self._work: asyncio.Task[None] | None = None
        self.status = 0
        self.error = self.kind = ""
        self.metadata: list[tuple[str, str]] = []
        self.id = request.id

    async def run(self, middleware: Middleware) -> None:
        """Make the request, and wait for its answer. If this is cancelled, its client is said to have gone away."""
        request = self._request
        headers = self._caller.headers
        size = 0
        if request.header:
            size = len(request.header) + sum(map(len, request.tensors or ()))
            headers = [*headers, (b"content-length", b"%d" % size)]
            if request.tensors is not None:
                headers.append((_HEADER_LENGTH, b"%d" % len(request.header)))
        scope = {
            "type": "http",
            "method": request.route.method,
            "path": request.path,
            "headers": headers,
            "client": (self._caller.address, 0),
            "extensions": {RECEIVE_INTO: self._receive_into},
            FORWARDED: ForwardedRequest(request.route, request.parameters, self._identity, self._refused, self._take),
        }
        self._work = asyncio.create_task(middleware.forward(scope, self._receive, self._send))
        try:
            await asyncio.shield(self._work)
        except asyncio.CancelledError:
            self._gone.set()
            _leaving.add(self._work)
            self._work.add_done_callback(_leaving.discard)
            raise

    async def _receive(self) -> MutableMapping[str, Any]:
        """ASGI's `receive`: the body, then that the client has gone."""
        if not self._sent:
            self._sent = True
            body = b"".join(self._pieces)
            self._forget_message()
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _receive_into(self, view: memoryview, receive: Receive) -> None:
        """Copy the body into the buffer of a worker."""
        self._sent = True
        if len(view) >= LARGE:
            await asyncio.to_thread(self._copy, view)
        else:
            self._copy(view)
        self._forget_message()

    def _forget_message(self) -> None:
        """The request's bytes are where they are wanted."""
        self._request = self._request._replace(header=b"", tensors=None)
        self._copied()

    def _copy(self, view: memoryview) -> None:
        at = 0
        for piece in self._pieces:
            # NumPy copies without the interpreter's lock.
            np.copyto(np.frombuffer(view[at : at + len(piece)], np.uint8), np.frombuffer(piece, np.uint8))
            at += len(piece)

    @property
    def _pieces(self) -> list[bytes | memoryview]:
        return [self._request.header, *(self._request.tensors or ())]

    async def _take(self, context: RequestContext, response: RawResponse) -> None:
        """Take the answer of a route."""
        self.status = response.status
        self.metadata.append(("x-request-id", context.request_id))
        if response.status >= 400:
            self.metadata += [(name.decode(), value.decode()) for name, value in response.headers if name in _BACK]
            await self._take_error(bytes(response.body))
        else:
            await self._send_message(self._written(response))

    def _written(self, response: RawResponse) -> Sequence[Message]:
        length, parts = response.header_length, response.parts
        if length is None:
            return self._method.write(bytes(response.body), ())
        if len(parts[0]) == length:
            return self._method.write(bytes(parts[0]), parts[1:])
        body = memoryview(response.body)
        return self._method.write(bytes(body[:length]), [body[length:]])

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI's `send`: takes the error of a request that came to no route."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.metadata += [
                (name.decode(), value.decode())
                for name, value in message["headers"]
                if name in _BACK or name == b"x-request-id"
            ]
        else:
            await self._take_error(message["body"])

    async def _take_error(self, body: bytes) -> None:
        instead = None if self._refused is not None else self._method.instead.get(self.status)
        if instead is not None:
            await self._send_message(self._method.write(orjson.dumps(instead), ()))
            return
        error = orjson.loads(body)
        self.error, self.kind = error["error"], error["type"]
