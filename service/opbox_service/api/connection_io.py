"""The two directions of a connection: ConnectionReader reads for the parser or into a request's buffer, and
LingeringTransport writes and closes.

A connection that ends with an answer to a request that is not here as a whole ends in two steps: what still comes is
read and dropped for a while. Closed at once, it would be reset, and the answer lost on its way or in the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from .connections import Connections
from .request_context import Disconnected

__all__ = ["HEAD_BYTES", "LINGER_BYTES", "LINGER_S", "ConnectionReader", "LingeringTransport"]

HEAD_BYTES = 1 << 13
"""Bytes to read first of a request behind one with a large body: what is read with the head is copied four times."""
LINGER_S, LINGER_BYTES = 5.0, 256 << 20
"""Seconds and bytes in which a client is to notice that it has been answered before its request was whole."""
REFUSED_LINGER_S, REFUSED_LINGER_BYTES = 1.0, 1 << 20
"""The same where what came was refused before it was a request."""
UNREAD_S = 5.0
"""Seconds that a closed connection waits for the client to read what has been written to it."""


class Reads(Protocol):
    """What a ConnectionReader reads for: a connection's HTTP protocol."""

    loop: asyncio.AbstractEventLoop

    @property
    def refused(self) -> bool:
        """True if what came was answered before it was a request."""

    @property
    def answered_early(self) -> bool:
        """True if a request has been answered whose body is not all here."""

    def take(self, source: bytes | bytearray, size: int) -> None:
        """Take the first `size` bytes of what has been read."""

    def body_came(self, nbytes: int, *, whole: bool) -> None:
        """Note bytes of a body that have come past the parser."""

    def drop_the_rest(self, max_bytes: int, close: Callable[[], None]) -> None:
        """Read what still comes, and drop it; `close` is called when it has been enough."""

    def eof_received(self) -> None:
        """The client has closed its side."""

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""

    def resume_writing(self) -> None:
        """The client has read."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""


class ConnectionReader(asyncio.BufferedProtocol):
    """Reads a connection: for the parser, into the buffer that all connections share, or into one to be filled.

    Args:
        http: the connection's protocol.
        connections: has the shared buffer.
    """

    def __init__(self, http: Reads, connections: Connections) -> None:
        self._http: Any = http
        self._connections = connections
        self._view: memoryview | None = None
        self._at = 0
        self._after_large = False
        self._filled: asyncio.Future[None] | None = None
        self._dropping = False
        self._dropped = 0
        self._max_dropped = 0
        self._enough: Callable[[], None] = lambda: None

    def fill(self, view: memoryview) -> asyncio.Future[None]:
        """Read into `view` next; the future is done when it is full."""
        self._view, self._at, self._after_large = view, 0, True
        self._filled = self._http.loop.create_future()
        return self._filled

    def drop(self, max_bytes: int = 0, enough: Callable[[], None] = lambda: None) -> None:
        """Write into the view no more, and drop what comes from now on. From `max_bytes` on `enough` is called."""
        filled, self._filled, self._view = self._filled, None, None
        if filled is not None and not filled.done():
            filled.set_exception(Disconnected())
        if not self._dropping:
            self._dropping = True
            self._max_dropped, self._enough = max_bytes, enough

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that the socket reads into."""
        if self._view is not None:
            return self._view[self._at :]
        return self._connections.view[:HEAD_BYTES] if self._after_large else self._connections.view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when `nbytes` were read into the buffer."""
        if self._view is None:
            self._after_large = False
            if self._dropping:
                self._dropped += nbytes
                if self._dropped >= self._max_dropped:
                    self._enough()
            else:
                self._http.take(self._connections.buffer, nbytes)
            return
        self._at += nbytes
        whole = self._at == len(self._view)
        self._http.body_came(nbytes, whole=whole)
        if whole:
            filled, self._filled, self._view = self._filled, None, None
            if filled is not None and not filled.done():
                filled.set_result(None)

    def eof_received(self) -> None:
        """Called by asyncio when the client has closed its side."""
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        filled, self._filled, self._view = self._filled, None, None
        if filled is not None and not filled.done():
            filled.set_exception(Disconnected())
        http, self._http, self._enough = self._http, None, lambda: None  # both refer to this object
        http.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pause writing: the connection's buffer is full."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio when the buffer has been written: wake who waits for it."""
        self._http.resume_writing()


class LingeringTransport:
    """uvicorn's transport, which it closes behind the answer that ends a connection: here in two steps (see above).

    Args:
        transport: asyncio's.
        http: the connection's protocol.
    """

    def __init__(self, transport: asyncio.Transport, http: Reads) -> None:
        self._transport = transport
        self._http: Reads | None = http
        self._loop = http.loop
        self._timer: asyncio.TimerHandle | None = None
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True if nothing more is to be sent."""
        return self._timer is not None or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection; behind an early answer a while later, unless it is closed once more."""
        http = self._http
        if http is None or self.is_closing() or not (http.refused or http.answered_early):
            self._end()
            return
        seconds, max_bytes = (REFUSED_LINGER_S, REFUSED_LINGER_BYTES) if http.refused else (LINGER_S, LINGER_BYTES)
        self._timer = self._loop.call_later(seconds, self._end)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        http.drop_the_rest(max_bytes, self._end)

    def lost(self) -> None:
        """The connection has ended."""
        self._http = None  # which refers to this object
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._http is not None and self._transport.get_write_buffer_size():
            # asyncio closes a connection when all has been read that was written to it, which may be never.
            self._timer = self._loop.call_later(UNREAD_S, self._transport.abort)
        self._transport.close()
