"""Pipes of the kernel that bodies go through: Pipe, and BodyCopy, which keeps what has gone through one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import socket
import sys
from collections.abc import Callable

__all__ = ["NO_WAIT", "PIPE_BYTES", "BodyCopy", "Pipe", "may_relay"]

PIPE_BYTES = 1 << 20
"""Size of a pipe: what Linux lets each user have."""
NO_WAIT = 2
"""SPLICE_F_NONBLOCK."""
_SET_SIZE = 1031  # F_SETPIPE_SZ


class Pipe:
    """A pipe, which does not block."""

    def __init__(self) -> None:
        assert sys.platform == "linux"
        import fcntl

        self.read_end, self.write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # there are many: it stays at 64 KiB
            fcntl.fcntl(self.write_end, _SET_SIZE, PIPE_BYTES)

    def close(self) -> None:
        """Drop what is in it."""
        os.close(self.read_end)
        os.close(self.write_end)


class BodyCopy:
    """The bytes that a relay has moved, kept to be sent again."""

    def __init__(self) -> None:
        self._pipe: Pipe | None = Pipe()
        self._in_pipe = 0
        self._parts: list[bytes] = []

    def take(self, source: int, nbytes: int) -> int:
        """Keep the first bytes that are in a pipe, which keeps them too; return how many."""
        assert self._pipe is not None
        number = self._tee(source, nbytes)
        if number <= 0:  # full: small packets fill a pipe before its size
            self._read()
            number = self._tee(source, nbytes)
        if number <= 0:
            raise OSError(errno.EIO, f"tee: errno {ctypes.get_errno()}")
        self._in_pipe += number
        return number

    def add(self, part: bytes) -> None:
        """Keep further bytes."""
        self._read()
        self._parts.append(part)

    def parts(self) -> list[bytes]:
        """All of them, in order."""
        self._read()
        return self._parts

    def close(self) -> None:
        """Drop them. Calling it twice is safe."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe, self._in_pipe = None, 0

    def _tee(self, source: int, nbytes: int) -> int:
        assert self._pipe is not None
        number: int = _libc().tee(source, self._pipe.write_end, ctypes.c_size_t(nbytes), NO_WAIT)
        return number

    def _read(self) -> None:
        while self._in_pipe and self._pipe is not None:
            part = os.read(self._pipe.read_end, self._in_pipe)
            self._parts.append(part)
            self._in_pipe -= len(part)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def may_relay() -> bool:
    """Whether this system can splice and tee between connections: some sandboxes of Linux cannot."""
    if sys.platform != "linux" or not hasattr(_libc(), "tee"):
        return False
    closing: list[Callable[[], None]] = []
    try:
        left, right = socket.socketpair()
        closing += [left.close, right.close]
        pipe = Pipe()
        closing.append(pipe.close)
        copy = BodyCopy()
        closing.append(copy.close)
        right.send(b"ab")
        os.splice(left.fileno(), pipe.write_end, 2, flags=NO_WAIT)
        copy.take(pipe.read_end, 2)
        os.splice(pipe.read_end, left.fileno(), 2, flags=NO_WAIT)
        return copy.parts() == [b"ab"] and right.recv(2) == b"ab"
    except OSError:
        return False
    finally:
        for close in closing:
            close()
