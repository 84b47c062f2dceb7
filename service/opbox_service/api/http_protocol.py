"""HttpProtocol: uvicorn's protocol by httptools, with limits to what a connection costs, and large bodies uncopied.

uvicorn's own copies a body five times between the socket and a buffer of the application's: into bytes, into those that
its parser hands on, onto the end of what has come, into a message, and into the buffer. Here at most the first 64 KiB
of a request go that way. The parser is not shown the rest: its length is known, and the kernel writes it where it
belongs.

uvicorn's own has no limits either: neither to a head, nor to the time that it takes, nor to requests that are sent
ahead. Here the parser is shown one request at a time, and nothing is read while one behind it waits.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from opbox_protocol.errors import BadRequestError, DeadlineError, LimitError, MXNetError, NotReadyError, error_to_json

from ..settings import Settings
from .connection_io import ConnectionReader, LingeringTransport
from .connections import ConnectionEntry, Connections
from .receiving import receive_into
from .request_context import Disconnected, Receive, Send
from .request_heads import check_single, host_of_target

__all__ = ["RECEIVE_INTO", "SEND_WHOLE", "HttpProtocol"]

RECEIVE_INTO = "opbox.receive_into"
"""The ASGI extension whose value does what `receiving.receive_into` does, without copies."""
SEND_WHOLE = "opbox.send_whole"
"""The ASGI extension whose value sends a whole answer in one write: see `HttpProtocol._send_whole`."""
MAX_HEADERS = 256
"""Maximum number of headers; each costs some 150 bytes beside its own."""
MIN_BODY_RATE = 1024
"""Bytes of a body that must come in a second, on average of `stall_s` seconds."""

_END = b"\r\n\r\n"
"""What ends a head, and a body in chunks. The parser takes no other ends of lines."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with limits, and with large bodies received directly into their buffer.

    Args:
        config, server_state, app_state: uvicorn's.
        connections: those of the server, among which this one is counted; by itself without.

    Attributes:
        entry: of this connection among them; set before `connection_made` for one that is counted already.
    """

    _reader: ConnectionReader
    _extensions: dict[str, Any]

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        connections: Connections | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self.refused = False
        self._all = Connections(Settings.model_construct()) if connections is None else connections
        self._settings = self._all.settings
        self.entry: ConnectionEntry | None = None
        self._in_head = True
        self._muted = False
        self._wrong: tuple[int, MXNetError] | None = None  # what is wrong with the head, and the status that says so
        self._size = 0  # bytes since the head's beginning, or since the last bytes of its body
        self._last_bytes = b""  # of these, the last three
        self._left: int | None = None  # bytes of the body that are still to come; None for a body in chunks
        self._body_bytes = 0
        self._body_since = (0, 0.0)  # its bytes, and seconds of reading, when it was looked at last
        self._rest = b""  # which came behind a request that is being answered
        self._due: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own has it
        """Begin to read, unless there are too many connections."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._reader = ConnectionReader(self, self._all)
        self._extensions = {RECEIVE_INTO: self._receive_into, SEND_WHOLE: self._send_whole}
        transport.set_protocol(self._reader)
        self.transport: Any = LingeringTransport(transport, self)
        if self.entry is not None:
            self.entry.end = self.end
        elif not self._is_admitted():
            return
        self._due = self.loop.call_later(self._settings.request_head_s, self._head_is_late)

    def _is_admitted(self) -> bool:
        """Whether there is a place for this connection; one without is told so, and ends."""
        try:
            self.entry = self._all.admit(self.client[0] if self.client else None, self.end)
        except NotReadyError as error:
            if self._all.answers(self):
                self.refuse(503, error)
            else:
                self.transport.abort()
            return False
        return True

    def end(self) -> None:
        """Give the connection's place to another."""
        if self.cycle is None:
            self.transport.abort()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has ended."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # which uvicorn does not where the connection broke
        self._cancel_due()
        self.resume_writing()
        self._rest = b""
        self._extensions.clear()  # which refers to this object
        self.transport.lost()
        if self.entry is None:
            self._all.answered(self)
        else:
            self._all.leave(self.entry)
            self.entry.end = lambda: None  # it refers to this object

    @property
    def answered_early(self) -> bool:
        """True if a request has been answered whose body is not all here."""
        cycle = self.cycle
        return cycle is not None and cycle.response_complete and cycle.more_body

    @property
    def _answering(self) -> bool:
        """True if a request that is here as a whole has not been answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def drop_the_rest(self, max_bytes: int, close: Any) -> None:
        """Read what still comes, and drop it; `close` is called when it has been enough."""
        self._reader.drop(max_bytes, close)
        self._flow.blocked = False
        self.flow.resume_reading()

    def refuse(self, status: int, error: MXNetError) -> None:
        """Answer what is no request with an error, and end the connection."""
        self._cancel_due()
        self._all.refused[str(status)] += 1
        cycle, answered = self.cycle, False
        if cycle is not None and (not cycle.response_complete or not self._in_head):
            # Its body is not what it should be: the application is told that it will not come.
            answered = cycle.response_started
            cycle.disconnected = True
            cycle.message_event.set()
        if answered:
            self.transport.abort()
            return
        _, header = error_to_json(error)
        body = json.dumps(header, ensure_ascii=False).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *([(b"retry-after", b"1")] if status == 503 else []),
        ]
        lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
        self.refused = True
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()

    def take(self, source: bytes | bytearray, size: int) -> None:
        """Parse the first `size` bytes of what has been read, up to a request's end; the rest waits for its answer."""
        self._unset_keepalive_if_required()
        at = 0
        while at < size and not self.transport.is_closing():
            if self._answering:
                self._hold(bytes(memoryview(source)[at:size]))
                return
            end = self._end_of_piece(source, at, size)
            if not self._feed(memoryview(source)[at:end]):
                return
            at = end
        if not self.transport.is_closing():
            self._await_more()

    def _hold(self, rest: bytes) -> None:
        """Keep what came behind a request until that is answered, and read no more meanwhile."""
        self._rest += rest
        self.flow.pause_reading()
        self._flow.blocked = True
        if self.entry is not None and not self._all.wait(self.entry, len(self._rest)):
            self.transport.abort()

    def _end_of_piece(self, source: bytes | bytearray, at: int, size: int) -> int:
        """Where the request that has begun at `at` or before may end."""
        if not self._in_head and self._left is not None:
            return min(size, at + self._left)
        if self._last_bytes:
            joint = (self._last_bytes + source[at : at + 3]).find(_END)
            if joint >= 0:
                return at + joint + len(_END) - len(self._last_bytes)
        end = source.find(_END, at, size)
        return size if end < 0 else end + len(_END)

    def _feed(self, piece: memoryview) -> bool:
        """Have the parser read a piece of one request; False if that was refused."""
        self._size += len(piece)
        limit = self._settings.max_request_head_bytes
        too_large = self._in_head and self._size > limit
        if too_large:  # a head's end is a piece's end, so that what is cut off here holds it
            piece = piece[: limit - self._size]
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError as error:
            self.refuse(400, BadRequestError(f"request: expected HTTP/1.1, got something else: {error}"))
            return False
        if too_large:
            self._refuse_head(limit)
            return False
        if self._wrong is not None:
            self.refuse(*self._wrong)
            return False
        if not self._in_head and self._left is None and self._size > limit:
            self.refuse(
                400,
                BadRequestError(f"body in chunks: expected data, got more than {limit} bytes between chunks or behind"),
            )
            return False
        self._last_bytes = (self._last_bytes + bytes(piece[-3:]))[-3:] if self._size or not self._in_head else b""
        return True

    def _refuse_head(self, limit: int) -> None:
        if len(self.url) > limit // 2:
            status, subject = 414, "URL"
        else:
            status, subject = 431, "request's line and headers"
        self.refuse(
            status,
            LimitError(
                f"{subject}: expected at most {limit} bytes of a request's line and headers, got more: send less, or "
                "start the server with a larger OPBOX_MAX_REQUEST_HEAD_BYTES"
            ),
        )

    def _await_more(self) -> None:
        """All that has come is parsed: set the time by which more must come."""
        cycle = self.cycle
        waiting = self._size if self._in_head else 0
        if not self._in_head:
            if not cycle.response_complete and (self._left is not None or cycle.body):
                # Until the application asks for the rest, or where it is to go; it may be waiting for a chunk whose
                # beginning alone has come.
                self.flow.pause_reading()
            if self._due is None:
                self._body_since = self._body_bytes, self._flow.reading_s
                self._due = self.loop.call_later(self._settings.stall_s, self._body_is_late)
        elif waiting and self._due is None:
            self._due = self.loop.call_later(self._settings.request_head_s, self._head_is_late)
        entry = self.entry
        if entry is not None and (waiting or entry.waiting_bytes) and not self._all.wait(entry, waiting):
            self.refuse(503, NotReadyError("requests: expected heads of a few KiB, as too many have begun, got more"))

    def _head_is_late(self) -> None:
        self._due = None
        if not self._size:  # some browsers open connections in advance, and would show an answer
            self._all.refused["silent"] += 1
            self.transport.close()
            return
        seconds = self._settings.request_head_s
        self.refuse(
            408,
            DeadlineError(
                f"request's line and headers: expected them within {seconds:g} s, got {self._size} bytes: send them at "
                "once, or start the server with a larger OPBOX_REQUEST_HEAD_S"
            ),
        )

    def _body_is_late(self) -> None:
        self._due = None
        seconds = self._settings.stall_s
        bytes_before, reading_before = self._body_since
        came, reading_s = self._body_bytes - bytes_before, self._flow.reading_s
        left_s = reading_before + seconds - reading_s
        if left_s > seconds / 100:  # the application has not asked for it all the time
            self._due = self.loop.call_later(left_s, self._body_is_late)
            return
        if came >= MIN_BODY_RATE * seconds:
            self._body_since = self._body_bytes, reading_s
            self._due = self.loop.call_later(seconds, self._body_is_late)
            return
        self.refuse(
            408,
            DeadlineError(
                f"body: expected at least {MIN_BODY_RATE} bytes in a second, got {came} in {seconds:g} s: send it "
                "faster, or start the server with a larger OPBOX_STALL_S"
            ),
        )

    def _cancel_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def body_came(self, nbytes: int, *, whole: bool) -> None:
        """Note bytes of a body that have come past the parser; if it is whole, a request may follow."""
        self._body_bytes += nbytes
        if whole:
            self.cycle.more_body = False
            # The parser has not seen the body's end; the next request has another.
            self._renew_parser()
            self._body_is_whole()

    def on_message_begin(self) -> None:
        """Called by the parser when a request begins."""
        if self._muted:
            return
        super().on_message_begin()
        self._in_head, self._left = True, None
        scope: Any = self.scope
        scope["extensions"] = self._extensions

    def on_url(self, url: bytes) -> None:
        """Called by the parser for a part of the URL."""
        if not self._muted:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for a header, and for a trailer, which is dropped."""
        if self._muted or not self._in_head:
            return
        if len(self.headers) >= MAX_HEADERS:
            self._wrong = (
                431,
                LimitError(f"headers: expected at most {MAX_HEADERS} of a request, got more: send fewer"),
            )
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called by the parser when a request's head is whole."""
        if self._muted or self._wrong is not None:
            return
        try:
            check_single(self.headers)
            host = host_of_target(self.url)
        except BadRequestError as error:
            self._wrong = 400, error
            return
        if host is not None:  # it counts, and not the header
            self.headers[:] = [*(pair for pair in self.headers if pair[0] != b"host"), (b"host", host)]
        self._left = self._body_length()
        self._in_head, self._size = False, 0
        self._cancel_due()
        if self.entry is not None:
            self._all.begin(self.entry)
        super().on_headers_complete()

    def _body_length(self) -> int | None:
        """Bytes of the body that follows; None for one in chunks."""
        length = 0
        for name, value in self.headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                return None
        return length

    def on_body(self, body: bytes) -> None:
        """Called by the parser for a part of the body."""
        self._size = 0
        self._body_bytes += len(body)
        if self._left is not None:
            self._left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called by the parser when a request is whole; before its body, where it asks for another protocol."""
        if self._wrong is not None or (self._left != 0 and self.parser.should_upgrade()):
            return
        self._body_is_whole()
        super().on_message_complete()

    def _body_is_whole(self) -> None:
        self._in_head, self._left, self._size, self._last_bytes = True, None, 0, b""
        self._cancel_due()

    def _ignore_upgrade(self) -> None:
        """Serve a request that asks for another protocol (`Upgrade: h2c`) by this one, as the parser does not."""
        self._renew_parser()
        if self._in_head:
            return
        framing = b"Transfer-Encoding: chunked" if self._left is None else b"Content-Length: %d" % self._left
        self._muted = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + _END)
        self._muted = False

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        if hasattr(self.parser, "set_dangerous_leniencies"):
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own

    def _send_whole(self, send: Send, status: int, headers: bytes, body: bytes) -> bool:
        """Send an answer with its head and body in one write; return False where only `send` can.

        Args:
            send: that of the request.
            status: of the answer.
            headers: their lines, with nothing that a client has chosen unchecked; Content-Length is among them.
            body: all of it.
        """
        cycle = self.cycle
        if send != cycle.send or cycle.response_started or cycle.disconnected or not cycle.keep_alive:
            return False
        if self.flow.write_paused or cycle.access_log or cycle.scope["method"] == "HEAD":
            return False
        usual, lines = self._all.default_headers
        if usual is not cycle.default_headers:  # uvicorn makes a new list every second
            lines = b"".join(b"%b: %b\r\n" % pair for pair in cycle.default_headers)
            self._all.default_headers = cycle.default_headers, lines
        self.transport.write(b"".join((STATUS_LINE[status], lines, headers, b"\r\n", body)))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        """Called when a request has been answered: take the next, which may have come already."""
        self._flow.blocked = False
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.entry is not None:
            self._all.rest(self.entry)
        if self._rest:
            rest, self._rest = self._rest, b""
            self.take(rest, len(rest))

    def pause_writing(self) -> None:
        """Called by asyncio when the client does not read: it has `stall_s` seconds."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._settings.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Called by asyncio when the client has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    async def _receive_into(self, view: memoryview, receive: Receive) -> None:
        """See receiving.receive_into."""
        cycle = self.cycle
        if receive != cycle.receive:
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


class _Flow(FlowControl):
    """uvicorn's flow control, by which nothing is read while a request waits behind another.

    Attributes:
        blocked: whether nothing is to be read.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._loop = asyncio.get_running_loop()
        self.blocked = False
        self._began = self._loop.time()
        self._paused_at = self._paused_s = 0.0

    @property
    def reading_s(self) -> float:
        """Seconds in which reading was not paused."""
        now = self._loop.time()
        return now - self._began - self._paused_s - (now - self._paused_at if self.read_paused else 0.0)

    def pause_reading(self) -> None:
        """Read nothing for now."""
        if not self.read_paused:
            self._paused_at = self._loop.time()
            super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless that is blocked."""
        if self.read_paused and not self.blocked:
            self._paused_s += self._loop.time() - self._paused_at
            super().resume_reading()
