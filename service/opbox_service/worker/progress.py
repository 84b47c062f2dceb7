"""A page of shared memory where a code process writes which command it runs, for the API process to read.

A message would not do: code that never returns sends none. The page is written with two small stores a command.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

__all__ = ["Progress", "Seen"]

_PAGE = struct.Struct("<QQQ")
_BEATS = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Seen:
    """The page at one moment.

    Attributes:
        commands: begun so far.
        running: whether one runs.
        code: whether code has been brought.
        beats: how often it has shown that it is alive.
    """

    commands: int = 0
    running: bool = False
    code: bool = False
    beats: int = 0


class Progress:
    """One side's mapping of the page.

    Args:
        fd: of the page; a new one without it. It stays open.
    """

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("opbox-progress", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, mmap.PAGESIZE)
            # Whoever reads past the end of a file that another has cut short dies of it.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._commands = 0
        self._code = False
        self._beats = 0

    def read(self) -> Seen:
        """Read the progress that the other process has written."""
        commands, running, code = _PAGE.unpack_from(self._page)
        (beats,) = _BEATS.unpack_from(self._page, _PAGE.size)
        return Seen(commands, bool(running), bool(code), beats)

    def began(self, brings_code: bool) -> None:
        """A command begins."""
        self._commands += 1
        self._code = self._code or brings_code
        _PAGE.pack_into(self._page, 0, self._commands, 1, self._code)

    def ended(self) -> None:
        """Called when a command has ended."""
        _PAGE.pack_into(self._page, 0, self._commands, 0, self._code)

    def beat(self) -> None:
        """Note that the process is alive: its threads get their turn."""
        self._beats += 1
        _BEATS.pack_into(self._page, _PAGE.size, self._beats)

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()
        os.close(self.fd)
