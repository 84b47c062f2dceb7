"""What a server does not take is refused before it is sent; what is sent is answered, and leaves no gap."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import LimitError, MXNetError
from opbox_service.api.connection_io import LINGER_BYTES
from tests.contract.live import TOKENS, Live

MB = 1 << 20
SETTINGS = {
    "OPBOX_MAX_BODY_BYTES": str(2 * MB),
    "OPBOX_MAX_HEADER_BYTES": str(64 << 10),
    "OPBOX_MAX_COMMANDS": "20",
    "OPBOX_MAX_RANK": "5",
    "OPBOX_MAX_ELEMENTS": str(MB),
    "OPBOX_MAX_TENSORS": "8",
}


@pytest.fixture(scope="module", params=["none", "process"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with small limits."""
    server = Live(request.param, tmp_path_factory.mktemp("limits"), **SETTINGS)
    yield server
    assert server.stop() == 0


@pytest.fixture
def transport(small: Live) -> Iterator[HttpTransport]:
    transport = HttpTransport(small.url, TOKENS["ann"])
    connection.use(transport)
    yield transport
    connection.use(None)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (
            np.zeros((1024, 1024), np.float32),
            r"array of shape \(1024, 1024\) and type float32: expected at most 2097152 bytes in a request, as {} takes "
            r"them, got 4194\d\d\d: send it in slices, or start the server with a larger OPBOX_MAX_BODY_BYTES",
        ),
        (
            np.zeros((1, 1, 1, 1, 1, 2), np.float32),
            r"array of shape \(1, 1, 1, 1, 1, 2\) and type float32: expected at most 5 axes, as {} takes them, got 6: "
            r"reshape it, or start the server with a larger OPBOX_MAX_RANK",
        ),
        (
            np.zeros((MB + 1,), np.int8),
            r"array of shape \(1048577,\) and type int8: expected at most 1048576 elements, as {} takes them, got "
            r"1048577: send it in slices, or start the server with a larger OPBOX_MAX_ELEMENTS",
        ),
    ],
    ids=["bytes", "axes", "elements"],
)
def test_an_array_is_refused_before_it_is_sent(transport: HttpTransport, value: Any, says: str) -> None:
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    before = transport.requests
    with pytest.raises(LimitError, match="^" + says.format(transport.address) + "$"):
        mx.nd.array(value, dtype=value.dtype)
    assert transport.requests == before
    assert (x + 1).asnumpy().tolist() == [2, 2]


def test_batches_are_as_large_as_the_server_takes_them(transport: HttpTransport) -> None:
    third = np.arange(MB // 4, dtype=np.float32)  # two of these make no request
    arrays = [mx.nd.array(third + i) for i in range(5)]
    many = [mx.nd.array(np.full((3,), i)) for i in range(30)]  # tensors
    total: Any = mx.nd.zeros((3,))
    for _ in range(100):  # commands
        total = total + 1
    values = [x.asnumpy() for x in many]
    for i, x in enumerate(arrays):
        np.testing.assert_array_equal(x.asnumpy(), third + i)
    assert [value[0] for value in values] == list(range(30))
    assert total.asnumpy().tolist() == [100, 100, 100]
    executors = [(mx.sym.Variable("x") * i).simple_bind(mx.cpu(), x=(2,)) for i in range(30)]
    for executor in executors:
        executor.forward(x=mx.nd.ones((2,)))
    assert [executor.outputs[0].asnumpy()[0] for executor in executors] == list(range(30))


def test_a_header_that_the_server_does_not_take(transport: HttpTransport) -> None:
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    y = mx.nd.Reshape(x, shape=(1,) * 50_000)
    with pytest.raises(MXNetError, match=r"expected at most 65536 bytes, got .*OPBOX_MAX_HEADER_BYTES"):
        y.asnumpy()
    begun = time.monotonic()
    assert (x + 1).asnumpy().tolist() == [2, 2]
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("mb", [3, 200])
def test_the_answer_to_a_body_that_is_too_large_arrives(small: Live, transport: HttpTransport, mb: int) -> None:
    """By whoever writes on while the server has answered: nothing is sent twice, and the session goes on."""
    session = small.session()
    before = transport.requests
    for _ in range(3):
        with pytest.raises(LimitError, match=r"^body: expected at most 2097152 bytes, got .*OPBOX_MAX_BODY_BYTES$"):
            transport.call(
                "POST",
                f"{session.path}/commands",
                {"seq": 1, "commands": []},
                {"x": np.broadcast_to(np.uint8(0), (mb * MB,)) + np.uint8(0)},
            )
    assert transport.requests == before + 3
    assert session.run().status == 200
    session.delete()


@pytest.mark.parametrize("mb", [3, 50])
def test_a_client_that_reads_when_all_is_written_gets_the_answer(small: Live, mb: int) -> None:
    host, port = small.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/sessions/x/commands HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKENS['ann']}\r\n"
        f"Content-Length: {mb * MB}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(head.encode())
        for _ in range(mb):
            sock.sendall(bytes(MB))
        answer = b""
        while part := sock.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    assert b"OPBOX_MAX_BODY_BYTES" in answer


def written_until_closed(sock: socket.socket) -> int:
    """Bytes that are taken until the other side resets the connection."""
    written = 0
    try:
        while True:
            written += sock.send(bytes(MB))
    except ConnectionError:
        return written


def test_a_client_that_never_ends_is_not_read_for_ever(small: Live) -> None:
    host, port = small.url.removeprefix("http://").split(":")
    head = f"POST /v1/sessions/x/commands HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {1 << 50}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(head.encode())
        assert written_until_closed(sock) < LINGER_BYTES + 64 * MB
