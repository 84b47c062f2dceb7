"""A session's membership of a group: its rank, its connections with the others, and what has broken it."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from opbox_protocol.errors import BadRequestError, PeerLostError

from .addresses import GroupAddress
from .handshake import CHANNELS, PeerConnections, connect

__all__ = ["Membership"]

ARRAYS, LAST_WORDS = range(CHANNELS)
LOOK_S = 0.05
"""Seconds between two looks at whether the call has been stopped."""
LAST_WORDS_S = 1.0
MAX_LAST_WORDS = 4096
VIEWS = 64
"""Maximum number of arrays' pieces in one call of the system."""
SILENCE_MS = 30_000
"""Milliseconds after which a machine that acknowledges nothing counts as gone."""
_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.DefaultSelector)
"""One for so few sockets and calls as an exchange has: it is made without a call of the system."""


class Membership:
    """One rank of a group. It listens from its beginning; `connect` waits for the others.

    A rank that leaves tells the others which rank has ended and why, so that all name the same one.

    Args:
        address: where it listens.
        rank, size: its number, and that of all ranks.
        secret: of the group.

    Attributes:
        rank, size: as above.
        address: for the other ranks, "10.0.0.5:41234".
        rounds: exchanges so far.

    Raises:
        BadRequestError: the address is none of this machine's.
        QuotaError: none of its ports is free.
    """

    def __init__(self, address: GroupAddress, rank: int, size: int, secret: bytes) -> None:
        self.rank, self.size, self.rounds = rank, size, 0
        self._secret, self._reachable = secret, address
        self._connections: PeerConnections | None = None
        self._broken: PeerLostError | None = None
        self._endings: list[Callable[[], None]] = []
        listener = address.listen(2 * size)
        listener.setblocking(False)
        self._listener: socket.socket | None = listener
        self.address = address.shown(listener.getsockname()[1])

    @property
    def others(self) -> list[int]:
        """All other ranks."""
        return [rank for rank in range(self.size) if rank != self.rank]

    @property
    def connected(self) -> bool:
        """Whether it can exchange arrays now."""
        return self._connections is not None and self._broken is None

    def connect(self, addresses: Sequence[str], timeout_s: float, check: Callable[[], None]) -> None:
        """Connect with all other ranks.

        Args:
            addresses: of all ranks, in their order.
            timeout_s: seconds that it may take.
            check: raises what the call has been stopped with.

        Raises:
            BadRequestError: the addresses are not those of the ranks, or one is outside of the network.
            DeadlineError: a rank did not come.
        """
        if len(addresses) != self.size:
            raise BadRequestError(f"addresses: expected one for each of {self.size} ranks, got {len(addresses)}")
        if self._listener is None:
            raise BadRequestError("connect_group: expected a group that is not connected yet, got one that has been")
        peers = {rank: self._reachable.peer(one) for rank, one in enumerate(addresses) if rank != self.rank}
        listener, self._listener = self._listener, None
        try:
            self._connections = connect(listener, self.rank, peers, self._secret, timeout_s, check)
        except BaseException as error:
            self._leave(self.rank, "it could not connect with all others")
            raise error
        finally:
            listener.close()
        for channels in self._connections.by_rank.values():
            for sock in channels.values():
                _tune(sock)

    def exchange(
        self,
        outgoing: Mapping[int, Sequence[memoryview]],
        incoming: Mapping[int, Sequence[memoryview]],
        check: Callable[[], None],
    ) -> None:
        """Send to and receive from other ranks at the same time.

        Args:
            outgoing: for some ranks, what is sent to each.
            incoming: for the same ranks, where what each sends is written.
            check: raises what the call has been stopped with.

        Raises:
            PeerLostError: a rank has ended, now or earlier; names it.
        """
        sockets = self._sockets()
        to_send = {rank: deque(view for view in views if view.nbytes) for rank, views in outgoing.items()}
        to_receive = {rank: deque(view for view in views if view.nbytes) for rank, views in incoming.items()}
        try:
            with _Selector() as selector:
                waits = dict.fromkeys(sorted({*to_send, *to_receive}), 0)
                ready = [(rank, selectors.EVENT_WRITE) for rank in waits]  # most often a socket takes it at once
                while True:
                    for rank, events in ready:
                        try:
                            if events & selectors.EVENT_READ:
                                _receive(sockets[rank], to_receive[rank])
                            if events & selectors.EVENT_WRITE:
                                _send(sockets[rank], to_send[rank])
                        except (OSError, EOFError) as error:
                            raise self._lost(rank, error) from error
                        waits[rank] = _follow(
                            selector, sockets[rank], rank, waits[rank], to_send[rank], to_receive[rank]
                        )
                    if not any(waits.values()):
                        break
                    check()
                    ready = [(key.data, events) for key, events in selector.select(LOOK_S)]
        except PeerLostError:
            raise
        except BaseException as error:
            self.break_off(f"its exchange was stopped: {error}")
            raise

    def look(self, timeout_s: float = 0.0) -> None:
        """Look for a rank that has ended, while nothing is exchanged with it here.

        Args:
            timeout_s: seconds to wait for one.

        Raises:
            PeerLostError: one has, now or earlier; names it.
        """
        connections = self._connections
        if self._broken is not None or connections is None:
            self._sockets()  # says why
            return
        with _Selector() as selector:
            try:
                for rank, channels in connections.by_rank.items():
                    selector.register(channels[LAST_WORDS], selectors.EVENT_READ, rank)
            except ValueError:  # closed by another thread, which has left
                self._sockets()
                return
            ready = selector.select(timeout_s)
        if ready:
            self._sockets()
            raise self._lost(ready[0][0].data, EOFError())

    def when_left(self, ending: Callable[[], None]) -> None:
        """Call `ending` when this rank leaves, for whatever reason; at once when it has left."""
        self._endings.append(ending)
        if self._broken is not None:
            self._end()

    def break_off(self, reason: str) -> None:
        """Leave in the middle of an exchange, which nobody can continue; the others get the reason."""
        if self._broken is None:
            self._leave(self.rank, reason)

    def close(self) -> None:
        """Leave; others that still exchange something get an error that names this rank."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._broken is None:
            self._leave(self.rank, "its session has ended")

    # -- inside -------------------------------------------------------------------------------------------------

    def _sockets(self) -> dict[int, socket.socket]:
        if self._broken is not None:
            raise PeerLostError(self._broken.message, detail=self._broken.detail)
        if self._connections is None:
            raise BadRequestError("group: expected one whose ranks are connected, got one before connect_group")
        return {rank: channels[ARRAYS] for rank, channels in self._connections.by_rank.items()}

    def _lost(self, rank: int, error: Exception) -> PeerLostError:
        """The error about a rank whose connection has ended, and what the others are told."""
        reason = f"its connection closed ({error})" if str(error) else "its connection closed"
        lost, why = self._last_words(rank) or (rank, reason)
        self._leave(lost, why)
        assert self._broken is not None
        return self._broken

    def _last_words(self, rank: int) -> tuple[int, str] | None:
        """The rank that has ended and the reason, as a rank that has left says; None when it said nothing."""
        assert self._connections is not None
        sock = self._connections.by_rank[rank][LAST_WORDS]
        text = b""
        until = time.monotonic() + LAST_WORDS_S
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while b"\n" not in text and len(text) < MAX_LAST_WORDS:
                sock.settimeout(max(0.001, until - time.monotonic()))
                piece = sock.recv(MAX_LAST_WORDS)
                if not piece:
                    break
                text += piece
            words = json.loads(text)
            lost = int(words["rank"])
            if 0 <= lost < self.size and lost != self.rank:
                return lost, str(words["reason"])
        return None

    def _leave(self, lost: int, reason: str) -> None:
        who = f"rank {lost}" if lost != self.rank else f"this rank, {lost},"
        self._broken = PeerLostError(
            f"all_reduce: rank {self.rank} of {self.size}: {who} has ended: {reason}: start the workers "
            "again, from the last checkpoint",
            detail={"rank": lost},
        )
        connections, self._connections = self._connections, None
        try:
            self._tell(connections, lost, reason)
        finally:
            self._end()

    def _end(self) -> None:
        """Call what `when_left` has, each once."""
        while self._endings:
            try:
                ending = self._endings.pop()
            except IndexError:  # another thread has the last one
                return
            ending()

    def _tell(self, connections: PeerConnections | None, lost: int, reason: str) -> None:
        """Close the connections, with last words."""
        if connections is None:
            return
        words = json.dumps({"rank": lost, "reason": reason[: MAX_LAST_WORDS // 8]}).encode() + b"\n"
        for channels in connections.by_rank.values():
            with contextlib.suppress(OSError, KeyError):
                channels[LAST_WORDS].send(words)
        connections.close()


def _tune(sock: socket.socket) -> None:
    """Have small messages leave at once, and a machine that has vanished noticed."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)


def _follow(
    selector: selectors.BaseSelector,
    sock: socket.socket,
    rank: int,
    before: int,
    sending: deque[memoryview],
    receiving: deque[memoryview],
) -> int:
    """Have the selector wait for what is still to be done on a socket; return that, `before` being what it was."""
    events = (selectors.EVENT_READ if receiving else 0) | (selectors.EVENT_WRITE if sending else 0)
    if before and not events:
        selector.unregister(sock)
    elif events and not before:
        selector.register(sock, events, rank)
    elif events != before:
        selector.modify(sock, events, rank)
    return events


def _receive(sock: socket.socket, places: deque[memoryview]) -> None:
    """Read what is there; EOFError at the connection's end."""
    with contextlib.suppress(BlockingIOError):
        while places:
            count = sock.recvmsg_into(list(islice(places, VIEWS)))[0]
            if not count:
                raise EOFError
            _advance(places, count)


def _send(sock: socket.socket, pieces: deque[memoryview]) -> None:
    """Send what the socket takes."""
    with contextlib.suppress(BlockingIOError):
        while pieces:
            _advance(pieces, sock.sendmsg(list(islice(pieces, VIEWS))))


def _advance(views: deque[memoryview], count: int) -> None:
    """Take bytes that are done off the first views."""
    while count:
        first = views[0]
        if count < first.nbytes:
            views[0] = first[count:]
            return
        count -= first.nbytes
        views.popleft()
