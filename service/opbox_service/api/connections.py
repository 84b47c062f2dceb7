"""Connections: how many there may be, which one ends when there are too many, and what they hold before a request.

Nobody has shown a token yet when a connection is accepted. So all connections share one buffer to read into, and there
are limits: to their number, in all and by address; to the silent ones, on which no request has come yet; and to the
bytes that wait in requests' heads. At a limit the connection that has been silent for longest ends, then the one that
has been idle for longest. A new one is refused only where every connection has a request.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from opbox_protocol.errors import NotReadyError

from ..settings import Settings

__all__ = ["READ_BYTES", "Connections", "ConnectionEntry"]

MAX_ANSWERS = 64
"""Maximum number of connections that are being told that there are too many; further ones are cut at once."""

READ_BYTES = 1 << 16
"""Bytes to read at a time from a connection."""
SILENT_SHARE = 4
"""One in so many connections may be without its first request."""
MAX_WAITING_BYTES = 16 << 20
"""Maximum bytes of all heads that are not whole, and of requests behind one that is being answered."""
SMALL_WAITING_BYTES = 8 << 10
"""A connection with at most this many of them is never refused for the sum. Heads of clients have 1 or 2 KiB."""


@dataclass(slots=True, eq=False)
class ConnectionEntry:
    """One connection, as it is counted.

    Attributes:
        address: whose limit it counts towards; empty where only the limit of all applies.
        end: ends the connection when another needs its place.
        waiting_bytes: of its requests, that wait in memory.
    """

    address: str
    end: Callable[[], object]
    waiting_bytes: int = field(default=0, init=False)


class Connections:
    """Counts a server's connections, and ends or refuses those beyond the limits. Used by the loop's thread alone.

    Args:
        settings: the limits.

    Attributes:
        settings: as above.
        buffer: all connections read into it, as what has been read is parsed or copied before the next read.
        view: of the buffer.
        refused: the number of connections that were refused or cut, by reason.
        lost: the number of connections that have ended.
        default_headers: uvicorn's of the moment, in its list and as lines.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.refused: Counter[str] = Counter()
        self.lost = 0
        self.default_headers: tuple[list[tuple[bytes, bytes]], bytes] = [], b""
        self._limit = settings.max_connections
        self._proxies = [ipaddress.ip_network(proxy) for proxy in settings.trusted_proxies]
        self._address_of = lru_cache(maxsize=1024)(self._limited_address)
        self._entries: set[ConnectionEntry] = set()
        self._of_address: Counter[str] = Counter()
        self._silent: dict[ConnectionEntry, None] = {}
        self._idle: dict[ConnectionEntry, None] = {}
        self._waiting_bytes = 0
        self._answers: set[object] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def lower(self, limit: int) -> None:
        """Allow at most `limit` connections, where the settings allow more."""
        self._limit = min(self._limit, limit)

    def admit(self, peer: str | None, end: Callable[[], object]) -> ConnectionEntry:
        """Count a new connection, on which no request has come yet.

        Args:
            peer: the address at its other end; None for a Unix socket.
            end: ends the connection.

        Raises:
            NotReadyError: there are too many, and all of them have a request.
        """
        entry = ConnectionEntry("" if peer is None else self._address_of(peer), end)
        limit = self.settings.max_connections_per_address
        if entry.address and self._of_address[entry.address] >= limit and not self._end_one(entry.address):
            self.refused["address"] += 1
            raise NotReadyError(
                f"connections: expected at most {limit} from {entry.address}, got more: close some, or start the "
                "server with a larger OPBOX_MAX_CONNECTIONS_PER_ADDRESS"
            )
        if len(self._entries) >= self._limit and not self._end_one():
            self.refused["all"] += 1
            raise NotReadyError(
                f"connections: expected at most {self._limit}, got more: try again in a moment, or start the server "
                "with a larger OPBOX_MAX_CONNECTIONS"
            )
        if len(self._silent) >= max(1, self._limit // SILENT_SHARE):
            self._end(next(iter(self._silent)), "silent")
        self._entries.add(entry)
        self._silent[entry] = None
        if entry.address:
            self._of_address[entry.address] += 1
        return entry

    def answers(self, connection: object) -> bool:
        """Whether a connection that is not admitted is to be answered, until `answered`."""
        if len(self._answers) >= MAX_ANSWERS:
            return False
        self._answers.add(connection)
        return True

    def answered(self, connection: object) -> None:
        """A connection that was not admitted has ended."""
        self._answers.discard(connection)

    def begin(self, entry: ConnectionEntry) -> None:
        """A request's head has come on a connection."""
        if entry in self._idle:
            del self._idle[entry]
        else:
            self._silent.pop(entry, None)

    def rest(self, entry: ConnectionEntry) -> None:
        """A connection's request has been answered."""
        if entry in self._entries:
            self._idle[entry] = None

    def wait(self, entry: ConnectionEntry, nbytes: int) -> bool:
        """Note how many bytes of a connection's requests wait in memory; False if they are too many."""
        self._waiting_bytes += nbytes - entry.waiting_bytes
        entry.waiting_bytes = nbytes
        return nbytes <= SMALL_WAITING_BYTES or self._waiting_bytes <= MAX_WAITING_BYTES

    def leave(self, entry: ConnectionEntry) -> None:
        """A connection has ended. Calling it twice is safe."""
        if entry not in self._entries:
            return
        self.wait(entry, 0)
        self.lost += 1
        self._entries.remove(entry)
        self._silent.pop(entry, None)
        self._idle.pop(entry, None)
        if entry.address:
            self._of_address[entry.address] -= 1
            if not self._of_address[entry.address]:
                self._of_address.pop(entry.address)

    def _end_one(self, address: str = "") -> bool:
        """End the connection that has been silent or else idle for longest, of an address where one is named."""
        for entries in (self._silent, self._idle):
            for entry in entries:
                if not address or entry.address == address:
                    self._end(entry, "silent" if entries is self._silent else "idle")
                    return True
        return False

    def _end(self, entry: ConnectionEntry, reason: str) -> None:
        self.refused[reason] += 1
        self.leave(entry)
        entry.end()

    def _limited_address(self, peer: str) -> str:
        """The address, or for IPv6 the network, whose limit a peer counts towards; empty for a trusted proxy."""
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self._proxies):
            return ""
        # Whoever has one address of IPv6 has all of the last 64 bits.
        return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
