"""Frames of zstd: the same bytes back, and one sentence for what is no whole frame."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from opbox_protocol import zstd
from opbox_protocol.errors import WireError

IMAGES = memoryview(np.repeat(np.random.default_rng(0).integers(0, 8, 4900) / 8, 16).astype(np.float32)).cast("B")
NOISE = memoryview(np.random.default_rng(0).standard_normal(78400).astype(np.float32)).cast("B")


def frame(chunks: list[object]) -> bytes:
    return b"".join(zstd.compress(chunks))


def content(body: bytes) -> bytes:
    target = bytearray(zstd.stated_size(body))
    zstd.decompress(body, memoryview(target))
    return bytes(target)


@pytest.mark.parametrize("chunks", [[b"x"], [b"head", IMAGES, b"", NOISE], [bytes(5 << 20)]])
def test_the_same_bytes_come_back(chunks: list[memoryview]) -> None:
    body = frame([*chunks])
    assert content(body) == b"".join(bytes(memoryview(chunk).cast("B")) for chunk in chunks)
    assert frame([*chunks]) == body


def test_samples_tell_what_shrinks() -> None:
    assert zstd.sample([IMAGES]).ratio < 0.3
    assert zstd.sample([NOISE]).ratio > 0.9
    both = zstd.sample([bytes(100_000), NOISE[:100_000]])
    assert 0.3 < both.ratio < 0.7
    assert 0 < both.seconds < 1


WHOLE = frame([IMAGES])
WIDE = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (WHOLE[:-5], "its zstd frame, got .*: it was broken off"),
        (WHOLE[:20], "it was broken off"),
        (WHOLE + b"x", "cannot be decompressed"),
        (WHOLE + WHOLE, "expected 313600 bytes, as its zstd frame states, got more"),
        (WHOLE[:10] + b"\xff" * 5 + WHOLE[15:], "cannot be decompressed"),
        (b"hello", "expected a zstd frame, as Content-Encoding says, got other bytes"),
        (b"", "expected a zstd frame, as Content-Encoding says, got other bytes"),
        (
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)),
            "that states the size of its content",
        ),
        (zstandard.ZstdCompressor(compression_params=WIDE).compress(bytes(1 << 24)), "with a window of at most 8 MiB"),
    ],
    ids=["cut", "head", "tail", "two", "damaged", "other", "empty", "sizeless", "wide"],
)
def test_what_is_no_whole_frame(body: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=f"^body: .*({sentence})") as caught:
        content(body)
    assert "\n" not in str(caught.value)


def test_what_nobody_wants_any_more_is_not_decompressed() -> None:
    target = bytearray(8 << 20)
    pieces = iter([False, True])
    zstd.decompress(frame([b"\1" * len(target)]), memoryview(target), lambda: next(pieces, True))
    assert target[0] == 1
    assert target[-1] == 0
