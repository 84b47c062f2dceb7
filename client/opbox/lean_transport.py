"""LeanTransport: an httpx transport to one server, for tensors: no copies on the way, and one write a request.

A general transport costs 1.5 to 4 times as much for a call of 4 to 256 KiB (`benchmarks/http_clients.py`), and a
training step is one call. Bodies are written from the arrays themselves, and read into one buffer that the result
arrays are views of. `http.client` reads the answers' heads.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np

from .proxies import Proxy
from .request_writing import send_request

__all__ = ["CHUNKS", "LeanTransport", "WholeBody"]

CHUNKS = "opbox.chunks"
"""The extension of a request that has its body in pieces: buffers, which are not copied."""
IDLE_S = 15.0
"""Seconds after which an unused connection is replaced: what is between may have forgotten it."""
PROBE_S, PROBES = 5, 4
"""Seconds between two probes of a connection that has been silent for IDLE_S, and their number."""
UNACKNOWLEDGED_S = 45
"""Seconds in which the other side has to acknowledge what was sent to it."""


class LeanTransport(httpx.BaseTransport):
    """Connections to one server.

    Args:
        host, port: the server.
        timeout: seconds to wait for a connection, and for each piece of an answer.
        tls: for https.
        proxy: which connects to the server.

    Raises:
        httpx.TransportError: the request got no answer; the system's error is its cause.
        opbox_protocol.errors.TransportError: a proxy refused.
    """

    def __init__(
        self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None, proxy: Proxy | None = None
    ) -> None:
        self._host, self._port, self._timeout, self._tls, self._proxy = host, port, timeout, tls, proxy
        self._idle: list[tuple[socket.socket, float]] = []
        self._lock = threading.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the answer's head; once more when a kept connection proves closed."""
        url = request.url
        target = url.raw_path
        headers = request.headers.raw
        if self._proxy is not None and self._tls is None:
            target = b"http://" + url.netloc + target
            headers = [*headers, *((key.encode(), value.encode()) for key, value in self._proxy.headers.items())]
        lines = [b"%b %b HTTP/1.1" % (request.method.encode(), target), *(b"%b: %b" % pair for pair in headers), b""]
        chunks: Sequence[Any] | None = request.extensions.get(CHUNKS)
        if chunks is None:
            assert isinstance(request.stream, httpx.SyncByteStream)
            chunks = list(request.stream)
        return self._exchange(request, [b"\r\n".join([*lines, b""]), *chunks])

    def _exchange(self, request: httpx.Request, chunks: Sequence[Any]) -> httpx.Response:
        while True:
            connection, fresh = self._connection(request)
            answer = http.client.HTTPResponse(connection, method=request.method)
            try:
                sent = send_request(connection, chunks, self._timeout)
                answer.begin()
                answer.will_close |= not sent
            except (OSError, http.client.HTTPException) as error:
                answer.close()
                connection.close()
                closed = isinstance(error, http.client.RemoteDisconnected | BrokenPipeError | ConnectionResetError)
                if fresh or not closed:
                    raise _of_httpx(error, request) from error
            else:
                return httpx.Response(
                    answer.status,
                    headers=answer.getheaders(),
                    stream=WholeBody(self, connection, answer, request),
                    extensions={"reason_phrase": answer.reason.encode("latin-1")},
                )

    def _connection(self, request: httpx.Request) -> tuple[socket.socket, bool]:
        """A connection that is idle, or a fresh one; and whether it is fresh."""
        with self._lock:
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < IDLE_S:
                    return connection, False
                connection.close()
        try:
            return self._connect(), True
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error), request=request) from error
        except OSError as error:
            raise httpx.ConnectError(str(error), request=request) from error

    def _connect(self) -> socket.socket:
        proxy = self._proxy
        place = (self._host, self._port) if proxy is None else (proxy.host, proxy.port)
        connection = socket.create_connection(place, timeout=self._timeout)
        try:
            _set_options(connection)
            if self._tls is None:
                return connection
            if proxy is not None:
                proxy.tunnel(connection, self._host, self._port)
            return self._tls.wrap_socket(connection, server_hostname=self._host)
        except BaseException:
            connection.close()
            raise

    def keep(self, connection: socket.socket) -> None:
        """Use a connection again."""
        with self._lock:
            if not self._closed:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def become_childs(self) -> None:
        """Forget the parent's connections after a fork."""
        self._lock = threading.Lock()
        self._idle = []

    def close(self) -> None:
        """Close the connections that are idle; those in use close when they are done."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


class WholeBody(httpx.SyncByteStream):
    """The body of an answer, read into one buffer.

    Args:
        transport: takes the connection back.
        connection: what it comes by.
        answer: its head.
        request: what it answers.
    """

    def __init__(
        self,
        transport: LeanTransport,
        connection: socket.socket,
        answer: http.client.HTTPResponse,
        request: httpx.Request,
    ) -> None:
        self._transport, self._answer, self._request = transport, answer, request
        self._connection: socket.socket | None = connection

    def whole(self) -> Any:
        """Read the body.

        Raises:
            httpx.TransportError: it broke off.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            raise httpx.StreamConsumed
        try:
            body = _read(self._answer)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _of_httpx(error, self._request) from error
        if self._answer.will_close:
            connection.close()
        else:
            self._transport.keep(connection)
        return body

    def __iter__(self) -> Iterator[bytes]:
        yield bytes(self.whole())

    def close(self) -> None:
        """Close the connection, if the body was not read."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _read(answer: http.client.HTTPResponse) -> Any:
    """The body, in one buffer that arrays may view."""
    length = answer.length
    if length is None:
        return bytearray(answer.read())
    body = np.empty(length, np.uint8)
    view, done = body.data, 0
    while done < length:
        got = answer.readinto(view[done:])
        if not got:
            raise http.client.IncompleteRead(bytes(view[:done]), length - done)
        done += got
    answer.read()  # lets the connection be used again
    return body


def _of_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """httpx's error for one of the system's, or of a malformed answer."""
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(str(error), request=request)
    if isinstance(error, OSError) and not isinstance(error, http.client.RemoteDisconnected):
        return httpx.ReadError(str(error), request=request)
    return httpx.RemoteProtocolError(str(error), request=request)


def _set_options(connection: socket.socket) -> None:
    """Send small requests at once, and notice that the other side is gone though nothing says so."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", int(IDLE_S)),
        ("TCP_KEEPALIVE", int(IDLE_S)),  # macOS's name of the same
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
