"""Reads a request's content headers, and receives its body into memory that is allocated beforehand."""

from __future__ import annotations

import asyncio
import re

from opbox_protocol.errors import BadRequestError, LimitError
from opbox_protocol.strict_json import NonFinite
from opbox_protocol.wire import HEADER_LENGTH as JSON_LENGTH

from ..settings import Settings
from .request_context import Disconnected, Receive

__all__ = ["HEADER_LENGTH", "content_length", "copy", "drop_body", "header_length", "is_plain", "non_finite"]
__all__ += ["receive_into", "receive_small"]

COPIED = 1 << 18
"""Bytes to copy at a time."""

_NON_FINITE = re.compile(rb"non-finite\s*=\s*\"?(string|null)\b", re.IGNORECASE)
_DIGITS = re.compile(rb"[0-9]{1,18}")
HEADER_LENGTH = JSON_LENGTH.lower().encode()


PLAIN_HEADERS = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        HEADER_LENGTH,
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-request-id",
    )
)
"""The headers of a request whose body is JSON with tensors behind it, and that asks for nothing else."""


def is_plain(headers: dict[bytes, bytes]) -> bool:
    """Return whether a request has PLAIN_HEADERS alone, the lengths of its body and JSON among them."""
    if not headers.keys() <= PLAIN_HEADERS:
        return False
    lengths = headers.get(HEADER_LENGTH), headers.get(b"content-length")
    if not all(text is not None and _DIGITS.fullmatch(text) for text in lengths):
        return False
    return b"non-finite" not in headers.get(b"accept", b"") and b"zstd" not in headers.get(b"accept-encoding", b"")


def content_length(headers: dict[bytes, bytes]) -> int | None:
    """Return the Content-Length, or None."""
    text = headers.get(b"content-length")
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise BadRequestError(f"Content-Length: expected a number of bytes, got {text[:40]!r}")
    return int(text)


def header_length(headers: dict[bytes, bytes], length: int | None, settings: Settings) -> int | None:
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not _DIGITS.fullmatch(text):
        raise BadRequestError(f"{JSON_LENGTH}: expected a number of bytes, got {text.decode('latin-1')[:40]!r}")
    header_length = int(text)
    if header_length > settings.max_header_bytes:
        raise LimitError(
            f"{JSON_LENGTH}: expected at most {settings.max_header_bytes} bytes, got {header_length}: send less at a "
            "time, or start the server with a larger OPBOX_MAX_HEADER_BYTES"
        )
    if length is not None and header_length > length:
        raise BadRequestError(f"{JSON_LENGTH}: expected at most the body's {length} bytes, got {header_length}")
    return header_length


async def receive_small(receive: Receive, length: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += message.get("body", b"")
    if len(body) != length:
        raise BadRequestError(f"body: expected {length} bytes, as Content-Length says, got {len(body)}")
    return body


async def receive_into(view: memoryview, receive: Receive) -> None:
    """Receive a body into `view`; it has as many bytes as the view.

    Raises:
        Disconnected: the client went away before.
        BadRequestError: the body has another length.
    """
    at, size = 0, len(view)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk = message.get("body", b"")
        end = at + len(chunk)
        if end > size:
            raise BadRequestError(f"body: expected {size} bytes, as Content-Length says, got more")
        view[at:end] = chunk
        at = end
        if not message.get("more_body", False):
            break
    if at != size:
        raise BadRequestError(f"body: expected {size} bytes, as Content-Length says, got {at}")


async def drop_body(receive: Receive) -> int:
    """Receive a body and keep none of it; its number of bytes."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    return size


async def copy(source: memoryview, target: memoryview) -> None:
    """Copy to the beginning of another buffer, by pieces: others have their turn in between."""
    for at in range(0, len(source), COPIED):
        piece = source[at : at + COPIED]
        target[at : at + len(piece)] = piece
        await asyncio.sleep(0)


def non_finite(accept: bytes) -> NonFinite:
    """Return the client's spelling of NaN and the infinities in JSON: `Accept: application/json;non-finite=null`."""
    if b"non-finite" not in accept:
        return "string"
    wanted = _NON_FINITE.search(accept)
    if wanted is None:
        raise BadRequestError(
            "Accept: expected non-finite=string or non-finite=null, as in application/json;non-finite=null, "
            f"got {accept.decode('latin-1')[:80]!r}"
        )
    return "null" if wanted[1].lower() == b"null" else "string"
