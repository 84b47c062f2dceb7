"""TLS: the server's certificate, read again when its file changes."""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from opbox_protocol.errors import BadRequestError

from ..settings import Settings

__all__ = ["Certificate"]

_log = structlog.get_logger("opbox.tls")


class Certificate:
    """The server's certificate and key.

    Args:
        settings: name their files.

    Attributes:
        context, http2_context: for connections of HTTP/1.1 and HTTP/2; they have the newest certificate.

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
        self.context, self.http2_context = _context(), _context("h2")
        self._load(self.context)
        self._load(self.http2_context)

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
            self._load(self.http2_context)
        except (BadRequestError, OSError) as error:
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


def _context(protocol: str = "http/1.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION  # each costs the server more than the client
    context.set_alpn_protocols([protocol])
    return context


def _date(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
