"""Bodies compressed with zstd, where the package zstandard is installed: the extra `zstd` of both distributions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

from .errors import WireError

__all__ = ["CODING", "Sample", "compress", "decompress", "is_available", "sample", "stated_size"]

CODING = "zstd"
"""The name of the coding in Content-Encoding and Accept-Encoding (RFC 8878)."""
LEVEL = 1
"""The fastest ordinary level: 0.3 to 0.5 GB/s on one core, for data that shrinks."""
PIECE = 1 << 20
"""Bytes to compress or decompress at a time; other threads have their turn in between."""
MAX_WINDOW_BYTES = 8 << 20
"""Maximum memory that a frame may ask for beside its data (RFC 9659)."""
HEADER_BYTES = 18
"""Maximum bytes of a frame's header."""
SAMPLES, SAMPLE_BYTES = 4, 1 << 14
"""Number of places of a body to try, and their bytes."""
UNKNOWN_SIZES = (1 << 64) - 1, (1 << 64) - 2, -1, 0
"""What the library says of a frame that does not state its size, or states none."""


class Sample(NamedTuple):
    """What compressing parts of a body has shown.

    Attributes:
        ratio: compressed bytes by bytes.
        seconds: to compress one byte, at the place that was fastest: the first may find caches cold.
    """

    ratio: float
    seconds: float


@cache
def is_available() -> bool:
    """Return whether the package zstandard is installed."""
    return find_spec("zstandard") is not None


def sample(chunks: Sequence[Any]) -> Sample:
    """Compress a few places of a body, to see whether all of it is worth it."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL)
    total = sum(map(len, chunks))
    size, compressed, seconds = 0, 0, 1.0
    for number in range(SAMPLES):
        place = _at(chunks, total * number // SAMPLES)
        begun = time.perf_counter()
        compressed += len(compressor.compress(place))
        seconds = min(seconds, (time.perf_counter() - begun) / max(len(place), 1))
        size += len(place)
    return Sample(compressed / max(size, 1), seconds)


def _at(chunks: Sequence[Any], offset: int) -> memoryview:
    """Return some bytes from an offset on, without those of the next chunk."""
    for chunk in chunks:
        if offset < len(chunk):
            return memoryview(chunk).cast("B")[offset : offset + SAMPLE_BYTES]
        offset -= len(chunk)
    return memoryview(b"")


def compress(chunks: Sequence[Any]) -> list[bytes]:
    """Return a body, given in pieces, as one zstd frame that states its size; the same bytes each time."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=sum(map(len, chunks)))
    pieces = []
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        pieces += [compressor.compress(view[at : at + PIECE]) for at in range(0, len(view), PIECE)]
    pieces.append(compressor.flush())
    return [piece for piece in pieces if piece]


def stated_size(body: Any) -> int:
    """Return the bytes that a zstd frame says it has when decompressed.

    Raises:
        WireError: it does not say so, or it is no frame.
    """
    import zstandard

    try:
        size = zstandard.frame_content_size(bytes(memoryview(body)[:HEADER_BYTES]))
    except zstandard.ZstdError:
        raise WireError("body: expected a zstd frame, as Content-Encoding says, got other bytes") from None
    if size in UNKNOWN_SIZES:
        raise WireError("body: expected a zstd frame that states the size of its content, got one that does not")
    return int(size)


def decompress(body: Any, target: memoryview, stopped: Callable[[], bool] = lambda: False) -> None:
    """Decompress a zstd frame into `target`, which has the size that it states.

    Args:
        body: the frame.
        target: takes its content.
        stopped: asked after each piece whether nobody wants the rest.

    Raises:
        WireError: the frame is broken off, damaged or longer than it states.
    """
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(body, read_across_frames=True)
    at = 0
    try:
        while at < len(target) and not stopped():
            got = reader.readinto(target[at : at + PIECE])
            if not got:
                raise WireError(f"body: expected {len(target)} bytes in its zstd frame, got {at}: it was broken off")
            at += got
        if not stopped() and reader.read(1):
            raise WireError(f"body: expected {len(target)} bytes, as its zstd frame states, got more")
    except zstandard.ZstdError as error:
        words = str(error).removeprefix("zstd decompress error: ")
        raise WireError(
            f"body: expected a whole zstd frame with a window of at most {MAX_WINDOW_BYTES >> 20} MiB, got one that "
            f"cannot be decompressed ({words})"
        ) from None
