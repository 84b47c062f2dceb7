"""Says why a call over HTTP got no answer: httpx's errors, and the system's behind them, as sentences."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from opbox_protocol.errors import MXNetError, TransportError

from .repeated_calls import RESTART_S, again

__all__ = ["Attempted", "failure"]


@dataclass(frozen=True, slots=True)
class Attempted:
    """A call that got no answer.

    Attributes:
        address: the server's URL, as the user named it.
        begun: when the call began, by time.monotonic.
        answered: when the server's last answer came; None while it has never answered.
        timeout: seconds that were waited for an answer.
        tls: whether the connection has TLS.
        proxy: the proxy in between; "" where there is none.
    """

    address: str
    begun: float
    answered: float | None
    timeout: float
    tls: bool
    proxy: str


def failure(error: Exception, call: Attempted) -> MXNetError:
    """Return the error of a call that got no answer; with a `retry_after` where it may be made again."""
    causes = list(_causes(error))
    first, address, now = causes[-1], call.address, time.monotonic()
    if isinstance(error, httpx.TimeoutException) and not any(_given_up(cause) for cause in causes):
        return TransportError(f"{address}: no answer within {call.timeout:g} s; OPBOX_TIMEOUT sets how long to wait")
    if call.proxy or isinstance(error, httpx.ProxyError):
        proxy = f"the proxy {call.proxy}" if call.proxy else "its proxy"
        unreached = TransportError(
            f"{address}: not reached through {proxy}: {first!r}; NO_PROXY names hosts that need none"
        )
        return unreached if call.answered is None else again(unreached)
    for cause in causes:
        sentence = _sentence(cause, call)
        if sentence:
            refused = TransportError(f"{address}: {sentence}")
            if isinstance(cause, ConnectionRefusedError) and call.answered is not None:
                refused.retry_after = RESTART_S
            return refused
    if not isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        unreached = TransportError(f"{address}: the server could not be reached: {first!r}")
        return unreached if call.answered is None else again(unreached)
    if call.answered is not None:
        return again(
            TransportError(
                f"{address}: the server there, whose last answer came {now - call.answered:.0f} s ago, closed the "
                f"connection {now - call.begun:.1f} s into this call, without an answer: it has ended or was killed, "
                "or a gateway in between gave up"
            )
        )
    if call.tls:
        return again(TransportError(f"{address}: the server could not be reached: {first!r}"))
    return again(
        TransportError(
            f"{address}: the server there closed the connection without an answer in HTTP: if it speaks TLS, its URL "
            "begins with https://"
        )
    )


def _sentence(cause: BaseException, call: Attempted) -> str:
    """What the system's error says; empty for one that says no more than that there is no connection."""
    if isinstance(cause, ConnectionRefusedError):
        if call.answered is None:
            return "nothing listens there; start a server with `opbox serve`"
        now = time.monotonic()
        return (
            f"the server there, whose last answer came {now - call.answered:.0f} s ago, has ended or was killed: "
            f"nothing has listened for {now - call.begun:.0f} s (OPBOX_PATIENCE sets how long to try); start it again "
            "with `opbox serve`"
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({cause.verify_message}): SSL_CERT_FILE names the file of an authority of "
            "your own"
        )
    if isinstance(cause, ssl.SSLEOFError) and call.answered is not None:  # a connection that was cut
        return ""
    if isinstance(cause, ssl.SSLError):
        return f"what answers there does not speak TLS as expected ({cause.reason}): is its URL http://?"
    if isinstance(cause, socket.gaierror) and call.answered is None:
        return f"the host's name is not known here ({cause.strerror})"
    return ""


def _given_up(cause: BaseException) -> bool:
    """Return whether the system has given the connection up, as nothing was acknowledged."""
    return isinstance(cause, OSError) and cause.errno == errno.ETIMEDOUT


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, the first cause last."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        yield from _causes(error.exceptions[0])
    cause = error.__cause__ or error.__context__  # httpcore's pool raises its errors `from None`
    if cause is not None:
        yield from _causes(cause)
