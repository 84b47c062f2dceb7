"""HTTP requests and answers as opbox writes and reads them, whichever HTTP library carries them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from opbox_protocol import wire, zstd
from opbox_protocol.batch_json import batch_json
from opbox_protocol.errors import MXNetError, NotFoundError, TransportError, WireError, error_from_json
from opbox_protocol.routes import NO_ROUTE
from opbox_protocol.transport import Reply

from .not_opbox import HttpAnswer, is_of_opbox, is_refusal_of_opbox, not_opbox_error
from .repeated_calls import again

__all__ = ["ReadReply", "Received", "decompressed", "encode_call", "engine_seconds", "read_reply", "with_pause"]

LONGEST_PAUSE_S = 10.0
"""Maximum seconds to wait for a server's Retry-After."""
SHOWN_BYTES = 4096
"""Number of bytes to read of an answer that is not opbox's, to describe it."""
_TIMING = re.compile(r"\bapp;dur=([0-9.]{1,20})")
UNANSWERED = (408, 502, 504, 524)
"""Statuses of gateways that got no answer of the server's, or did not wait for it."""


@dataclass(frozen=True, slots=True)
class Received:
    """An answer over HTTP.

    Attributes:
        status, reason: of the answer.
        headers: names in any case.
        body: all of it, decompressed, in one buffer that arrays may view.
        came: bytes of it that travelled.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: Any
    came: int = 0


class ReadReply(Protocol):
    """Reads answers, as `read_reply` does."""

    def __call__(
        self, received: Received, address: str, method: str, path: str, sent: int, *, tls: bool, reached: bool
    ) -> Reply | MXNetError: ...


def encode_call(
    header: Mapping[str, Any] | None, tensors: Mapping[str, np.ndarray[Any, Any]] | None
) -> tuple[dict[str, str], list[Any]]:
    """Return the headers and the body, in pieces that are the tensors' own memory, of a call."""
    if header is None and tensors is None:
        return {}, []
    head, buffers = wire.encode(header or {}, tensors or {}, "inputs", batch_json)
    headers = {
        "Content-Type": "application/octet-stream",
        wire.HEADER_LENGTH: str(len(head)),
        "Content-Length": str(wire.frame_size(head, buffers)),
    }
    return headers, [head, *buffers]


def decompressed(body: Any) -> Any:
    """Return the content of an answer that was compressed with zstd, in one buffer.

    Raises:
        WireError: it cannot be decompressed.
    """
    content = np.empty(zstd.stated_size(body), np.uint8)
    zstd.decompress(body, content.data)
    return content


def read_reply(
    received: Received, address: str, method: str, path: str, sent: int, *, tls: bool, reached: bool
) -> Reply | MXNetError:
    """Return opbox's reply, or its error.

    Args:
        received: the answer.
        address: the server's URL, as the user named it.
        method, path: of the call.
        sent: bytes of its body.
        tls: whether the connection has TLS.
        reached: whether the server has answered before.

    Raises:
        MXNetError: the answer is not opbox's.
    """
    if not tls and _asks_for_tls(received):
        raise TransportError(f"{address}: what listens there speaks TLS: its URL begins with https://")
    reply = _reply(received, method, path)
    base = urlsplit(address).path.rstrip("/")
    if base and isinstance(reply, NotFoundError) and reply.message.endswith(NO_ROUTE):
        reply.reword(
            "OPBOX_URL: expected the server's address, with a path only behind a proxy that has one, got "
            f"{address}: the server has no {method} {base}{path}: leave the path out"
        )
    if reply is not None:
        return reply
    status = received.status
    error = not_opbox_error(
        HttpAnswer(
            address,
            method,
            path,
            sent,
            status,
            received.reason,
            received.headers.get("Content-Type", ""),
            received.headers.get("Location", ""),
            bytes(received.body[:SHOWN_BYTES]),
        )
    )
    if status in (429, 503):
        raise with_pause(error, received)
    raise again(error) if status in UNANSWERED and reached else error


def engine_seconds(received: Received) -> float:
    """Return the seconds that the server took from the end of the request to its answer; 0 where it does not say."""
    match = _TIMING.search(received.headers.get("Server-Timing", ""))
    return float(match[1]) / 1e3 if match else 0.0


def _reply(received: Received, method: str, path: str) -> Reply | MXNetError | None:
    """Return opbox's reply or error; None for an answer of another server."""
    length, body = received.headers.get(wire.HEADER_LENGTH, ""), received.body
    length = length if length.isdecimal() else ""
    if not length and not received.headers.get("Content-Type", "").startswith("application/json"):
        return None
    if received.status >= 400:
        try:
            error = json.loads(bytes(body[: int(length)]) if length else bytes(body))
        except ValueError:
            return None
        if not is_refusal_of_opbox(error):
            return None
        return with_pause(error_from_json(received.status, error), received)
    if received.status >= 300:
        return None
    if length:
        frame = wire.decode(body, int(length), key="outputs")
        return Reply(frame.header, frame.tensors)
    try:
        # Tensors are asked for as bytes, so there are none; an operator of the catalogue has other "outputs".
        header = wire.decode_header(body)
    except WireError:
        return None
    interim = received.status == 202 and (wire.RECEIVED in header or wire.RUNNING in header)
    return Reply(header) if interim or is_of_opbox(method, path, header) else None


def _asks_for_tls(received: Received) -> bool:
    """True if this is the page of a port for TLS, as nginx and others answer plain HTTP with: a 400 that is no JSON."""
    if received.status != 400 or received.headers.get("Content-Type", "").startswith("application/json"):
        return False
    words = bytes(received.body[:1000]).lower()
    return b"https" in words or b"ssl-enabled" in words


def with_pause(refusal: MXNetError, received: Received) -> MXNetError:
    """The error, with the seconds after which a server, or a gateway, wants the call to be made again."""
    pause = received.headers.get("Retry-After", "")
    if pause.isdecimal():
        refusal.retry_after = min(float(pause), LONGEST_PAUSE_S)
    return refusal
