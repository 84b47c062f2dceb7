"""GrpcServer: listens for gRPC beside the server of HTTP, on the same loop.

It is grpc.aio's server. Its sockets belong to gRPC's own threads, which call the loop when something has come; so the
middleware and the pool of workers are called by the loop's thread alone, as by HTTP.
"""

from __future__ import annotations

from typing import Any

import grpc

from opbox_protocol.errors import BadRequestError

from ..api.middleware import Middleware
from ..api.tls import Certificate
from ..settings import Settings
from .service import GrpcService

__all__ = ["GrpcServer", "decrypted"]


class GrpcServer:
    """A server of GRPCInferenceService.

    Args:
        middleware: the app that REST has.
        settings: the address and the limits.
        certificate: for TLS; None where connections are to have none.

    Attributes:
        port: that it listens on; 0 before it does.
    """

    def __init__(self, middleware: Middleware, settings: Settings, certificate: Certificate | None) -> None:
        self._settings = settings
        self._certificate = certificate
        self._service = GrpcService(middleware, settings)
        self._server: Any = None
        self.port = 0

    @property
    def address(self) -> str:
        """Host and port, as a client writes them."""
        host = self._settings.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def open(self) -> None:
        """Take the port.

        Raises:
            BadRequestError: it cannot be had, or the certificate's key is one that gRPC cannot read.
        """
        self._server = grpc.aio.server(handlers=[self._service], options=_options(self._settings))
        host, port = self._settings.host, self._settings.grpc_port
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificate is None:
                self.port = self._server.add_insecure_port(place)
            else:
                self.port = self._server.add_secure_port(place, _credentials(self._certificate))
        except RuntimeError:
            raise BadRequestError(
                f"grpc_port: expected a port that this server may listen on, got {place}: another program may have it"
            ) from None

    async def start(self) -> None:
        """Take calls."""
        await self._server.start()

    def end_streams(self) -> None:
        """Have the streams end when their requests are answered."""
        self._service.end_streams()

    async def stop(self, grace_s: float) -> None:
        """End the connections; calls that run are ended after `grace_s` seconds."""
        if self._server is not None:
            await self._server.stop(max(0.0, grace_s))


def _options(settings: Settings) -> list[tuple[str, int]]:
    head = settings.max_request_head_bytes
    return [
        ("grpc.max_receive_message_length", settings.max_grpc_bytes),
        ("grpc.max_send_message_length", -1),  # answers have a limit of their own
        ("grpc.max_concurrent_streams", settings.max_in_flight_per_owner),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", round(settings.request_head_s * 1e3)),
        ("grpc.max_connection_idle_ms", round(settings.keep_alive_s * 1e3)),
        ("grpc.max_metadata_size", head),
        ("grpc.absolute_max_metadata_size", head),
        ("grpc.so_reuseport", int(settings.reuse_port)),
        # A client may ask every 10 s whether the connection still stands, also without calls, as Triton's does.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A connection whose client is gone without a word ends.
        ("grpc.keepalive_time_ms", round(settings.stall_s * 1e3)),
    ]


def _credentials(certificate: Certificate) -> Any:
    """Credentials whose certificate is the newest at each handshake."""
    last = certificate.pem

    def newest() -> Any:
        nonlocal last
        pem = certificate.pem
        if pem is last:
            return None
        last = pem
        return _configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(_configuration(certificate), newest, False)


def _configuration(certificate: Certificate) -> Any:
    key, chain = certificate.pem
    return grpc.ssl_server_certificate_configuration([(decrypted(key, certificate.password), chain)])


def decrypted(key: bytes, password: str) -> bytes:
    """A private key without its password: gRPC takes none."""
    if b"ENCRYPTED" not in key:
        return key
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise BadRequestError(
            "ssl_keyfile: expected a key without a password, as gRPC's needs the package cryptography to read one, got "
            "an encrypted key: install that package, or decrypt the key"
        ) from None
    private = serialization.load_pem_private_key(key, password.encode())
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
