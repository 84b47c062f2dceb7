"""Clients that take their time to read: they are cut off, whatever way an answer goes, and hold nothing up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.load.attacks import begin, zeros

MIB = 1 << 20
ORIGIN = "https://page.example.org"
PAGE = f"Origin: {ORIGIN}\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One that lets pages of a named origin read its answers."""
    folder = tmp_path_factory.mktemp("readers")
    live = Live("process", folder, OPBOX_STALL_S="1", OPBOX_CORS_ORIGINS=f'["{ORIGIN}"]')
    yield live
    assert live.stop() == 0


def read_all(server: Live, path: str, commands: bytes, headers: str, pause_s: float) -> int:
    """The bytes that come where nothing is read for the first `pause_s` seconds."""
    head = f"POST {path}/commands HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {len(commands)}\r\n"
    size = 0
    with begin(server, head, commands, owner="bob") as reader:
        time.sleep(pause_s)
        try:
            while part := reader.recv(1 << 20):
                size += len(part)
        except ConnectionError:
            pass
    return size


@pytest.mark.parametrize("page", ["", PAGE], ids=["a script", "a page"])
@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "compressed"])
def test_a_client_that_stops_reading_is_cut_off(server: Live, page: str, packed: bool) -> None:
    session = server.session("bob")
    noise = np.random.default_rng(0).standard_normal(1_900_000).astype(np.float32)
    if packed:
        put = session.run({"do": "put", "id": 1, "tensor": "x"}, x=noise)
        accept = "Accept: application/json\r\nAccept-Encoding: gzip\r\n"
    else:
        put = zeros(session, 1, 36)
        accept = "Accept: application/octet-stream\r\n"
    assert put.status == 200
    body = b'{"commands":[{"do":"fetch","id":1,"as":"x"}]}'
    whole = read_all(server, session.path, body, page + accept, 0)
    part = read_all(server, session.path, body, page + accept, 6)
    # Sockets hold some MB; noise as numbers is 16 MB when it is compressed.
    assert part < whole - 4 * MIB, (part, whole)
    until = time.monotonic() + 20
    while server.metric("opbox_buffer_bytes"):
        assert time.monotonic() < until
        time.sleep(0.1)
    session.delete()


def test_what_a_page_reads_is_whole(server: Live) -> None:
    """Answers of a server that lets pages read go out of the buffer that they lie in, as others do."""
    session = server.session("bob")
    x = np.random.default_rng(1).integers(-128, 128, 20 * MIB).astype(np.int8)
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=x).status == 200
    headers = {"Authorization": f"Bearer {TOKENS['bob']}", "Origin": ORIGIN, "Accept": "application/octet-stream"}
    commands = {"commands": [{"do": "fetch", "id": 1, "as": "x"}]}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as client:
        for _ in range(3):
            answer = client.post(f"{session.path}/commands", json=commands)
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert "Retry-After" in answer.headers["access-control-expose-headers"]
            assert answer.content.endswith(x.tobytes())
    session.delete()
