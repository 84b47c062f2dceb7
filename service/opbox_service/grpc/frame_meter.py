"""FrameMeter: how much a connection of HTTP/2 may ask for without getting anything done.

A frame of 9 bytes costs the server as much as one of 16 KiB with data. So frames without data cost credits: resets,
pings, settings, priorities, pieces of headers. A connection earns credits by time, and by what the server answers.
"""

from __future__ import annotations

from collections.abc import Callable

from opbox_protocol.errors import LimitError

__all__ = ["FrameMeter"]

CREDITS = 1000
"""Credits of a new connection, and the most that one can have."""
CREDITS_PER_S = 100.0
MAX_FRAME_BYTES = 1 << 14
"""HTTP/2's usual limit. The parser checks it when all of a frame is in memory, which may have 16 MiB."""
SMALL_DATA_BYTES = 1024
"""A data frame of fewer bytes costs a credit."""
HEADERS_COST = 4
EARNED_BY_ANSWER = 2 * HEADERS_COST
"""More than a call costs, so that a connection whose calls are answered never runs out of credits."""
EARNED_BY_DATA = 4
"""For each data frame that the server writes: clients answer one with window updates and pings."""

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _HEADERS, _CONTINUATION = 0, 1, 9
_END_HEADERS = 4


class FrameMeter:
    """Counts the frames that come on a connection, before they are parsed.

    Args:
        max_block_bytes: the most bytes of a call's headers, as they are compressed.
        now: the time in seconds.
    """

    def __init__(self, max_block_bytes: int, now: Callable[[], float]) -> None:
        self._max_block_bytes = max_block_bytes
        self._now = now
        self._head = bytearray()  # of the next frame, as much as has come
        self._left = _PREFACE_BYTES  # bytes until the next frame
        self._block = 0  # bytes of headers that have not ended
        self._credits = float(CREDITS)
        self._since = now()

    def take(self, data: memoryview) -> None:
        """Count the frames that begin in what has been read.

        Raises:
            LimitError: they are too many, or one of them or its call's headers are too large.
        """
        now = self._now()
        self.earn((now - self._since) * CREDITS_PER_S)
        self._since = now
        at, size = 0, len(data)
        while True:
            step = min(self._left, size - at)
            at += step
            self._left -= step
            if at == size:
                return
            step = min(_HEAD_BYTES - len(self._head), size - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == _HEAD_BYTES:
                self._begin(int.from_bytes(self._head[:3], "big"), self._head[3], self._head[4])
                self._head.clear()

    def earn(self, credits: float) -> None:
        """Add credits."""
        self._credits = min(CREDITS, self._credits + credits)

    def _begin(self, nbytes: int, kind: int, flags: int) -> None:
        """Count a frame, of which the head has come."""
        self._left = nbytes
        if nbytes > MAX_FRAME_BYTES:
            raise LimitError(f"a frame: expected at most {MAX_FRAME_BYTES} bytes, got {nbytes}")
        if kind in (_HEADERS, _CONTINUATION):
            self._block += nbytes
            if self._block > self._max_block_bytes:
                raise LimitError(f"headers: expected at most {self._max_block_bytes} bytes, got {self._block}")
            if flags & _END_HEADERS:
                self._block = 0
            self._credits -= HEADERS_COST
        elif kind != _DATA or nbytes < SMALL_DATA_BYTES:
            self._credits -= 1
        if self._credits < 0:
            raise LimitError(f"frames: expected at most {CREDITS} without data or an answer at a time, got more")
