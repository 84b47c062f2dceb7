"""TlsListener: accepts connections, and counts each of them before its TLS begins.

A loop's own server tells of a connection only when its TLS has begun. Until then a silent one would count towards no
limit, and each holds a descriptor and the memory of OpenSSL.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import structlog

from opbox_protocol.errors import NotReadyError

from .connections import ConnectionEntry, Connections

__all__ = ["CountedProtocol", "TlsListener"]

AT_ONCE = 100
"""Connections to accept before other work of the loop has its turn."""
REST_S = 1.0
"""Seconds to wait where the process may open no more descriptors."""

_log = structlog.get_logger("opbox.tls")


class CountedProtocol(Protocol):
    """The protocol of a connection that has been counted: `entry` is set before it begins."""

    entry: ConnectionEntry | None


class TlsListener:
    """Accepts connections on a listening socket; the server of asyncio that uvicorn expects.

    Args:
        make_protocol: makes the protocol of a new connection.
        sock: is bound to an address.
        ssl: the certificate's context.
        connections: those of the server, among which each is counted from its beginning.
        backlog: the number of connections that the kernel accepts ahead.

    A connection has as long for its TLS as for a request's head.
    """

    def __init__(
        self,
        make_protocol: Callable[[], CountedProtocol],
        *,
        sock: socket.socket,
        ssl: ssl.SSLContext,
        connections: Connections,
        backlog: int = 2048,
    ) -> None:
        self._make_protocol = make_protocol
        self._socket = sock
        self._context = ssl
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._closed = False
        sock.setblocking(False)
        sock.listen(backlog)
        self._listen()

    @classmethod
    async def create(cls, make_protocol: Any, **options: Any) -> TlsListener:
        """Make one in place of a loop's `create_server`."""
        return cls(make_protocol, **options)

    def close(self) -> None:
        """Accept no more connections. Calling it twice is safe."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket)

    async def wait_closed(self) -> None:
        """End the connections whose TLS has not begun."""
        for task in self._beginning:
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("accept", error=str(error))
                self._loop.remove_reader(self._socket)
                self._loop.call_later(REST_S, self._listen)
                return
            sock.setblocking(False)
            self._admit(sock, peer[0] if isinstance(peer, tuple) else None)

    def _admit(self, sock: socket.socket, peer: str | None) -> None:
        try:
            entry = self._connections.admit(peer, lambda: None)
        except NotReadyError:
            sock.close()  # who speaks no TLS yet cannot be told why
            return
        task = self._loop.create_task(self._begin(sock, entry))
        entry.end = task.cancel
        self._beginning.add(task)
        task.add_done_callback(partial(self._begun, sock, entry))

    async def _begin(self, sock: socket.socket, entry: ConnectionEntry) -> None:
        """Begin a connection's TLS; from then on it is its protocol's."""
        await self._loop.connect_accepted_socket(
            partial(self._protocol, entry),
            sock,
            ssl=self._context,
            ssl_handshake_timeout=self._connections.settings.request_head_s,
        )

    def _begun(self, sock: socket.socket, entry: ConnectionEntry, task: asyncio.Task[None]) -> None:
        """Give the place and the descriptor back where TLS has not begun, also if the task never ran."""
        self._beginning.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None or task.cancelled():
            self._connections.leave(entry)
            sock.close()
        if error is not None and not isinstance(error, OSError):
            _log.error("connection", exc_info=error)

    def _protocol(self, entry: ConnectionEntry) -> Any:
        protocol = self._make_protocol()
        protocol.entry = entry
        return protocol
