"""Content codings of bodies and answers: zstd for all of them, where the package zstandard is installed."""

from __future__ import annotations

import asyncio
import re

from opbox_protocol import zstd
from opbox_protocol.errors import EncodingError, LimitError

from ..carriers import RawResponse

__all__ = ["WORTH_ZSTD", "coding_of", "content_size", "decompress", "prefers_zstd", "shrunk"]

WORTH_ZSTD = 1 << 15
"""Answers of at least this many bytes are compressed with zstd if the client prefers that."""
WORTHWHILE = 0.9
"""Maximum part that samples of an answer shrink to, for all of it to be compressed."""

_QUALITY = re.compile(rb"([a-z*]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?))?")


def coding_of(headers: dict[bytes, bytes]) -> str | None:
    """Return the coding of a request's body; None for bytes as they are.

    Raises:
        EncodingError: a coding that this server does not take.
    """
    text = headers.get(b"content-encoding", b"").strip().lower()
    if text in (b"", b"identity"):
        return None
    if text == zstd.CODING.encode() and zstd.is_available():
        return zstd.CODING
    taken = "zstd or none" if zstd.is_available() else "none, as the package zstandard is not installed here"
    raise EncodingError(f"Content-Encoding: expected {taken}, got {text.decode('latin-1')[:40]!r}")


def prefers_zstd(headers: dict[bytes, bytes]) -> bool:
    """Return whether Accept-Encoding ranks zstd above bytes as they are."""
    text = headers.get(b"accept-encoding")
    if text is None or b"zstd" not in text or not zstd.is_available():
        return False
    rows = [_QUALITY.fullmatch(row.strip()) for row in text.lower().split(b",")]
    qualities = {row[1]: float(row[2] or 1) for row in rows if row is not None}
    return qualities.get(b"zstd", 0.0) > qualities.get(b"identity", 1.0)


def content_size(body: memoryview | bytes, limit: int) -> int:
    """Return the bytes of a compressed body's content.

    Raises:
        WireError: it does not state them.
        LimitError: they are more than `limit`.
    """
    size = zstd.stated_size(body)
    if size > limit:
        raise LimitError(
            f"body: expected at most {limit} bytes, got {size} in its zstd frame: send less at a time, or start the "
            "server with a larger OPBOX_MAX_BODY_BYTES"
        )
    return size


async def decompress(body: memoryview | bytes, target: memoryview) -> None:
    """Decompress a body into `target`, by a thread; a client that goes away stops it.

    Raises:
        WireError: see zstd.decompress.
    """
    stopped = False
    thread = asyncio.ensure_future(asyncio.to_thread(zstd.decompress, body, target, lambda: stopped))
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        stopped = True
        await asyncio.wait([thread])  # until then it writes
        raise


async def shrunk(response: RawResponse) -> bytes | None:
    """Return an answer's body compressed with zstd; None if it does not shrink. A thread does it."""
    return await asyncio.to_thread(_shrunk, response)


def _shrunk(response: RawResponse) -> bytes | None:
    if zstd.sample(response.parts).ratio > WORTHWHILE:
        return None
    return b"".join(zstd.compress(response.parts))
