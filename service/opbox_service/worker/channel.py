"""The API process's end of a worker's connection: whole messages, sent and read without ever waiting."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from . import messages

__all__ = ["Channel"]

TURN, DRAIN = 64, 4096
"""Number of messages to read before other callbacks get their turn."""


class Channel:
    """One end of a connection.

    Args:
        sock: the end.
        take: called with each message and the descriptor that came with it; what it raises is a malformed message.
        refuse: called after a malformed message, in the handler of its exception; nothing is read any more.
        disconnected: called when the other end is closed.
    """

    def __init__(
        self,
        sock: socket.socket,
        take: Callable[[bytes, int | None], None],
        refuse: Callable[[], None],
        disconnected: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._take = take
        self._refuse = refuse
        self._disconnected = disconnected
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()

    @classmethod
    def pair(
        cls,
        take: Callable[[bytes, int | None], None],
        refuse: Callable[[], None],
        disconnected: Callable[[], None],
    ) -> tuple[Channel, socket.socket]:
        """A channel, and the other end for the process; OSError when the system has no room."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours, take, refuse, disconnected), theirs

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def send(self, message: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send a message, now or as soon as there is room, after those before it."""
        if self._outbox:
            self._outbox.append((message, fds))
            return
        try:
            messages.send(self._sock, message, fds)
        except BlockingIOError:
            self._outbox.append((message, fds))
            self._loop.add_writer(self._sock.fileno(), self._flush)
        except OSError:
            # The process has ended; its watcher answers the calls.
            return

    def _flush(self) -> None:
        try:
            while self._outbox:
                messages.send(self._sock, *self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._outbox.clear()
        self._loop.remove_writer(self._sock.fileno())

    def read(self) -> None:
        """Start reading."""
        self._loop.add_reader(self._sock.fileno(), self._read, TURN)

    def stop_reading(self) -> None:
        """Stop reading."""
        self._loop.remove_reader(self._sock.fileno())

    def read_rest(self) -> None:
        """Read what has come before the other end's process ended, in bounds."""
        self._read(DRAIN)

    def _read(self, most: int) -> None:
        for _ in range(most):
            try:
                message, fd = messages.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                message, fd = b"", None
            if not message:
                if most == TURN:
                    self._disconnected()
                return
            try:
                self._take(message, fd)
            except Exception:
                self.stop_reading()
                self._refuse()
                return

    def finish(self) -> None:
        """Tell the other end that nothing more will be sent."""
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end; what was not sent is lost."""
        if not self.closed:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
