"""Http2: a client of gRPC that does as an attack wants: it sends half of a message, and reads no answer."""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import time
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes

from opbox_service.grpc.messages import SERVICE

__all__ = ["Http2", "framed"]


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A message as a stream has it."""
    data = gzip.compress(message) if compressed else message
    return struct.pack(">BI", compressed, len(data)) + data


class Http2:
    """A connection.

    Args:
        address: host and port.
        window: bytes of an answer that the server may send on each stream.
        timeout_s: of each look at the socket.

    Attributes:
        statuses: gRPC's, of the calls that have ended, by stream; -1 for one that was reset without a status.
        received: bytes of answers.
        ended: whether the server has ended the connection.
    """

    def __init__(self, address: str, window: int = 1 << 20, timeout_s: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self._h2.local_settings.acknowledge()
        self._h2.initiate_connection()
        self._flush()
        self.statuses: dict[int, int] = {}
        self.received = 0
        self.ended = False

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def begin(self, method: str, token: str = "", *, compressed: bool = False) -> int:
        """Begin a call; its stream."""
        stream = self._h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{SERVICE}/{method}"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        if token:
            headers.append(("authorization", f"Bearer {token}"))
        if compressed:
            headers.append(("grpc-encoding", "gzip"))
        self._h2.send_headers(stream, headers)
        self._flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> int:
        """Send data as far as the server takes it; the number of bytes."""
        sent = 0
        while sent < len(data):
            if stream in self.statuses:
                return sent
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(data) - sent)
            if size <= 0:
                if not self.look():
                    return sent
                continue
            self._h2.send_data(stream, data[sent : sent + size])
            sent += size
            self._flush()
        if end:
            self._h2.end_stream(stream)
            self._flush()
        return sent

    def call(self, method: str, message: bytes = b"", token: str = "", *, compressed: bool = False) -> int:
        """Make a call; the status that it ends with."""
        stream = self.begin(method, token, compressed=compressed)
        self.send(stream, framed(message, compressed=compressed), end=True)
        return self.wait(stream)

    def wait(self, stream: int) -> int:
        """The status that a call ends with; -1 without one."""
        while stream not in self.statuses and self.look():
            pass
        return self.statuses.get(stream, -1)

    def look(self) -> bool:
        """Read once; False at the connection's end, or where nothing came."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            self.ended |= isinstance(error, ConnectionError)
            return False
        self.ended |= not data
        for event in self._h2.receive_data(data):
            self._take(event)
        self._flush()
        return bool(data)

    def drain(self, seconds: float) -> None:
        """Read for some seconds."""
        until = time.monotonic() + seconds
        self.socket.settimeout(0.1)
        while time.monotonic() < until:
            self.look()

    def _take(self, event: Any) -> None:
        if isinstance(event, DataReceived):
            self.received += len(event.data)
            if event.flow_controlled_length:
                self._h2.increment_flow_control_window(event.flow_controlled_length)
                with contextlib.suppress(StreamClosedError):
                    self._h2.increment_flow_control_window(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, ResponseReceived | TrailersReceived):
            for name, value in event.headers:
                if name == "grpc-status":
                    self.statuses[event.stream_id] = int(value)
        elif isinstance(event, StreamReset | StreamEnded):
            self.statuses.setdefault(event.stream_id, -1)

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(self._h2.data_to_send())
