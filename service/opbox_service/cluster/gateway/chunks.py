"""ChunkReader: finds the end of a body in chunks, and the data in it. It takes what RFC 9112 has, and nothing else."""

from __future__ import annotations

import re

from opbox_protocol.errors import BadRequestError

__all__ = ["ChunkReader"]

MAX_LINE = 256
"""Maximum bytes of a chunk's size with its extensions, and of a trailer's line."""
MAX_TRAILERS = 64
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?")


class ChunkReader:
    """Reads a body in chunks piece by piece.

    Attributes:
        done: whether all of it has come.
    """

    __slots__ = ("_left", "_line", "_state", "_trailers", "done")

    def __init__(self) -> None:
        self.done = False
        self._state = "size"
        self._left = 0
        self._line = b""
        self._trailers = 0

    def take(self, piece: bytes) -> tuple[int, list[bytes]]:
        """Read a piece.

        Returns:
            How many of its bytes belong to the body, and the data in them.

        Raises:
            BadRequestError: it is no body in chunks.
        """
        at, data = 0, []
        while at < len(piece) and not self.done:
            if self._state == "data":
                part = piece[at : at + self._left]
                data.append(part)
                at += len(part)
                self._left -= len(part)
                if not self._left:
                    self._state = "end"
                continue
            end = piece.find(b"\n", at, at + MAX_LINE + 2)
            stop = len(piece) if end < 0 else end + 1
            self._line += piece[at:stop]
            at = stop
            if len(self._line) > MAX_LINE + 2:
                raise BadRequestError(f"body in chunks: expected lines of at most {MAX_LINE} bytes, got a longer one")
            if end >= 0:
                self._end_line()
        return at, data

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise BadRequestError("body in chunks: expected lines that end with CR LF, got LF alone")
        line = line[:-2]
        if self._state == "size":
            match = _SIZE.fullmatch(line)
            if match is None:
                raise BadRequestError("body in chunks: expected the size of a chunk in hex digits, got something else")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailers"
        elif self._state == "end":
            if line:
                raise BadRequestError("body in chunks: expected CR LF behind a chunk, got something else")
            self._state = "size"
        elif not line:
            self.done = True
        else:
            self._trailers += 1
            if self._trailers > MAX_TRAILERS:
                raise BadRequestError(f"body in chunks: expected at most {MAX_TRAILERS} trailers, got more")
