"""TLS: the server's certificate, read again when its file changes, and connections while TLS begins on them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import structlog

from opbox_protocol.errors import BadRequestError, NotReadyError

from ..settings import Settings
from .connections import ConnectionEntry, Connections
from .http_protocol import HttpProtocol

__all__ = ["Certificate", "TlsStart"]

SHUTDOWN_S = 5.0
"""Seconds that a connection waits at its end for the client's part of TLS's farewell."""

_log = structlog.get_logger("opbox.tls")


class Certificate:
    """The server's certificate and key.

    Args:
        settings: name their files.

    Attributes:
        context: for connections; it has the newest certificate.

    Raises:
        BadRequestError: a file cannot be read, or the two do not belong together; one sentence.
    """

    def __init__(self, settings: Settings) -> None:
        certificate, key = settings.ssl_certfile, settings.ssl_keyfile
        if certificate is None:
            raise BadRequestError("ssl_certfile: expected the certificate of ssl_keyfile, got none: name its file")
        self._certificate, self._key = certificate, key
        password = settings.ssl_keyfile_password
        self._password = "" if password is None else password.get_secret_value()
        self._dates = self._read_dates()
        self.context = _context()
        self._load(self.context)

    @classmethod
    def of(cls, settings: Settings) -> Certificate | None:
        """The certificate that settings name; None where they name none."""
        if settings.ssl_certfile is None and settings.ssl_keyfile is None:
            return None
        return cls(settings)

    def refresh(self) -> None:
        """Read the files again if they have changed; an unusable one is logged, and the old certificate stays."""
        dates = self._read_dates()
        if dates == self._dates:
            return
        self._dates = dates
        try:
            self._load(_context())  # a context that fails halfway has a certificate without its key
            self._load(self.context)
        except BadRequestError as error:
            _log.error("certificate", error=str(error))
        else:
            _log.info("certificate read again", file=str(self._certificate))

    def _read_dates(self) -> tuple[int, ...]:
        """When the files were changed; 0 for one that is not there."""
        return tuple(_date(path) for path in (self._certificate, self._key) if path is not None)

    def _load(self, context: ssl.SSLContext) -> None:
        for name, path in (("ssl_certfile", self._certificate), ("ssl_keyfile", self._key)):
            try:
                if path is not None:
                    path.read_bytes()
            except OSError as error:
                raise BadRequestError(
                    f"{name}: expected a file that can be read, got {path}: {error.strerror}"
                ) from None
        try:
            # Without a password of its own OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self._certificate, self._key, lambda: self._password)
        except ssl.SSLError as error:
            raise BadRequestError(self._problem(error)) from None

    def _problem(self, error: ssl.SSLError) -> str:
        key = self._key or self._certificate
        if error.reason == "KEY_VALUES_MISMATCH":
            return (
                f"ssl_keyfile: expected the private key of {self._certificate}, got another's ({key}): name the two "
                "files that belong together"
            )
        if b"ENCRYPTED" in key.read_bytes():
            return (
                f"ssl_keyfile_password: expected the password of {key}, got {'another' if self._password else 'none'}: "
                "set OPBOX_SSL_KEYFILE_PASSWORD"
            )
        try:
            _context().load_verify_locations(self._certificate)
        except ssl.SSLError:
            return f"ssl_certfile: expected a certificate in PEM form, got something else: {self._certificate}"
        return f"ssl_keyfile: expected a private key in PEM form, got something else: {key}" + (
            "" if self._key else " has the certificate alone: name the key's file too"
        )


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION  # each costs the server more than the client
    context.set_alpn_protocols(["http/1.1"])
    return context


def _date(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class TlsStart(asyncio.Protocol):
    """A connection while TLS begins on it; counted as any other, and cut when it takes too long.

    Args:
        http: the protocol that follows.
        connections: those of the server.
        context: of the certificate.
    """

    _transport: asyncio.Transport

    def __init__(self, http: HttpProtocol, connections: Connections, context: ssl.SSLContext) -> None:
        self._http = http
        self._all = connections
        self._context = context
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as servers have it
        """Begin TLS, unless there are too many connections; without TLS nobody can be told so."""
        peer = transport.get_extra_info("peername")
        try:
            entry = self._all.admit(peer[0] if isinstance(peer, tuple) else None, transport.abort)
        except NotReadyError:
            transport.abort()
            return
        transport.pause_reading()
        self._transport = transport
        self._http.connections.add(self)  # type: ignore[arg-type]  # uvicorn calls its `shutdown` alone
        self._task = asyncio.create_task(self._begin(transport, entry))

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops."""
        self._transport.abort()

    async def _begin(self, transport: asyncio.Transport, entry: ConnectionEntry) -> None:
        early = _Early()
        try:
            tls = await asyncio.get_running_loop().start_tls(
                transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._all.settings.request_head_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError:  # no TLS, or none that the server speaks, or nothing in time
            self._all.refused["tls"] += 1
            tls = None
        self._http.connections.discard(self)
        if tls is None or early.lost:
            transport.abort()
            self._all.leave(entry)
            return
        self._http.count_as(entry)
        self._http.connection_made(tls)
        early.hand_on(self._http)


class _Early(asyncio.Protocol):
    """What a client sends before its connection's protocol is in place.

    Attributes:
        lost: whether the connection has ended.
    """

    def __init__(self) -> None:
        self.lost = False
        self._data = b""

    def data_received(self, data: bytes) -> None:
        """Keep what has come: at most what one read brings, as the protocol is in place before the next."""
        self._data += data

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.lost = True

    def hand_on(self, http: HttpProtocol) -> None:
        """Give the protocol what has come."""
        if self._data:
            http.take(self._data, len(self._data))
