"""Attacks of whoever reaches the port: heads and URLs without end, requests whose answers nobody reads, silence."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator

from tests.attack.attack import MIB, Attack, Outcome
from tests.attack.box import Box

__all__ = ["ATTACKS"]

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
SENDING_S = 8.0
"""Seconds that an attack lasts: a server without limits grows by hundreds of MB."""
HEAD_BYTES = 1 << 20
"""Much more of a head than any server needs."""
SILENT = 8000
"""Connections on which nothing is sent."""


def endless(first: bytes, more: bytes) -> Callable[[Box], Outcome]:
    """An attack that sends `first` and then `more` for as long as it is taken."""

    def run(box: Box) -> Outcome:
        sent, until = 0, time.monotonic() + SENDING_S
        with box.connect(timeout=SENDING_S) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(first)
                while time.monotonic() < until:
                    sent += sock.send(more)
            answer = read(sock)
        status = answer[9:12].decode() or "no answer"
        says = f"{status} after {sent / MIB:.1f} MiB"
        return Outcome(status in ("400", "401", "403", "408", "414", "431") and sent < 512 * MIB, says)

    return run


def drip(box: Box) -> Outcome:
    """Send a head byte by byte, on many connections."""
    connections = [box.connect() for _ in range(200)]
    began = time.monotonic()
    open_still = set(connections)
    for sock in connections:
        sock.sendall(GET + b"a: ")
    while open_still and time.monotonic() - began < 25:
        for sock in list(open_still):
            try:
                sock.sendall(b"a")
            except OSError:
                open_still.remove(sock)
        time.sleep(0.5)
    close(connections)
    return Outcome(not open_still, f"{len(open_still)} of 200 open after {time.monotonic() - began:.0f} s")


def unread(box: Box) -> Outcome:
    """Send requests one behind the other on many connections, and read no answer."""
    requests = (GET + b"\r\n") * 2000
    connections = [box.connect() for _ in range(60)]
    sent, until = 0, time.monotonic() + SENDING_S
    for sock in connections:
        sock.setblocking(False)
    while time.monotonic() < until:
        for sock in connections:
            with contextlib.suppress(OSError):
                sent += sock.send(requests)
        time.sleep(0.01)
    close(connections)
    return Outcome(True, f"{sent // (len(GET) + 2):,} requests taken")


def silent(box: Box) -> Outcome:
    """Open connections and send nothing on them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(SILENT + 2000, most), most))
    connections: list[socket.socket] = []
    with contextlib.suppress(OSError):
        connections += connect_many(box, SILENT)
    opened, began = len(connections), time.monotonic()
    waiting = list(connections)
    while waiting and time.monotonic() - began < 20:
        waiting = [sock for sock in waiting if still_open(sock)]
        time.sleep(0.25)
    close(connections)
    return Outcome(not waiting, f"{len(waiting)} of {opened} open after {time.monotonic() - began:.0f} s")


def connect_many(box: Box, number: int) -> Iterator[socket.socket]:
    for _ in range(number):
        yield box.connect()


def still_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return bool(sock.recv(1 << 16))
    except BlockingIOError:
        return True
    except OSError:
        return False


def close(connections: list[socket.socket]) -> None:
    for sock in connections:
        sock.close()


def read(sock: socket.socket) -> bytes:
    """What the server answers until it closes the connection."""
    answer = b""
    with contextlib.suppress(OSError):
        while part := sock.recv(1 << 16):
            answer += part
    return answer


CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
ATTACKS = [
    Attack("head-lines", "lines of a head without end", endless(GET, b"a: b\r\n" * 10_000), grows=32 * MIB),
    Attack("head-one-header", "a header without end", endless(GET + b"a: ", b"b" * 65536), grows=32 * MIB),
    Attack("head-url", "a URL without end", endless(b"GET /", b"b" * 65536), grows=32 * MIB),
    Attack("head-empty-lines", "empty lines without end", endless(b"", b"\r\n" * 30_000), grows=32 * MIB),
    Attack(
        "chunk-extension", "a chunk's extension without end", endless(CHUNKED + b"5;", b"b" * 65536), grows=32 * MIB
    ),
    Attack("trailers", "trailers without end", endless(CHUNKED + b"0\r\n", b"a: b\r\n" * 10_000), grows=32 * MIB),
    Attack("head-drip", "heads byte by byte", drip, grows=32 * MIB),
    Attack("unread-answers", "requests whose answers nobody reads", unread, grows=64 * MIB),
    Attack("silence", "8,000 silent connections", silent, grows=64 * MIB),
]
