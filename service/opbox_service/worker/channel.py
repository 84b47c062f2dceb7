"""The API process's end of a worker's connection: whole messages, sent and read without ever waiting."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from . import messages

__all__ = ["Channel"]

TURN_S, DRAIN_S = 0.002, 0.1
"""Seconds to read before other callbacks get their turn; seconds to read what an ended process has left."""
TURN = 64
"""Number of messages to read before that at the most."""
MAX_WAITING = 10_000
"""Maximum number of messages that wait until the other end reads them."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that waits to be sent.

    Attributes:
        message, fds: see `messages.send`.
        sent: called when it has been sent, or cannot be any more.
    """

    message: bytes
    fds: tuple[int, ...]
    sent: Callable[[], None]


class Channel:
    """One end of a connection.

    Args:
        sock: the end.
        take: called with each message and the descriptor that came with it; what it raises is a malformed message.
        refuse: called with the exception after a malformed message; nothing is read any more.
        disconnected: called when the other end is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[bytes, int | None], None],
        refuse: Callable[[Exception], None],
        disconnected: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._take = take
        self._refuse = refuse
        self._disconnected = disconnected
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[Outgoing] = deque()
        self._refused = False

    @classmethod
    def pair(
        cls,
        take: Callable[[bytes, int | None], None],
        refuse: Callable[[Exception], None],
        disconnected: Callable[[], None],
    ) -> tuple[Channel, socket.socket]:
        """A channel, and the other end for the process; OSError when the system has no room."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, take, refuse, disconnected), theirs

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def send(self, message: bytes, fds: tuple[int, ...] = (), sent: Callable[[], None] = lambda: None) -> None:
        """Send a message, now or as soon as there is room, after those before it.

        Args:
            message, fds: see `messages.send`.
            sent: called when it has been sent, or cannot be any more: the descriptors are the caller's again.
        """
        if not self._outbox and not self.closed:
            try:
                messages.send(self._sock, message, fds)
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._flush)
            except OSError:
                # The process has ended; its watcher answers the calls.
                sent()
                return
            else:
                sent()
                return
        if self.closed or len(self._outbox) >= MAX_WAITING:
            sent()
            if not self.closed:
                self._give_up(ValueError(f"expected messages to be read, got {MAX_WAITING} that wait"))
            return
        self._outbox.append(Outgoing(message, fds, sent))

    def _flush(self) -> None:
        try:
            while self._outbox:
                messages.send(self._sock, self._outbox[0].message, self._outbox[0].fds)
                self._outbox.popleft().sent()
        except BlockingIOError:
            return
        except OSError:
            self._drop_outbox()
        self._loop.remove_writer(self._sock.fileno())

    def _drop_outbox(self) -> None:
        while self._outbox:
            self._outbox.popleft().sent()

    def read(self) -> None:
        """Start reading."""
        self._loop.add_reader(self._sock.fileno(), self._read, TURN_S)

    def stop_reading(self) -> None:
        """Stop reading."""
        self._loop.remove_reader(self._sock.fileno())

    def read_rest(self) -> None:
        """Read what has come before the other end's process ended, in bounds."""
        self._read(DRAIN_S)

    def _read(self, seconds: float) -> None:
        end, left = time.monotonic() + seconds, TURN
        while left and not self._refused:
            try:
                message, fd = messages.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                message, fd = b"", None
            except ValueError as error:
                self._give_up(error)
                return
            if not message:
                if seconds == TURN_S:
                    self._disconnected()
                return
            try:
                self._take(message, fd)
            except Exception as error:
                self._give_up(error)
                return
            if time.monotonic() > end:
                return
            left -= seconds == TURN_S

    def _give_up(self, error: Exception) -> None:
        self._refused = True
        self.stop_reading()
        self._refuse(error)

    def finish(self) -> None:
        """Tell the other end that nothing more will be sent."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; what was not sent is lost."""
        if not self.closed:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
        self._drop_outbox()
