"""HttpProtocol: uvicorn's protocol by httptools, which receives a large body straight into the memory that is for it.

uvicorn's own copies a body five times between the socket and a buffer of the application's: into bytes, into those that
its parser hands on, onto the end of what has come, into a message, and into the buffer. Here at most the first 64 KiB
of a request go that way. The parser is not shown the rest: its length is known, and the kernel writes it where it
belongs.

A connection that ends with an answer to a request that is not here as a whole ends in two steps: what still comes is
read and dropped for a while. Closed at once, it would be reset, and the answer lost on its way or in the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .receiving import receive_into
from .request_context import Disconnected, Receive

__all__ = ["LINGER_BYTES", "LINGER_S", "RECEIVE_INTO", "HttpProtocol"]

RECEIVE_INTO = "opbox.receive_into"
"""The ASGI extension whose value does what `receiving.receive_into` does, without copies."""
HEAD_BYTES = 1 << 16
"""Bytes to read at a time for the HTTP parser."""
LINGER_S, LINGER_BYTES = 5.0, 256 << 20
"""Seconds and bytes in which a client is to notice that it has been answered before its request was whole."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with large bodies received directly into their buffer."""

    _reader: _Reader
    _extensions: dict[str, Any]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own has it
        """Begin to read."""
        super().connection_made(transport)
        self._reader = _Reader(self)
        self._extensions = {RECEIVE_INTO: self._receive_into}
        transport.set_protocol(self._reader)
        self.transport: Any = _LingeringTransport(transport, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        super().connection_lost(exc)
        self._extensions = {}  # which refers to this object
        self.transport.lost()

    @property
    def answered_early(self) -> bool:
        """True if a request has been answered whose body is not all here."""
        cycle = self.cycle
        return cycle is not None and cycle.response_complete and cycle.more_body

    def drop_the_rest(self, close: Callable[[], None]) -> None:
        """Read what still comes, and drop it; `close` is called when it has been enough."""
        self._reader.drop(LINGER_BYTES, close)
        self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Called by the parser when a request's headers are complete."""
        super().on_message_begin()
        scope: Any = self.scope
        scope["extensions"] = self._extensions

    async def _receive_into(self, view: memoryview, receive: Receive) -> None:
        """See receiving.receive_into."""
        cycle = self.cycle
        if receive != cycle.receive:  # of a request whose body is here, as another's head has been read behind it
            await receive_into(view, receive)
            return
        size = 0
        if cycle.body or not cycle.more_body or cycle.waiting_for_100_continue or cycle.disconnected:
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            size = len(message["body"])
            view[:size] = message["body"]
            if not message["more_body"]:
                return
        received = self._reader.fill(view[size:])
        self.flow.resume_reading()
        try:
            await received
        except BaseException:
            # What is still to come is nobody's, and what follows it cannot be told from it.
            self._reader.drop()
            cycle.keep_alive = False
            raise
        cycle.more_body = False
        # The parser has not seen the body's end; the next request has another.
        self.parser = httptools.HttpRequestParser(self)
        if hasattr(self.parser, "set_dangerous_leniencies"):
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own


class _LingeringTransport:
    """uvicorn's transport, which it closes behind the answer that ends a connection: here in two steps (see above).

    Args:
        transport: asyncio's.
        http: the connection's protocol.
    """

    def __init__(self, transport: asyncio.Transport, http: HttpProtocol) -> None:
        self._transport = transport
        self._http: HttpProtocol | None = http
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
        if http is None or self.is_closing() or not http.answered_early:
            self._end()
            return
        self._timer = http.loop.call_later(LINGER_S, self._end)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        http.drop_the_rest(self._end)

    def lost(self) -> None:
        """The connection has ended."""
        self._http = None  # which refers to this object
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()


class _Reader(asyncio.BufferedProtocol):
    """Reads a connection: for the parser, or into a buffer that is to be filled.

    Args:
        http: the connection's protocol.
    """

    def __init__(self, http: HttpProtocol) -> None:
        self._http = http
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._view: memoryview | None = None
        self._at = 0
        self._filled: asyncio.Future[None] | None = None
        self._dropping = False
        self._dropped = 0
        self._most = 0
        self._enough: Callable[[], None] = lambda: None

    def fill(self, view: memoryview) -> asyncio.Future[None]:
        """Read into `view` next; the future is done when it is full."""
        self._view, self._at = view, 0
        self._filled = self._http.loop.create_future()
        return self._filled

    def drop(self, most: int = 0, enough: Callable[[], None] = lambda: None) -> None:
        """Write into the view no more; what comes from now on is dropped. From `most` bytes on `enough` is called."""
        self._view = self._filled = None
        self._dropping = True
        self._most, self._enough = most, enough

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that the socket reads into."""
        return self._head if self._view is None else self._view[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when `nbytes` were read into the buffer."""
        http = self._http
        if self._view is None:
            if self._dropping:
                self._dropped += nbytes
                if self._dropped >= self._most:
                    self._enough()
            else:
                data: Any = self._head[:nbytes]  # uvicorn hands it on to the parser, which takes any buffer
                http.data_received(data)
                cycle = http.cycle
                if cycle is not None and cycle.more_body and not cycle.response_complete:
                    http.flow.pause_reading()  # until the application asks for the rest, or where it is to go
            return
        self._at += nbytes
        if self._at == len(self._view):
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
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pause writing: the connection's buffer is full."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Called by asyncio when the buffer has been written: wake who waits for it."""
        self._http.resume_writing()
