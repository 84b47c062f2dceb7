"""GrpcServer: listens for gRPC beside the server of HTTP, on the same loop."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from opbox_protocol.errors import BadRequestError

from ..api.connections import Connections
from ..api.middleware import Middleware
from ..api.tls import Certificate
from ..api.tls_listener import TlsListener
from ..listening import bind
from ..settings import Settings
from .connection import GrpcConnection
from .service import GrpcService

__all__ = ["GrpcServer"]

BACKLOG = 2048
"""Connections that the kernel accepts ahead, as for HTTP."""
LOOK_S = 0.02


class GrpcServer:
    """A server of GRPCInferenceService.

    Args:
        middleware: the app that REST has.
        settings: the address and the limits.
        certificate: for TLS; None where connections are to have none.

    Attributes:
        connections: counted apart from those of HTTP, so that neither takes the other's places.
    """

    def __init__(self, middleware: Middleware, settings: Settings, certificate: Certificate | None) -> None:
        self._settings = settings
        self._certificate = certificate
        self._service = GrpcService(middleware, settings)
        self.connections = Connections(settings)
        self._open: set[GrpcConnection] = set()
        self._socket: socket.socket | None = None
        self._listener: Any = None

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it does."""
        return 0 if self._socket is None else int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """Host and port, as a client writes them."""
        host = self._settings.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def open(self) -> None:
        """Take the port.

        Raises:
            BadRequestError: it cannot be had.
        """
        host, port = self._settings.host, self._settings.grpc_port or 0
        try:
            self._socket = bind(host, port, self._settings.reuse_port)
        except OSError as error:
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            raise BadRequestError(
                f"grpc_port: expected a port that this server may listen on, got {place}: {error.strerror}"
            ) from None

    async def start(self) -> None:
        """Take calls."""
        assert self._socket is not None
        if self._certificate is None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(self._connection, sock=self._socket, backlog=BACKLOG)
        else:
            context = self._certificate.http2_context
            self._listener = await TlsListener.create(
                self._connection, sock=self._socket, ssl=context, connections=self.connections, backlog=BACKLOG
            )

    def _connection(self) -> GrpcConnection:
        return GrpcConnection(self._service.serve, self.connections, self._open)

    def end_streams(self) -> None:
        """Have the streams end when their requests are answered."""
        self._service.end_streams()

    async def stop(self, grace_s: float) -> None:
        """End the connections; calls that run are ended after `grace_s` seconds."""
        if self._listener is not None:
            self._listener.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while any(connection.calls for connection in self._open) and loop.time() < until:
            await asyncio.sleep(LOOK_S)
        for connection in list(self._open):
            connection.close()
        if self._socket is not None:
            self._socket.close()
