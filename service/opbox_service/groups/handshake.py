"""Connects the ranks of a group with each other, and lets nobody in who lacks the group's secret.

Each pair of ranks has two connections, one for arrays and one for the last words of a rank that leaves; the higher rank
connects. Who accepts sends a random number first, and each side proves by an HMAC over both sides' numbers that it has
the secret. Before that proof nothing of it is read but 69 bytes.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opbox_protocol.errors import DeadlineError

__all__ = ["CHANNELS", "PeerConnections", "connect"]

CHANNELS = 2
"""PeerConnections of a pair of ranks: for arrays, and for last words."""
_MAGIC = b"opbox-group-1\r\n\0"
_NONCE = 32
_HELLO = struct.Struct("<IB32s32s")
_PROVED = struct.Struct("<8sIIIB")
LOOK_S = 0.05
RETRY_S = 0.1
HANDSHAKE_S = 10.0
MAX_STRANGERS = 64
"""Maximum number of connections that have not proved themselves yet; further ones are closed."""


@dataclass(slots=True)
class PeerConnections:
    """A rank's sockets to the others.

    Attributes:
        by_rank: for each other rank, the sockets by channel.
    """

    by_rank: dict[int, dict[int, socket.socket]] = field(default_factory=dict)

    def add(self, rank: int, channel: int, sock: socket.socket) -> bool:
        """Take a connection; return False when there is one already."""
        channels = self.by_rank.setdefault(rank, {})
        if channel in channels:
            return False
        channels[channel] = sock
        return True

    def missing(self, ranks: Sequence[int]) -> list[int]:
        """Those of some ranks that are not wholly connected."""
        return [rank for rank in ranks if len(self.by_rank.get(rank, ())) < CHANNELS]

    def close(self) -> None:
        """Close all."""
        for channels in self.by_rank.values():
            for sock in channels.values():
                sock.close()


def connect(
    listener: socket.socket,
    rank: int,
    peers: Mapping[int, tuple[str, int]],
    secret: bytes,
    timeout_s: float,
    check: Callable[[], None],
) -> PeerConnections:
    """Connect with all other ranks; return when every pair is.

    Args:
        listener: accepts the ranks above this one.
        rank: this one.
        peers: host and port of every other rank.
        secret: of the group.
        timeout_s: seconds that all of it may take.
        check: called every 50 ms; raises what the call has been stopped with.

    Raises:
        DeadlineError: some ranks have not come in time; names them.
    """
    connections = PeerConnections()
    try:
        asyncio.run(_Connecting(listener, rank, peers, secret, connections).run(timeout_s, check))
    except BaseException:
        connections.close()
        raise
    return connections


class _Connecting:
    """See `connect`."""

    def __init__(
        self,
        listener: socket.socket,
        rank: int,
        peers: Mapping[int, tuple[str, int]],
        secret: bytes,
        connections: PeerConnections,
    ) -> None:
        self._listener, self._rank, self._peers, self._secret = listener, rank, peers, secret
        self._connections = connections
        self._size = len(peers) + 1
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, timeout_s: float, check: Callable[[], None]) -> None:
        """Connect and accept until all are there."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        self._start(self._accept_all())
        for rank in sorted(self._peers):
            if rank < self._rank:
                for channel in range(CHANNELS):
                    self._start(self._reach(rank, channel))
        try:
            while missing := self._connections.missing(list(self._peers)):
                check()
                if loop.time() > until:
                    listed = ", ".join(map(str, missing[:10]))
                    raise DeadlineError(
                        f"connect_group: rank {self._rank} of {self._size}: expected all ranks within {timeout_s:g} s, "
                        f"rank {listed} did not come: see whether it runs, and whether its server's OPBOX_GROUP_HOST "
                        "can be reached from here"
                    )
                await asyncio.sleep(LOOK_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError:  # that one went away again, or there are too many open files
                await asyncio.sleep(RETRY_S)
                continue
            if self._strangers >= MAX_STRANGERS:
                sock.close()
                continue
            self._strangers += 1
            self._start(self._accept(sock))

    async def _accept(self, sock: socket.socket) -> None:
        taken = False
        try:
            sock.setblocking(False)
            async with asyncio.timeout(HANDSHAKE_S):
                taken = await self._prove_to(sock)
        except (OSError, TimeoutError, EOFError):
            pass
        finally:
            self._strangers -= 1
            if not taken:
                sock.close()

    async def _prove_to(self, sock: socket.socket) -> bool:
        """Take a connection of a rank that has the secret."""
        loop = asyncio.get_running_loop()
        own = os.urandom(_NONCE)
        await loop.sock_sendall(sock, _MAGIC + own)
        rank, channel, other, proof = _HELLO.unpack(await _read(sock, _HELLO.size))
        if not self._rank < rank < self._size or channel >= CHANNELS:
            return False
        if not hmac.compare_digest(proof, self._proof(b"connect", rank, self._rank, channel, own + other)):
            return False
        await loop.sock_sendall(sock, self._proof(b"accept", rank, self._rank, channel, own + other))
        return self._connections.add(rank, channel, sock)

    async def _reach(self, rank: int, channel: int) -> None:
        """Connect with a lower rank; tried again while it is not there."""
        while True:
            family = socket.AF_INET6 if ":" in self._peers[rank][0] else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            taken = False
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    taken = await self._prove_at(sock, rank, channel)
                if taken:
                    return
            except (OSError, TimeoutError, EOFError):
                pass
            finally:
                if not taken:
                    sock.close()
            await asyncio.sleep(RETRY_S)

    async def _prove_at(self, sock: socket.socket, rank: int, channel: int) -> bool:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, self._peers[rank])
        greeting = await _read(sock, len(_MAGIC) + _NONCE)
        if not greeting.startswith(_MAGIC):
            return False
        other, own = greeting[len(_MAGIC) :], os.urandom(_NONCE)
        proof = self._proof(b"connect", self._rank, rank, channel, other + own)
        await loop.sock_sendall(sock, _HELLO.pack(self._rank, channel, own, proof))
        answer = await _read(sock, len(proof))
        if not hmac.compare_digest(answer, self._proof(b"accept", self._rank, rank, channel, other + own)):
            return False
        return self._connections.add(rank, channel, sock)

    def _proof(self, role: bytes, higher: int, lower: int, channel: int, nonces: bytes) -> bytes:
        place = _PROVED.pack(role, higher, lower, self._size, channel)
        return hmac.digest(self._secret, place + nonces, "sha256")


async def _read(sock: socket.socket, nbytes: int) -> bytes:
    """So many bytes; EOFError when the connection ends before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < nbytes:
        piece = await loop.sock_recv(sock, nbytes - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
