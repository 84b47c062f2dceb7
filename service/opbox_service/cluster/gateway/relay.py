"""Relay: moves a large body from one connection to another by `splice`, so that its bytes stay in the kernel.

A body that may have to be sent again is kept in a second pipe: `tee` lets both pipes have the same pages. Linux alone
has this; elsewhere, and where there are too many at once, bodies are read and written as small ones are.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Protocol

from .pipes import NO_WAIT, PIPE_BYTES, BodyCopy, Pipe, may_relay

__all__ = ["FILES_OF_RELAYS", "RELAYED_BYTES", "Relay", "RelayOwner", "Relays"]

RELAYED_BYTES = 1 << 18
"""Bytes that have to be left of a body for it to be worth the while."""
MAX_RELAYS = 64
"""Maximum number at a time."""
FILES_OF_RELAYS = 6 * MAX_RELAYS
TURNS = 8
"""Fillings of the pipe before other connections have their turn."""
IDLE_PIPES = 8


class RelayOwner(Protocol):
    """Whom a relay tells what has become of a body."""

    def relay_read(self, nbytes: int) -> None:
        """So many bytes have come."""

    def relay_ended(self) -> None:
        """All of it has been passed on."""

    def relay_waits(self) -> None:
        """The side that it goes to takes no more for now."""

    def relay_broke(self, *, source: bool) -> None:
        """A connection has ended before that: the one that it comes from, or the one that it goes to."""


class Relay:
    """Moves so many bytes from one connection to another.

    Args:
        relays: which it is of.
        source, sink: the connections' files, which it closes at its end.
        nbytes: to move.
        owner: is told.
        copy: keeps them, where they may be sent again.
    """

    def __init__(
        self, relays: Relays, source: int, sink: int, nbytes: int, owner: RelayOwner, copy: BodyCopy | None
    ) -> None:
        self._relays, self._source, self._sink, self._owner = relays, source, sink, owner
        self._loop = asyncio.get_running_loop()
        self._left = nbytes
        self._pipe = relays.pipe()
        self._in_pipe = self._in_copy = 0
        self._copy = copy
        self._waits_for: str | None = None
        self._is_over = False

    def start(self) -> None:
        """Move what there is, and what comes."""
        self._wait_for("source")
        self._go_on()

    def stop(self, *, keep: bool = False) -> None:
        """End it; with `keep`, what it has read and not passed on is kept too. Calling it twice is safe."""
        if self._is_over:
            return
        self._is_over = True
        self._wait_for(None)
        if keep and self._copy is not None and self._in_pipe:
            rest = self._in_copy
            read = b""
            while len(read) < self._in_pipe:
                read += os.read(self._pipe.read_end, self._in_pipe - len(read))
            self._copy.add(read[rest:])
            self._in_pipe = 0
        os.close(self._source)
        os.close(self._sink)
        self._relays.done(self._pipe, is_empty=not self._in_pipe)

    def drop_kept(self) -> None:
        """Keep no more."""
        self._copy, self._in_copy = None, 0

    def _go_on(self) -> None:
        source = True
        try:
            for _ in range(TURNS):
                source = True
                if not self._in_pipe:
                    number = self._read()
                    if not number:
                        self._broke(source=True)
                        return
                    self._in_pipe = number
                    self._left -= number
                    self._owner.relay_read(number)
                source = False
                while self._in_pipe:
                    self._write()
                if not self._left:
                    self.stop()
                    self._owner.relay_ended()
                    return
        except BlockingIOError:
            if not source:
                self._owner.relay_waits()
            self._wait_for("source" if source else "sink")
        except OSError:
            self._broke(source=source)

    def _read(self) -> int:
        assert sys.platform == "linux"
        return os.splice(self._source, self._pipe.write_end, min(self._left, PIPE_BYTES), flags=NO_WAIT)

    def _write(self) -> None:
        assert sys.platform == "linux"
        number = self._in_pipe
        if self._copy is not None:
            if not self._in_copy:
                self._in_copy = self._copy.take(self._pipe.read_end, number)
            number = self._in_copy
        moved = os.splice(self._pipe.read_end, self._sink, number, flags=NO_WAIT)
        self._in_pipe -= moved
        if self._copy is not None:
            self._in_copy -= moved

    def _broke(self, *, source: bool) -> None:
        self._wait_for(None)
        self._owner.relay_broke(source=source)

    def _wait_for(self, side: str | None) -> None:
        if side == self._waits_for:
            return
        if self._waits_for == "source":
            self._loop.remove_reader(self._source)
        elif self._waits_for == "sink":
            self._loop.remove_writer(self._sink)
        self._waits_for = side
        if side == "source":
            self._loop.add_reader(self._source, self._go_on)
        elif side == "sink":
            self._loop.add_writer(self._sink, self._go_on)


class Relays:
    """All relays of a gateway.

    Attributes:
        begun: how many there have been.
    """

    max_relays = MAX_RELAYS

    def __init__(self) -> None:
        self.begun = 0
        self._number = 0
        self._idle: list[Pipe] = []

    def may_open(self, *transports: asyncio.BaseTransport) -> bool:
        """Whether there may be one more, between these connections: they have no TLS."""
        return (
            self._number < self.max_relays
            and may_relay()
            and all(transport.get_extra_info("sslcontext") is None for transport in transports)
        )

    def body_copy(self) -> BodyCopy | None:
        """What keeps a body; None where there are no files left for it."""
        try:
            return BodyCopy()
        except OSError:
            return None

    def open(
        self,
        source: asyncio.BaseTransport,
        sink: asyncio.BaseTransport,
        nbytes: int,
        owner: RelayOwner,
        copy: BodyCopy | None = None,
    ) -> Relay | None:
        """A relay between two connections; None where there can be none. It is to be started, or stopped."""
        files: list[int] = []
        try:
            for transport in (source, sink):
                if transport.is_closing():
                    raise OSError("the connection has ended")
                files.append(os.dup(transport.get_extra_info("socket").fileno()))
            relay = Relay(self, files[0], files[1], nbytes, owner, copy)
        except OSError:
            for file in files:
                os.close(file)
            return None
        self._number += 1
        self.begun += 1
        return relay

    def pipe(self) -> Pipe:
        """An empty pipe."""
        return self._idle.pop() if self._idle else Pipe()

    def done(self, pipe: Pipe, *, is_empty: bool) -> None:
        """A relay has ended; use its pipe again."""
        self._number -= 1
        if is_empty and len(self._idle) < IDLE_PIPES:
            self._idle.append(pipe)
        else:
            pipe.close()

    def close(self) -> None:
        """Close the pipes that are idle."""
        while self._idle:
            self._idle.pop().close()
