"""Files in memory that one process writes and another reads, sealed so that the writer cannot harm the reader.

A sealed file cannot shrink, which would kill a process that has mapped it (SIGBUS). Reading it never waits, as reading
a pipe or a file of a slow file system does, and its end comes, as that of /dev/zero does not.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

__all__ = ["ALL_SEALS", "SIZE_SEALS", "Descriptor", "check_sealed", "map_sealed", "pieces_of", "write_sealed"]

SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
"""A file of a fixed size, which may be written to again: a transfer buffer."""
ALL_SEALS = SIZE_SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
"""A file that nobody changes any more."""
PIECE = 1 << 20
"""Bytes to read at a time; between two pieces it is checked whether to go on."""
Buffer: TypeAlias = "bytes | memoryview"


class Descriptor:
    """A descriptor that came with a message. Whoever keeps it takes it; otherwise it is closed with the message.

    Example:
        >>> with Descriptor(fd) as descriptor:
        ...     keep(descriptor.take())
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __bool__(self) -> bool:
        return self._fd is not None

    def status(self) -> os.stat_result:
        """Return the status of its file; ValueError when none came with the message."""
        if self._fd is None:
            raise ValueError("expected a descriptor with the message, got none")
        return os.fstat(self._fd)

    def take(self) -> int:
        """Return the descriptor; from here on the caller closes it.

        Raises:
            ValueError: none came with the message.
        """
        fd, self._fd = self._fd, None
        if fd is None:
            raise ValueError("expected a descriptor with the message, got none")
        return fd

    def close(self) -> None:
        """Close the descriptor, unless somebody took it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def write_sealed(name: str, parts: Sequence[Buffer]) -> int:
    """Write the parts to a new file in memory, seal it, and return its descriptor.

    Raises:
        OSError: the system has no memory for it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(os.dup(fd), "wb", buffering=0) as file:
            for part in parts:
                view = memoryview(part)
                while len(view):
                    view = view[file.write(view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, ALL_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_sealed(fd: int, seals: int = ALL_SEALS & ~fcntl.F_SEAL_SEAL) -> int:
    """Return the size of a sealed file in memory.

    Args:
        fd: of the file; stays open.
        seals: that it must have.

    Raises:
        ValueError: it is another kind of file, or lacks a seal.
    """
    try:
        sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("expected a sealed file in memory, got another kind of file") from None
    if seals & ~sealed:
        raise ValueError("expected a file in memory that is sealed against changes, got one without those seals")
    # Huge pages may be missing when they are read for the first time, which kills the reader.
    if os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        raise ValueError("expected a file in memory of usual pages, got one of huge pages")
    return os.fstat(fd).st_size


def map_sealed(fd: int) -> memoryview:
    """Map a sealed file, or one that nobody writes to, for reading. The descriptor stays open."""
    # Before Linux 6.7 a file that is sealed against writing could not be mapped otherwise.
    return memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))


def pieces_of(fd: int, begin: int, end: int, go_on: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Read the bytes from `begin` to before `end` piece by piece, wherever other processes have moved the position to.

    Args:
        fd: of the file.
        begin, end: positions.
        go_on: called before each piece; raises an exception to stop.

    Raises:
        OSError: the file is shorter.
    """
    while begin < end:
        go_on()
        piece = os.pread(fd, min(PIECE, end - begin), begin)
        if not piece:
            raise OSError(0, "its size changed meanwhile")
        begin += len(piece)
        yield piece
