"""The API process's loop: what one request brings it is not work that the others wait for."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from opbox_protocol import wire
from tests.contract.live import IDENTITY, TOKENS, Live
from tests.load.attacks import ATTACKS

MIB = 1 << 20
LAG_S = 0.5
"""By its thread's processor time; alone on a machine it is below 0.02, and this one may be busy with anything."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("process", tmp_path_factory.mktemp("loop"), OPBOX_MAX_OWNER_BUFFER_BYTES=str(48 * MIB))
    yield live
    assert live.stop() == 0


def post_chunks(server: Live, chunks: Iterable[bytes], header_length: int) -> tuple[int, bytes, str]:
    """A body whose length nobody states: the answer's status, body, and length of its JSON."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    headers = {wire.HEADER_LENGTH: str(header_length), "Authorization": f"Bearer {TOKENS['ann']}"}
    connection.request("POST", "/v1/forward", body=iter(chunks), headers=headers, encode_chunked=True)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, answer.headers.get(wire.HEADER_LENGTH, "0")


def frame(elements: int) -> tuple[bytes, int]:
    head, buffers = wire.encode({"graph": IDENTITY}, {"x": np.arange(elements, dtype=np.float32)}, "inputs")
    return b"".join([head, *buffers]), len(head)


@pytest.mark.parametrize("elements", [10, 20_000, 2_000_000])
def test_a_body_may_come_in_chunks(server: Live, elements: int) -> None:
    body, header_length = frame(elements)
    pieces = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
    status, answer, length = post_chunks(server, pieces, header_length)
    assert status == 200
    tensors = wire.decode(answer, int(length), key="outputs").tensors
    np.testing.assert_array_equal(tensors["y_output"], np.arange(elements, dtype=np.float32))


def test_chunks_are_counted_as_they_come(server: Live) -> None:
    piece = bytes(MIB)
    try:
        status, answer, _ = post_chunks(server, (piece for _ in range(50)), 64)
    except (BrokenPipeError, ConnectionResetError):  # it has answered, and closed, before all was sent
        pass
    else:
        assert (status, "transfer buffers" in json.loads(answer)["error"]) == (429, True)
    until = time.monotonic() + 20
    while server.metric("opbox_buffer_bytes"):
        assert time.monotonic() < until
        time.sleep(0.05)
    body, header_length = frame(10)
    assert post_chunks(server, [body], header_length)[0] == 200


def test_the_loop_is_not_held_up(server: Live) -> None:
    for name in ("16 MB of objects", "Concat of 300 million arrays"):
        assert ATTACKS[name](server).status in (400, 413), name
    body, header_length = frame(8_000_000)
    pieces = (body[at : at + MIB] for at in range(0, len(body), MIB))
    assert post_chunks(server, pieces, header_length)[0] == 200
    assert server.clients["ann"].get("/openapi.json").status_code == 200
    wall, busy = (server.metric(f'opbox_api_loop_longest_lag_seconds{{clock="{c}"}}') for c in ("wall", "processor"))
    assert 0 <= busy <= wall
    assert server.metric('opbox_api_loop_lag_seconds_bucket{le="+Inf"}') > 0
    assert busy < LAG_S
