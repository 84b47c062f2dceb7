"""Inflates bodies that came with gzip or deflate, which do not say how large their content is."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from opbox_protocol.errors import LimitError, WireError

from ..buffers import INLINE, Lease
from .encodings import WINDOW_BITS, in_thread
from .receiving import copy

__all__ = ["InflateStream", "inflate"]

PIECE = 1 << 20
"""Maximum bytes of content that a thread makes before the owner's quota is asked for them."""
READ = 1 << 16
"""Bytes of a body to read at a time."""


async def inflate(
    body: memoryview | bytes, coding: str, limit: int, lease: Callable[[int], Lease], take: Callable[[int], None]
) -> Lease:
    """Return a body's content in a buffer that is replaced by one of twice the size when it is full.

    Args:
        body: the compressed bytes.
        coding: gzip or deflate.
        limit: the most bytes of content.
        lease: returns a buffer.
        take: counts bytes as the owner's; raises an error where they are too many.

    Raises:
        WireError: the body is broken off, damaged, or has bytes behind its stream.
        LimitError: the content is larger than `limit`.
    """
    stream = InflateStream(body, coding)
    content = lease(min(limit, max(2 * INLINE, 4 * len(body))))
    size = 0
    try:
        while piece := await in_thread(stream.read):
            end = size + len(piece)
            if end > limit:
                raise LimitError(
                    f"body: expected at most {limit} bytes, got more in its {coding} stream: send less at a time, or "
                    "start the server with a larger OPBOX_MAX_BODY_BYTES"
                )
            take(len(piece))
            if end > len(content.view):
                full, content = content, lease(min(limit, 2 * end))
                try:
                    await copy(full.view[:size], content.view)
                finally:
                    full.release()
            content.view[size:end] = piece
            size = end
    except BaseException:
        content.release()
        raise
    content.view = content.view[:size]
    return content


class InflateStream:
    """A compressed body, read from its beginning to its end."""

    def __init__(self, body: memoryview | bytes, coding: str) -> None:
        self._body = memoryview(body)
        self._at = 0
        self._coding = coding
        self._inflater = zlib.decompressobj(WINDOW_BITS[coding])

    def read(self) -> bytes:
        """Return up to PIECE bytes of the content; none at its end."""
        inflater = self._inflater
        try:
            while not inflater.eof:
                data: bytes | memoryview = inflater.unconsumed_tail
                if not data:
                    data = self._body[self._at : self._at + READ]
                    self._at += len(data)
                piece = inflater.decompress(data, PIECE)
                if piece:
                    return piece
                if not data:
                    raise WireError(f"body: expected a whole {self._coding} stream, got one that was broken off")
        except zlib.error as error:
            reason = str(error).rpartition(": ")[2]
            raise WireError(
                f"body: expected a {self._coding} stream, as Content-Encoding says, got other bytes ({reason})"
            ) from None
        if inflater.unused_data or self._at < len(self._body):
            raise WireError(f"body: expected one {self._coding} stream, got further bytes behind it")
        return b""
