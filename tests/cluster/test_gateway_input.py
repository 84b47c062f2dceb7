"""What may come over a connection to the gateway: bad HTTP, large heads, slow bodies, requests in a row."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import pytest

from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.cluster.gateway.chunks import ChunkReader
from opbox_service.cluster.gateway.heads import read_answer_head, read_request_head
from opbox_service.cluster.gateway.routing import GatewayRoute, route_of
from tests.cluster.gateway_nodes import Box, GatewayThread
from tests.contract.live import TOKENS

TOKEN = f"Authorization: Bearer {TOKENS['ann']}\r\n".encode()


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with Box(tmp_path_factory.mktemp("box"), "a") as box:
        yield box


def connect(box: Box | GatewayThread) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(box.url.rpartition(":")[2])), timeout=60)


def whole(sock: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    answer = b""
    while part := sock.recv(1 << 16):
        answer += part
    return answer


def exchange(box: Box, data: bytes) -> bytes:
    with connect(box) as sock:
        sock.sendall(data)
        return whole(sock)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\0\1\2\3\r\n\r\n", 400),
        (b"GET /v2\r\n\r\n", 400),
        (b"GET /v2 HTTP/2.0\r\n\r\n", 400),
        (b"GET http://other/v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + TOKEN + b"\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v2#x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT other:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nname : x\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\na: 1\n b\r\n\r\n", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
        (
            b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
        (b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"h%d: 1\r\n" % i for i in range(300)) + b"\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nh: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000, 431),
    ],
)
def test_bad_http_is_answered_with_a_sentence_and_ends_the_connection(box: Box, data: bytes, status: int) -> None:
    answer = exchange(box, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"connection: close\r\n" in answer.lower()
    assert b'{"error": "' in answer
    assert box.ann.get("/v2/health/ready").status_code == 200


def test_requests_in_a_row_are_answered_in_their_order(box: Box) -> None:
    first = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"\r\n"
    body = b"POST /v1/infer_shape HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Content-Length: 3\r\n\r\n{x}"
    chunks = (
        b"POST /v1/infer_shape HTTP/1.1\r\nHost: localhost\r\n"
        + TOKEN
        + b"Transfer-Encoding: chunked\r\n\r\n1;a=b\r\n{\r\n0\r\nt: 1\r\n\r\n"
    )
    last = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for size in (1, 7, 1 << 20):
        data = first + body + chunks + first + last
        with connect(box) as sock:
            for at in range(0, len(data), size):
                sock.sendall(data[at : at + size])
            answer = whole(sock)
        statuses = re.findall(rb"HTTP/1\.1 ([0-9]+)", answer)
        assert statuses == [b"200", b"400", b"400", b"200", b"200"], answer


def test_http_1_0_and_head_requests(box: Box) -> None:
    answer = exchange(box, b"GET /v2 HTTP/1.0\r\n" + TOKEN + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in answer.lower()
    assert answer.endswith(b"}")
    answer = exchange(box, b"GET /openapi.json HTTP/1.0\r\n\r\n")
    assert b"transfer-encoding" not in answer.lower()
    answer = exchange(box, b"HEAD /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\n")


def test_a_request_to_upgrade_is_served_by_http_1_1(box: Box) -> None:
    head = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    assert exchange(box, head).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_refused_early_is_answered(box: Box) -> None:
    head = b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Content-Length: 999999999999\r\n\r\n"
    answer = exchange(box, head + b"x" * 100_000)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


def test_expect_100_continue(box: Box) -> None:
    with connect(box) as sock:
        sock.sendall(
            b"POST /v1/infer_shape HTTP/1.1\r\nHost: localhost\r\n"
            + TOKEN
            + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 1\r\n\r\n"
        )
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"{")
        assert whole(sock).startswith(b"HTTP/1.1 400 ")


def test_slow_heads_and_silent_connections_end(box: Box) -> None:
    front = GatewayThread(box.controller, request_head_s=0.5, keep_alive_s=1.0)
    try:
        with connect(front) as sock:
            sock.sendall(b"GET /v2 HTTP/1.1\r\n")
            assert whole(sock).startswith(b"HTTP/1.1 408 ")
        with connect(front) as sock:
            assert whole(sock) == b""
    finally:
        front.stop()


def test_a_client_that_leaves_amid_its_body_leaves_nothing_behind(box: Box) -> None:
    with connect(box) as sock:
        sock.sendall(b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Content-Length: 1000\r\n\r\nabc")
    until = time.monotonic() + 60
    while box.ann.get("/v1/cluster").json()["nodes"][0]["in_flight"]:
        assert time.monotonic() < until
    assert box.front.gateway.kept_bytes == 0


def test_too_many_connections_are_refused(box: Box) -> None:
    front = GatewayThread(box.controller, max_connections=4)
    try:
        socks = [connect(front) for _ in range(8)]
        ended = [sock for sock in socks[:4] if whole(sock) == b""]
        assert ended  # the silent ones make room
        for sock in socks:
            sock.close()
    finally:
        front.stop()


# -- the parts --------------------------------------------------------------------------------------------------


def test_chunks_are_read_in_pieces_of_any_size() -> None:
    text = b"5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
    for size in range(1, len(text) + 1):
        reader, data, used = ChunkReader(), b"", 0
        for at in range(0, len(text), size):
            piece = text[at : at + size]
            count, parts = reader.take(piece)
            used += count
            data += b"".join(parts)
        assert (reader.done, data, used) == (True, b"hello0123456789", len(text))
    assert ChunkReader().take(b"0\r\n\r\nGET") == (5, [])


@pytest.mark.parametrize(
    "text",
    [
        b"5\nhello",
        b"\r\n",
        b"g\r\n",
        b"0x5\r\n",
        b"+5\r\n",
        b"1\r\nab\r\n",
        b"1" * 300,
        b"0\r\n" + b"a: b\r\n" * 100,
        b"1;\x00\r\n",
        b"1" * 16 + b"\r\n",
    ],
)
def test_what_is_no_chunk_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequestError, match="body in chunks"):
        ChunkReader().take(text)


def test_headers_of_one_connection_are_not_passed_on() -> None:
    head = read_request_head(
        b"POST /v1/x%79?q=1 HTTP/1.1\r\nHost: h\r\nConnection: close, X-Own\r\nX-Own: 1\r\nTE: trailers\r\n"
        b"Content-Length: 5\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\n\r\n"
    )
    assert (head.method, head.path, head.length, head.keep_alive) == ("POST", "/v1/xy", 5, False)
    assert head.for_node(b"9.9.9.9") == (
        b"POST /v1/x%79?q=1 HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n"
        b"x-forwarded-for: 1.2.3.4, 5.6.7.8, 9.9.9.9\r\n\r\n"
    )


def test_a_node_s_answer_keeps_its_headers() -> None:
    head = read_answer_head(b"HTTP/1.1 200 OK\r\nA: 1\r\nConnection: close\r\nContent-Length: 3\r\n\r\n", "GET")
    assert (head.status, head.length, head.keep_alive) == (200, 3, False)
    assert head.for_client(keep_alive=True, http10=False) == b"HTTP/1.1 200 OK\r\nA: 1\r\nContent-Length: 3\r\n\r\n"
    assert read_answer_head(b"HTTP/1.1 304 \r\n\r\n", "GET").length == 0
    assert read_answer_head(b"HTTP/1.1 200 OK\r\n\r\n", "GET").length == -1
    with pytest.raises(MXNetError):
        read_answer_head(b"ICY 200 OK\r\n\r\n", "GET")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/sessions", GatewayRoute("place")),
        ("POST", "/v1/sessions/", GatewayRoute("any")),
        ("DELETE", "/v1/sessions/a-1", GatewayRoute("session", "a-1")),
        ("POST", "/v1/sessions/a-1/commands", GatewayRoute("session", "a-1")),
        ("GET", "/v1/sessions/a-1/executors/1/drawings/folded", GatewayRoute("session", "a-1")),
        ("DELETE", "/v1/admin/sessions/a-1", GatewayRoute("session", "a-1")),
        ("GET", "/v1/admin/sessions", GatewayRoute("list", "/v1/admin/sessions")),
        ("GET", "/v1/sessions", GatewayRoute("list", "/v1/sessions")),
        ("GET", "/v1/devices", GatewayRoute("list", "/v1/devices")),
        ("HEAD", "/v1/devices", GatewayRoute("any")),
        ("GET", "/v1/history/a-1", GatewayRoute("session", "a-1")),
        ("POST", "/v2/models/m/infer", GatewayRoute("model", "m", again=True)),
        ("POST", "/v2/models/m/versions/2/infer", GatewayRoute("model", "m", again=True)),
        ("GET", "/v2/models/m", GatewayRoute("model", "m")),
        ("POST", "/v2/models/m/backward", GatewayRoute("model", "m")),
        ("GET", "/v2/models/stats", GatewayRoute("any")),
        ("GET", "/v2/health/live", GatewayRoute("own")),
        ("GET", "/v2/health/ready", GatewayRoute("any")),
        ("GET", "/v1/cluster", GatewayRoute("own")),
        ("GET", "/", GatewayRoute("any")),
        ("OPTIONS", "*", GatewayRoute("any")),
    ],
)
def test_routes(method: str, path: str, expected: GatewayRoute) -> None:
    assert route_of(method, path) == expected
