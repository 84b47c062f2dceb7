"""Connections to nodes: kept open between requests, each with one request at a time, answers passed on as they come."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from opbox_protocol.errors import BadRequestError

from .chunks import ChunkReader
from .heads import AnswerHead, read_answer_head
from .relay import RELAYED_BYTES

__all__ = ["AnswerTaker", "NodeConnection", "NodePool"]

IDLE_S = 30.0
"""Seconds after which an unused connection is closed; less than the nodes' own 75, so that none is written to late."""
CONNECT_S = 5.0
"""Maximum seconds to connect to a node."""
MAX_ANSWER_HEAD = 1 << 18


class AnswerTaker(Protocol):
    """Who a node's answer is for."""

    def answer_began(self, head: AnswerHead) -> None:
        """Called with the answer's head, and before with those of interim answers (1xx)."""

    def answer_data(self, raw: bytes, data: list[bytes] | None) -> None:
        """Called with a part of the body: as it came, and for one in chunks the data in it."""

    def answer_paused(self) -> None:
        """Called when there is no more of the answer for now: what was kept back is to be sent."""

    def answer_is_large(self, connection: NodeConnection) -> None:
        """Called when at least RELAYED_BYTES are still to come of a body of a known size."""

    def answer_ended(self) -> None:
        """Called when the answer is whole."""

    def node_broke(self, connection: NodeConnection) -> None:
        """Called when the connection has ended before that."""

    def node_is_full(self, full: bool) -> None:
        """Called when the node reads slower than it is written to, and when it has caught up."""


class NodeConnection(asyncio.Protocol):
    """One connection to a node.

    Args:
        pool: takes it back.

    Attributes:
        taker: who gets the answer; None while it is idle.
        sent: whether the request has been written as a whole.
        left: bytes of the answer's body that are still to come; -1 for another than one of a known size.
        idle_since: when it was last used, by time.monotonic.
    """

    def __init__(self, pool: NodePool) -> None:
        self.pool = pool
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until it is made
        self.taker: AnswerTaker | None = None
        self.sent = True
        self.left = 0
        self.idle_since = 0.0
        self._method = ""
        self._head: AnswerHead | None = None
        self._bytes = b""
        self._holds: set[str] = set()
        self._chunks: ChunkReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self.transport = transport  # type: ignore[assignment]  # of TCP
        self.pool.connections.add(self)

    def begin(self, taker: AnswerTaker, method: str, head: bytes) -> None:
        """Send a request's head; `taker` gets the answer."""
        self.taker, self._method, self._head, self.sent = taker, method, None, False
        self.transport.write(head)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        taker = self.taker
        if taker is None:  # nothing was asked
            self.transport.abort()
            return
        try:
            while data and self.taker is taker:
                data = self._body(taker, data) if self._head is not None else self._take_head(taker, data)
            if self.taker is taker:
                taker.answer_paused()
        except BadRequestError:
            self.transport.abort()

    def _take_head(self, taker: AnswerTaker, data: bytes) -> bytes:
        if self._bytes:
            data = self._bytes + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_ANSWER_HEAD:
                raise BadRequestError("answer: expected a head, got none")
            self._bytes = data
            return b""
        self._bytes = b""
        head = read_answer_head(data[: end + 4], self._method)
        if head.status >= 200:
            self._head = head
            self._chunks = ChunkReader() if head.length is None else None
            self.left = -1 if head.length is None else head.length
        taker.answer_began(head)
        if head.status >= 200 and head.length == 0:
            self._end(taker)
        return data[end + 4 :]

    def _body(self, taker: AnswerTaker, data: bytes) -> bytes:
        if self._chunks is not None:
            size, parts = self._chunks.take(data)
            taker.answer_data(data if size == len(data) else data[:size], parts)
            if self._chunks.done:
                self._end(taker)
            return data[size:]
        if self.left < 0:  # until the connection ends
            taker.answer_data(data, None)
            return b""
        rest = b""
        if len(data) > self.left:
            data, rest = data[: self.left], data[self.left :]
        self.left -= len(data)
        taker.answer_data(data, None)
        if not self.left:
            self._end(taker)
        elif self.left >= RELAYED_BYTES:
            taker.answer_is_large(self)
        return rest

    def answer_is_whole(self) -> None:
        """The rest of the answer's body has been passed on by a relay."""
        if self.taker is not None:
            self._end(self.taker)

    def _end(self, taker: AnswerTaker) -> None:
        assert self._head is not None
        again = self._head.keep_alive and self.sent
        self.taker = None
        if again and self._holds:
            self._holds.clear()
            self.transport.resume_reading()
        if again:
            self.pool.keep(self)
        else:
            self.transport.close()
        self.pool.in_flight -= 1
        taker.answer_ended()

    def hold(self, reason: str) -> None:
        """Read no more of the answer until `release` with the same reason."""
        if not self._holds and not self.transport.is_closing():
            self.transport.pause_reading()
        self._holds.add(reason)

    def release(self, reason: str) -> None:
        """Read on, unless there is another reason not to."""
        if reason in self._holds:
            self._holds.remove(reason)
            if not self._holds and not self.transport.is_closing():
                self.transport.resume_reading()

    def drop(self) -> None:
        """End the connection, as nobody wants the answer any more."""
        if self.taker is not None:
            self.taker = None
            self.pool.in_flight -= 1
        self.transport.abort()

    def pause_writing(self) -> None:
        """Called by asyncio."""
        if self.taker is not None:
            self.taker.node_is_full(True)

    def resume_writing(self) -> None:
        """Called by asyncio."""
        if self.taker is not None:
            self.taker.node_is_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self.pool.forget(self)
        taker, self.taker = self.taker, None
        if taker is None:
            return
        self.pool.in_flight -= 1
        if self._head is not None and self.left < 0 and self._chunks is None and exc is None:
            taker.answer_ended()
        else:
            taker.node_broke(self)


class NodePool:
    """The connections to one node.

    Args:
        url: of the node, "http://host:port" or "https://host:port".

    Attributes:
        in_flight: requests that it is answering.
        connections: all that are open.

    Raises:
        BadRequestError: the URL is none of HTTP.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRequestError(f"node: expected a URL such as http://box:8000, got {url!r}: join it with another")
        self._tls = _trusted() if parts.scheme == "https" else None
        self.url, self._host, self._port = url, parts.hostname, parts.port or (443 if self._tls else 80)
        self.in_flight = 0
        self.connections: set[NodeConnection] = set()
        self._idle: list[NodeConnection] = []

    def take(self) -> NodeConnection | None:
        """An open connection that is idle, or None. It counts as in flight from now on."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                self.in_flight += 1
                return connection
        return None

    async def connect(self) -> NodeConnection:
        """A new connection, which counts as in flight from now on.

        Raises:
            OSError: the node is not reached.
        """
        self.in_flight += 1
        try:
            loop = asyncio.get_running_loop()
            make: Callable[[], NodeConnection] = lambda: NodeConnection(self)  # noqa: E731  # typed
            name = self._host if self._tls else None
            opening = loop.create_connection(make, self._host, self._port, ssl=self._tls, server_hostname=name)
            return (await asyncio.wait_for(opening, CONNECT_S))[1]
        except BaseException:
            self.in_flight -= 1
            raise

    def keep(self, connection: NodeConnection) -> None:
        """Use a connection again, for the next request."""
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def forget(self, connection: NodeConnection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close those that were idle for long."""
        for connection in list(self._idle):
            if now - connection.idle_since > IDLE_S:
                self._idle.remove(connection)
                connection.transport.close()

    def break_all(self) -> None:
        """End all, as the node is lost: what is in flight is made again elsewhere where that is safe."""
        for connection in list(self.connections):
            connection.transport.abort()


@functools.cache
def _trusted() -> ssl.SSLContext:
    """What nodes' certificates are checked by: the system's authorities, or those that SSL_CERT_FILE names."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
