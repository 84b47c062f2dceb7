"""GrpcConnection: one connection of gRPC. The library h2 parses and writes HTTP/2's frames; this reads and writes.

It has the limits of a connection by HTTP (`api/connections.py`), and two of its own: to frames that ask for nothing
(`frame_meter.py`), and to calls at a time. A connection counts as silent until a token has been accepted on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from h2.settings import Settings as Http2Settings

from opbox_protocol.errors import LimitError, NotReadyError

from ..api.connections import ConnectionEntry, Connections
from .call import WINDOW, GrpcCall
from .frame_meter import EARNED_BY_ANSWER, EARNED_BY_DATA, FrameMeter
from .statuses import StatusCode

__all__ = ["GrpcConnection"]

CONNECTION_WINDOW = 1 << 20
"""Bytes that a client may have under way on all its streams together; each stream has a window of its own."""
CLOSED_STREAMS = 256
"""Streams that are remembered when they have ended, as frames of theirs may be under way."""
_log = structlog.get_logger("opbox.grpc")


class _Http2(H2Connection):
    MAX_CLOSED_STREAMS = CLOSED_STREAMS


class GrpcConnection(asyncio.BufferedProtocol):
    """One connection.

    Args:
        serve: answers a call.
        connections: those of the server, among which this one is counted.
        open_connections: it is one of them until it has ended.

    Attributes:
        entry: of this connection among them; set before `connection_made` for one that is counted already.
        calls: that have not ended, by stream.
        h2, paused, stall_s: see `call.GrpcLink`.
    """

    def __init__(
        self,
        serve: Callable[[GrpcCall], Coroutine[Any, Any, None]],
        connections: Connections,
        open_connections: set[GrpcConnection],
    ) -> None:
        settings = connections.settings
        self._serve = serve
        self._all = connections
        self._open = open_connections
        self._loop = asyncio.get_running_loop()
        self.entry: ConnectionEntry | None = None
        self.stall_s = settings.stall_s
        self.paused = False
        self.calls: dict[int, GrpcCall] = {}
        self._tasks: dict[GrpcCall, asyncio.Task[None]] = {}
        self._accepted: set[GrpcCall] = set()
        self._unacknowledged = self._waiting_bytes = 0
        self._greeted = self._pinged = False
        self._read_at = self._idle_since = self._loop.time()
        self._due: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._address = ""
        self._transport: Any = None
        head = settings.max_request_head_bytes
        self._meter = FrameMeter(head, self._loop.time)
        self.h2 = _Http2(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,  # they are the server's own
                normalize_outbound_headers=False,
            )
        )
        self.h2.local_settings = Http2Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_in_flight_per_owner,
                SettingCodes.MAX_HEADER_LIST_SIZE: head,
            },
        )
        self.h2.decoder.max_header_list_size = head

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read, unless there are too many connections."""
        self._transport = transport
        self._open.add(self)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self.entry is None:
            try:
                self.entry = self._all.admit(self._address or None, self.close)
            except NotReadyError:
                self._transport.abort()
                return
        else:
            self.entry.end = self.close
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(CONNECTION_WINDOW - WINDOW)
        self.flush()
        self._due = self._loop.call_later(self._all.settings.request_head_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has ended: so do its calls."""
        for timer in (self._due, self._unread):
            if timer is not None:
                timer.cancel()
        self._give_place_back()
        self._lose_all()
        self._open.discard(self)

    def close(self) -> None:
        """Tell the client that the connection ends, and end it."""
        self._end(ErrorCodes.NO_ERROR)

    def _end(self, code: ErrorCodes) -> None:
        if self._transport.is_closing():
            return
        self._give_place_back()
        self._lose_all()
        self.h2.close_connection(code)
        self.flush()
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def _give_place_back(self) -> None:
        entry, self.entry = self.entry, None
        if entry is not None:
            self._all.leave(entry)
            entry.end = lambda: None  # it refers to this object

    def _look(self) -> None:
        """End a connection that is silent, idle, or whose client is gone without a word."""
        now, settings = self._loop.time(), self._all.settings
        if not self._greeted:
            self.close()
            return
        if not self.calls:
            left_s = self._idle_since + settings.keep_alive_s - now
            if left_s <= 0:
                self.close()
                return
        else:
            left_s = self._read_at + self.stall_s - now
            if left_s <= 0:
                if self._pinged:
                    self._transport.abort()
                    return
                self._pinged = True
                self.h2.ping(bytes(8))
                self.flush()
                left_s = self.stall_s
        self._due = self._loop.call_later(left_s, self._look)

    # -- what comes ---------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer that the socket reads into: all connections share it."""
        return self._all.view

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio when `nbytes` were read into the buffer."""
        self._read_at, self._pinged = self._loop.time(), False
        data = self._all.view[:nbytes]
        try:
            self._meter.take(data)
            for event in self.h2.receive_data(data):
                if self._transport.is_closing():
                    break
                self._take(event)
        except LimitError as error:
            _log.info("connection ended", address=self._address, error=str(error))
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)
        except ProtocolError:
            self.flush()  # which says why
            self._transport.close()
        except Exception as error:
            _log.error("connection", exc_info=error)
            self._transport.abort()
        else:
            self.flush()

    def eof_received(self) -> None:
        """The client has closed its side: asyncio ends the connection."""

    def _take(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._unacknowledged += event.flow_controlled_length
            if self._unacknowledged >= CONNECTION_WINDOW // 4:
                self.h2.increment_flow_control_window(self._unacknowledged)
                self._unacknowledged = 0
            if (call := self.calls.get(event.stream_id)) is not None:
                call.take(event.data, event.flow_controlled_length)
                if call not in self._accepted:
                    self._wait_for(len(event.data))
        elif isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, StreamEnded):
            if (call := self.calls.get(event.stream_id)) is not None:
                call.end_of_request()
        elif isinstance(event, StreamReset):
            if (call := self.calls.get(event.stream_id)) is not None:
                self._lose(call)
        elif isinstance(event, WindowUpdated):
            if event.stream_id:
                if (call := self.calls.get(event.stream_id)) is not None:
                    call.wake()
            else:
                self._wake_all()
        elif isinstance(event, RemoteSettingsChanged):
            self._greeted = True
            self._wake_all()
        elif isinstance(event, ConnectionTerminated):
            self._lose_all()
            self._transport.close()

    def _begin(self, event: RequestReceived) -> None:
        """Begin a call."""
        assert event.stream_id is not None
        call = GrpcCall(self, event.stream_id, event.headers, self._address)
        self.calls[event.stream_id] = call
        if not call.headers.get(b"content-type", b"").startswith(b"application/grpc"):
            call.refuse(415)
            return
        task = self._loop.create_task(self._serve(call))
        self._tasks[call] = task
        task.add_done_callback(lambda task: self._served(call, task))

    def _served(self, call: GrpcCall, task: asyncio.Task[None]) -> None:
        """The task of a call has ended."""
        self._tasks.pop(call, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("call", path=call.path, exc_info=error)
        call.finish(StatusCode.INTERNAL, "the call: expected an answer, got a fault of the server's: see its log")

    def _lose_all(self) -> None:
        for call in list(self.calls.values()):
            self._lose(call)

    def _lose(self, call: GrpcCall) -> None:
        """Stop a call whose client has gone; it ends when its task has."""
        call.lose()
        self._tasks[call].cancel()

    # -- what the calls do (see `call.GrpcLink`) ----------------------------------------------------------------------

    def accept(self, call: GrpcCall) -> None:
        """Note that a call's token has been accepted: the connection is idle or in use from now on, not silent."""
        if not self._accepted and self.entry is not None:
            self._all.begin(self.entry)
        self._accepted.add(call)
        self._wait_for(-call.waiting_bytes)

    def _wait_for(self, nbytes: int) -> None:
        """Count bytes of calls whose tokens have not been accepted; too many of all connections end this one."""
        self._waiting_bytes += nbytes
        if self.entry is not None and not self._all.wait(self.entry, self._waiting_bytes) and nbytes > 0:
            self._end(ErrorCodes.ENHANCE_YOUR_CALM)

    def wrote_data(self) -> None:
        """Note a data frame that is written to the client."""
        self._meter.earn(EARNED_BY_DATA)

    def end(self, call: GrpcCall, stream: int, code: ErrorCodes) -> None:
        """Forget a call, which has been answered (NO_ERROR) or given up."""
        self.calls.pop(stream, None)
        if call in self._accepted:
            self._accepted.remove(call)
            if not self._accepted and self.entry is not None:
                self._all.rest(self.entry)
        else:
            self._wait_for(-call.waiting_bytes)
        self._idle_since = self._loop.time()
        if self._transport.is_closing():
            return
        if code == ErrorCodes.NO_ERROR:
            self._meter.earn(EARNED_BY_ANSWER)
        state = self.h2.streams.get(stream)
        if state is not None and not state.closed:
            self.h2.reset_stream(stream, code)
        self.flush()

    def flush(self) -> None:
        """Write what is to be sent."""
        data = self.h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        """Called by asyncio when the client does not read: it has `stall_s` seconds, and nothing more is read of it."""
        self.paused = True
        self._transport.pause_reading()
        if self._unread is None:
            self._unread = self._loop.call_later(self.stall_s, self._transport.abort)

    def resume_writing(self) -> None:
        """Called by asyncio when the client has read."""
        self.paused = False
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._wake_all()

    def _wake_all(self) -> None:
        for call in self.calls.values():
            call.wake()
