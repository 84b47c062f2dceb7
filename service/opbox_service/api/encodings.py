"""Content codings of bodies and answers: gzip and deflate, and zstd where the package zstandard is installed."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import TypeVar

from opbox_protocol import zstd
from opbox_protocol.errors import EncodingError, LimitError

from ..carriers import RawResponse

__all__ = ["WINDOW_BITS", "WORTH_ZSTD", "asked_coding", "coding_of", "content_size", "decompress", "deflated"]
__all__ += ["in_thread", "prefers_zstd", "shrunk"]

T = TypeVar("T")
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""By coding: zlib's number for its window and its header."""
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
    coding = text.decode("latin-1")
    if coding in WINDOW_BITS or (coding == zstd.CODING and zstd.is_available()):
        return coding
    missing = "" if zstd.is_available() else " (zstd needs the package zstandard, which is not installed here)"
    taken = ", ".join([*([zstd.CODING] if zstd.is_available() else []), *WINDOW_BITS])
    raise EncodingError(f"Content-Encoding: expected {taken} or none{missing}, got {coding[:40]!r}")


def prefers_zstd(headers: dict[bytes, bytes]) -> bool:
    """Return whether Accept-Encoding ranks zstd above bytes as they are."""
    text = headers.get(b"accept-encoding")
    if text is None or b"zstd" not in text or not zstd.is_available():
        return False
    rows = [_QUALITY.fullmatch(row.strip()) for row in text.lower().split(b",")]
    qualities = {row[1]: float(row[2] or 1) for row in rows if row is not None}
    return qualities.get(b"zstd", 0.0) > qualities.get(b"identity", 1.0)


def asked_coding(headers: dict[bytes, bytes]) -> str | None:
    """Return gzip or deflate if Accept-Encoding names that alone: libraries list all that they know by themselves."""
    text = headers.get(b"accept-encoding", b"").strip().lower().decode("latin-1")
    return text if text in WINDOW_BITS else None


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

    def stop() -> None:
        nonlocal stopped
        stopped = True

    await in_thread(lambda: zstd.decompress(body, target, lambda: stopped), stop)


async def in_thread(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Have a thread work on buffers. A caller that is cancelled calls `stop`, and waits until the thread has ended."""
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([thread])  # until then it reads and writes
        raise


async def shrunk(response: RawResponse) -> bytes | None:
    """Return an answer's body compressed with zstd; None if it does not shrink. A thread does it."""
    return await asyncio.to_thread(_shrunk, response)


def _shrunk(response: RawResponse) -> bytes | None:
    if zstd.sample(response.parts).ratio > WORTHWHILE:
        return None
    return b"".join(zstd.compress(response.parts))


async def deflated(response: RawResponse, coding: str, level: int) -> bytes:
    """Return an answer's body compressed with gzip or deflate. A thread does it."""
    return await in_thread(lambda: _deflated(response, coding, level))


def _deflated(response: RawResponse, coding: str, level: int) -> bytes:
    compressor = zlib.compressobj(level, wbits=WINDOW_BITS[coding])
    pieces = [
        compressor.compress(memoryview(part)[at : at + zstd.PIECE])
        for part in response.parts
        for at in range(0, len(part), zstd.PIECE)
    ]
    return b"".join([*pieces, compressor.flush()])
