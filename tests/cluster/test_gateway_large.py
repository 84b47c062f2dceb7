"""Large bodies through the gateway: relayed by the kernel where it can, and what happens when a side breaks off."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opbox_service.cluster.controller import Controller
from opbox_service.cluster.documents import NodeInfo
from opbox_service.cluster.gateway.pipes import BodyCopy, Pipe, may_relay
from tests.cluster.gateway_nodes import GatewayThread
from tests.contract.live import TOKENS

BODY = random.Random(7).randbytes(5_000_001)
CALL = b"Opbox-Call: 1234567890abcdef/1\r\n"
Serve = Callable[[socket.socket], object]


def head(length: int, headers: bytes = b"") -> bytes:
    """The head of a call of a session on node a."""
    token = f"Authorization: Bearer {TOKENS['ann']}\r\n".encode()
    return b"POST /v1/sessions/a-%032d/commands HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n%b\r\n" % (
        0,
        token,
        length,
        headers,
    )


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def read(sock: socket.socket, nbytes: int | None = None) -> bytes:
    """So many bytes of a body behind a head; by default as many as the head says."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(1 << 16)
        assert part, data
        data += part
    start, _, rest = data.partition(b"\r\n\r\n")
    if nbytes is None:
        nbytes = int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    parts, size = [rest], len(rest)
    while size < nbytes:
        part = sock.recv(1 << 18)
        assert part, f"ended after {size} bytes"
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def drain(sock: socket.socket) -> None:
    """Read until the other side ends the connection."""
    while sock.recv(1 << 16):
        pass


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


class OneNode:
    """A gateway before a node that is a socket: what each of its connections does is a function."""

    def __init__(self, *connections: Serve, **settings: Any) -> None:
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._serves = connections
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        controller = Controller()
        controller.join(NodeInfo("a", f"http://127.0.0.1:{self._sock.getsockname()[1]}", {"cpu": 1 << 30}), 0.0)
        self.front = GatewayThread(controller, **settings)
        self.gateway = self.front.gateway

    def _run(self) -> None:
        for serve in self._serves:
            connection, _ = self._sock.accept()
            connection.settimeout(60)
            with connection:
                try:
                    serve(connection)
                except (OSError, AssertionError) as error:
                    self.errors.append(error)

    def connect(self) -> socket.socket:
        """A client's connection."""
        return socket.create_connection(("127.0.0.1", self.front.port), timeout=60)

    def stop(self) -> None:
        """End both."""
        self.front.stop()
        self._sock.close()


@pytest.fixture
def start() -> Iterator[Callable[..., OneNode]]:
    nodes: list[OneNode] = []

    def start(*connections: Serve, **settings: Any) -> OneNode:
        nodes.append(OneNode(*connections, **settings))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture(params=["relayed", "not relayed"])
def relays(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "relayed")


def test_large_bodies_come_whole_and_connections_serve_on(start: Callable[..., OneNode], relays: bool) -> None:
    def echo(sock: socket.socket) -> None:
        for _ in range(3):
            sock.sendall(answer(read(sock)))

    node = start(echo)
    if not relays:
        node.gateway.relays.max_relays = 0
    with node.connect() as sock:
        for body in (BODY, b"small", BODY[::-1]):
            sender = threading.Thread(target=sock.sendall, args=(head(len(body)) + body,))
            sender.start()
            assert read(sock) == body
            sender.join(60)
    assert (node.gateway.relays.begun > 0) == (relays and may_relay())
    wait_until(lambda: node.gateway.kept_bytes == 0)


@pytest.mark.parametrize("size", [300_000, 2_500_000, len(BODY)])
def test_a_numbered_call_is_sent_again_as_a_whole(start: Callable[..., OneNode], relays: bool, size: int) -> None:
    node = start(lambda sock: read(sock, size), lambda sock: sock.sendall(answer(read(sock)[::-1])))
    if not relays:
        node.gateway.relays.max_relays = 0
    with node.connect() as sock:
        sock.sendall(head(len(BODY), CALL) + BODY)
        assert read(sock) == BODY[::-1]
    wait_until(lambda: node.gateway.kept_bytes == 0)


def test_a_body_that_is_not_kept_is_not_sent_again(start: Callable[..., OneNode], relays: bool) -> None:
    node = start(lambda sock: read(sock, len(BODY)))
    node.gateway.max_kept_bytes = 1 << 20
    if not relays:
        node.gateway.relays.max_relays = 0
    with node.connect() as sock:
        sock.sendall(head(len(BODY), CALL) + BODY)
        assert b"the request may have run" in read(sock)
    wait_until(lambda: node.gateway.kept_bytes == 0)


def test_an_answer_that_comes_before_the_body_is_whole_arrives(start: Callable[..., OneNode]) -> None:
    def refuse(sock: socket.socket) -> None:
        read(sock, 400_000)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge")
        sock.shutdown(socket.SHUT_WR)
        drain(sock)

    node = start(refuse)
    with node.connect() as sock:
        sock.sendall(head(1 << 30) + BODY)
        assert read(sock) == b"large"


def test_a_client_that_goes_ends_its_call_on_the_node(start: Callable[..., OneNode]) -> None:
    ended = threading.Event()

    def serve(sock: socket.socket) -> None:
        read(sock, 1_000_000)
        drain(sock)
        ended.set()

    node = start(serve)
    with node.connect() as sock:
        sock.sendall(head(len(BODY) + 1, CALL) + BODY)
    assert ended.wait(60) or isinstance(node.errors[0], ConnectionResetError)
    wait_until(lambda: node.gateway.kept_bytes == 0 and not node.gateway.clients)


def test_an_answer_waits_for_its_client(start: Callable[..., OneNode]) -> None:
    large = BODY * 40
    node = start(lambda sock: (read(sock), sock.sendall(answer(large))))
    with node.connect() as sock:
        sock.sendall(head(2) + b"ab")
        clients = node.gateway.clients
        wait_until(lambda: any(client._unread_since is not None for client in list(clients)))
        assert read(sock) == large
        wait_until(lambda: all(client._unread_since is None for client in list(clients)))


def test_a_client_that_does_not_read_is_ended(start: Callable[..., OneNode]) -> None:
    node = start(lambda sock: (read(sock), sock.sendall(answer(BODY * 40))), stall_s=1.0)
    with node.connect() as sock:
        sock.sendall(head(2) + b"ab")
        wait_until(lambda: bool(node.errors))
        assert isinstance(node.errors[0], OSError)
        wait_until(lambda: not node.gateway.clients)


def test_an_answer_that_breaks_off_is_broken_off(start: Callable[..., OneNode]) -> None:
    node = start(lambda sock: (read(sock), sock.sendall(answer(BODY)[:-1000])))
    with node.connect() as sock:
        sock.sendall(head(2, CALL) + b"ab")
        with pytest.raises((AssertionError, ConnectionResetError)):
            read(sock)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc on this system")
def test_files_are_closed(start: Callable[..., OneNode]) -> None:
    node = start(lambda sock: sock.sendall(answer(read(sock))), drain, drain)

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    with node.connect() as sock:
        sock.sendall(head(len(BODY), CALL) + BODY)
        assert read(sock) == BODY
    with node.connect() as sock:
        sock.sendall(head(len(BODY), CALL) + BODY[:-1])
    wait_until(lambda: not node.gateway.clients)
    node.front.do(node.gateway.relays.close)
    wait_until(lambda: files() <= before)


@pytest.mark.skipif(not may_relay(), reason="no splice and tee on this system")
def test_a_copy_of_a_body_is_not_bounded_by_its_pipe() -> None:
    pipe, copy = Pipe(), BodyCopy()
    try:
        for at in range(0, len(BODY), 1 << 16):
            part = BODY[at : at + (1 << 16)]
            while part:
                number = os.write(pipe.write_end, part)
                part = part[number:]
                while number:
                    number -= len(os.read(pipe.read_end, copy.take(pipe.read_end, number)))
        copy.add(b"end")
        assert b"".join(copy.parts()) == BODY + b"end"
    finally:
        pipe.close()
        copy.close()
