"""ClientConnection: one connection of a client to the gateway: reads requests one by one, and writes their answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import BadRequestError, DeadlineError, LimitError, MXNetError, NotReadyError, error_to_json
from opbox_protocol.routes import EVENTS

from ...api.connections import ConnectionEntry
from .answers import WholeAnswer
from .chunks import ChunkReader
from .heads import RequestHead, read_request_head
from .relay import RELAYED_BYTES

if TYPE_CHECKING:
    from .exchange import GatewayExchange
    from .server import ClusterGateway

__all__ = ["ClientConnection"]

LINGER_S = 5.0
"""Seconds for which what a client still sends is read and dropped, so that it gets the answer that came early."""
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


class ClientConnection(asyncio.Protocol):
    """One connection.

    Args:
        gateway: which it is of.

    Attributes:
        address: of the client.
        entry: of this connection among the gateway's; set before `connection_made` for one that is counted already.
        left: bytes of the request's body that are still to come, where its size is known.
    """

    def __init__(self, gateway: ClusterGateway) -> None:
        self._gateway = gateway
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self.address = b""
        self.entry: ConnectionEntry | None = None
        self._state = "head"
        self._bytes = b""
        self._since = 0.0
        self.left = 0
        self._chunks: ChunkReader | None = None
        self._exchange: GatewayExchange | None = None
        self._keep_alive = True
        self._holds: set[str] = set()
        self._unread_since: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self.transport = transport  # type: ignore[assignment]  # of TCP
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]).encode() if peer else b"unknown"
        self._since = self._gateway.now
        self._gateway.clients.add(self)
        connections = self._gateway.connections
        if self.entry is not None:
            self.entry.end = self.transport.abort
            return
        try:
            self.entry = connections.admit(peer[0] if peer else None, self.transport.abort)
        except NotReadyError as error:
            if connections.answers(self):
                self.refuse(error)
            else:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._state = "closed"
        self._gateway.clients.discard(self)
        if self.entry is None:
            self._gateway.connections.answered(self)
        else:
            self._gateway.connections.leave(self.entry)
        if self._exchange is not None:
            self._exchange.abandon()
            self._exchange = None

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        while data:
            if self._state == "head":
                data = self._take_head(data)
            elif self._state == "body":
                data = self._take_body(data)
            elif self._state == "answer":  # a request behind one that is being answered
                self._bytes += data
                self.hold("behind")
                return
            else:
                return

    def _take_head(self, data: bytes) -> bytes:
        if self._bytes:
            data = self._bytes + data
        data = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
        if not self._bytes:
            self._since = self._gateway.now
        limit = self._gateway.settings.max_request_head_bytes
        end = data.find(b"\r\n\r\n", 0, limit)
        if end < 0:
            self._bytes = data
            if len(data) >= limit:
                self.refuse(
                    LimitError(
                        f"request's line and headers: expected at most {limit} bytes, got more: send less, or start "
                        "the gateway with a larger OPBOX_MAX_REQUEST_HEAD_BYTES"
                    ),
                    431,
                )
            elif self.entry is not None and not self._gateway.connections.wait(self.entry, len(data)):
                self.refuse(NotReadyError("requests: expected heads of a few KiB, as too many have begun, got more"))
            return b""
        if self.entry is not None:
            if self._bytes:
                self._gateway.connections.wait(self.entry, 0)
            self._gateway.connections.begin(self.entry)
        self._bytes = b""
        try:
            head = read_request_head(data[: end + 4])
        except LimitError as error:
            self.refuse(error, 431)
            return b""
        except BadRequestError as error:
            self.refuse(error)
            return b""
        return self._begin(head, data[end + 4 :])

    def _begin(self, head: RequestHead, data: bytes) -> bytes:
        """Begin a request, with what came behind its head, so that both go to the node in one write."""
        self._keep_alive = head.keep_alive
        self._chunks = ChunkReader() if head.length is None else None
        self.left = head.length or 0
        self._exchange = exchange = self._gateway.exchange(self, head)
        if head.length == 0:
            self._state = "answer"
            exchange.body_ended()
        else:
            self._state = "body"
            if data:
                data = self._take_body(data)
        if self._exchange is exchange:
            exchange.begin()
            if self.left >= RELAYED_BYTES:
                exchange.much_is_left()
        return data

    def _take_body(self, data: bytes) -> bytes:
        exchange = self._exchange
        if exchange is None:
            return b""
        if self._chunks is not None:
            try:
                size, parts = self._chunks.take(data)
            except BadRequestError as error:
                self._exchange = None
                exchange.abandon()
                self.refuse(error)
                return b""
            for part in parts:
                exchange.body_came(part)
            rest, whole = data[size:], self._chunks.done
        else:
            rest = b""
            if len(data) > self.left:
                data, rest = data[: self.left], data[self.left :]
            self.left -= len(data)
            whole = not self.left
            exchange.body_came(data)
        if whole:
            if self._exchange is exchange:
                self.body_is_whole()
        elif self.left >= RELAYED_BYTES:
            exchange.much_is_left()
        return rest

    def body_is_whole(self) -> None:
        """All of the request has been passed on."""
        self._state = "answer"
        if self._exchange is not None:
            self._exchange.body_ended()

    # -- answers ------------------------------------------------------------------------------------------------

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays open when the request that is being answered has been."""
        return self._keep_alive and self._state != "body" and not self._gateway.stopping

    def finishes(self) -> bool:
        """Called while the gateway stops: return whether a request is in flight here; else end the connection."""
        exchange = self._exchange
        if exchange is not None:
            return not exchange.head.path.endswith(EVENTS)
        if self._state == "linger":
            return time.monotonic() - self._since < LINGER_S
        self.transport.close()  # sends what is still to be sent
        return self.transport.get_write_buffer_size() > 0

    def write(self, data: bytes) -> None:
        """Send a part of an answer."""
        self.transport.write(data)

    def end_answer(self, *, close: bool = False) -> None:
        """The answer is whole: read the next request, or end the connection."""
        self._exchange = None
        if self._holds:
            self.release("full")
            self.release("node")
        early = self._state == "body"
        if close or early or not self._keep_alive or self._gateway.stopping:
            self._linger() if early else self.transport.close()
            return
        self._state, self._since = "head", self._gateway.now
        if self.entry is not None:
            self._gateway.connections.rest(self.entry)
        if self._bytes:
            rest, self._bytes = self._bytes, b""
            self.release("behind")
            asyncio.get_running_loop().call_soon(self.data_received, rest)

    def answer(self, status: int, body: Mapping[str, Any], headers: bytes = b"", *, head_only: bool = False) -> None:
        """Send an answer of the gateway's own."""
        text = json.dumps(body, ensure_ascii=False).encode()
        lines = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            status,
            _REASONS.get(status, "").encode(),
            len(text),
        )
        closing = b"" if self.keeps_alive else b"connection: close\r\n"
        self.transport.write(lines + headers + closing + b"\r\n" + (b"" if head_only else text))

    def pass_on(self, answer: WholeAnswer) -> None:
        """Send a node's answer that has been read as a whole."""
        reason = _REASONS.get(answer.status, "").encode()
        lines = [b"HTTP/1.1 %d %b\r\n" % (answer.status, reason)]
        lines += [b"%b: %b\r\n" % pair for pair in answer.headers]
        lines.append(b"\r\n" if self.keeps_alive else b"connection: close\r\n\r\n")
        self.transport.write(b"".join((*lines, answer.body)))
        self.end_answer()

    def fail(self, error: MXNetError, *, head_only: bool = False) -> None:
        """Answer the request with an error."""
        status, body = error_to_json(error)
        headers = b"" if error.retry_after is None else b"retry-after: %d\r\n" % max(1, round(error.retry_after))
        if status == 401:
            headers += b"www-authenticate: Bearer\r\n"
        self.answer(status, body, headers, head_only=head_only)
        self.end_answer()

    def refuse(self, error: MXNetError, status: int | None = None) -> None:
        """Answer what is no request with an error, and end the connection."""
        self._keep_alive = False
        own, body = error_to_json(error)
        self.answer(own if status is None else status, body)
        self._linger()

    def _linger(self) -> None:
        """Read and drop what still comes, for a while, so that the client sees the answer."""
        self._state, self._since = "linger", self._gateway.now
        self._holds.clear()
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()  # TLS has none: the client ends the connection, or the sweep does

    def abort(self) -> None:
        """Break the connection off: the answer cannot be finished."""
        self.transport.abort()

    # -- flow ---------------------------------------------------------------------------------------------------

    def hold(self, reason: str) -> None:
        """Read no more until `release` with the same reason."""
        if not self._holds:
            self.transport.pause_reading()
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """Read on, unless there is another reason not to."""
        if reason in self._holds:
            self._holds.remove(reason)
            if not self._holds and not self.transport.is_closing():
                self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Called by asyncio when the client reads slower than its answer comes."""
        self.stalls(True)
        if self._exchange is not None:
            self._exchange.client_is_full(True)

    def resume_writing(self) -> None:
        """Called by asyncio when it has caught up."""
        self.stalls(False)
        if self._exchange is not None:
            self._exchange.client_is_full(False)

    def stalls(self, stalls: bool) -> None:
        """Note that the client reads slower than its answer comes, or that it has read on."""
        self._unread_since = self._gateway.now if stalls else None

    def sweep(self, now: float) -> None:
        """End what takes too long; called once a second."""
        settings = self._gateway.settings
        if self._state == "linger":
            if now - self._since > LINGER_S:
                self.transport.abort()
        elif self._unread_since is not None:
            if now - self._unread_since > settings.stall_s:
                self.transport.abort()
        elif self._state == "head":
            silent = self.entry is None or not self._bytes
            if self._bytes and now - self._since > settings.request_head_s:
                self.refuse(
                    DeadlineError(
                        f"request's line and headers: expected them within {settings.request_head_s:g} s, got "
                        f"{len(self._bytes)} bytes: send them at once"
                    ),
                    408,
                )
            elif silent and now - self._since > settings.keep_alive_s:
                self.transport.close()
