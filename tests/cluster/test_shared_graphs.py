"""A graph that was sent to one server is known to the others that share its store, to its owner alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.symbol_json import content_hash
from opbox_service.owner_files import folder_name
from tests.cluster.router import Router
from tests.contract.live import TOKENS, Live, symbol, var
from tests.models.conftest import wait_until

Start = Callable[..., Live]
GRAPH = symbol(var("x"), ("relu", "y", {}, [0]))
NAME = content_hash(GRAPH)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers; those with a scheme share a store."""
    running: list[Live] = []

    def server(isolation: str = "process", scheme: str = "") -> Live:
        folder = tmp_path / f"node{len(running)}"
        folder.mkdir()
        shared = {"OPBOX_STORE_URL": f"{scheme}://{tmp_path}/store"} if scheme else {}
        running.append(Live(isolation, folder, OPBOX_STATE_DIR=str(folder / "state"), **shared))
        return running[-1]

    yield server
    connection.use(None)
    for live in running:
        live.stop()


def forward(server: Live, owner: str = "ann") -> tuple[int, Any]:
    """Status, and what a graph that is named by its hash computes."""
    answer = server.call("POST", "/v1/forward", {"graph": f"sha256:{NAME}"}, {"x": np.float32([-1, 2])}, owner=owner)
    return answer.status, None if answer.status != 200 else next(iter(answer.tensors.values())).tolist()


@pytest.mark.parametrize("scheme", ["file", "local"])
@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_graph_is_its_owners_on_every_server(start: Start, tmp_path: Path, isolation: str, scheme: str) -> None:
    first, second = start(isolation, scheme), start(isolation, scheme)
    assert first.json("PUT", "/v1/graphs", {"graph": GRAPH}).header["sha256"] == NAME
    file = tmp_path / "store" / "graphs" / folder_name("ann") / f"{NAME}.json"
    wait_until(file.exists)
    wait_until(lambda: forward(second)[0] == 200)
    assert forward(second) == (200, [0, 2])
    assert forward(second, "bob")[0] == 404
    third = start(isolation, scheme)
    whole = file.read_bytes()
    for wrong in (b"", whole[:-2], b"[]", whole.replace(b'"relu"', b'"tanh"'), b"[" * 100_000):
        file.write_bytes(wrong)
        assert forward(third)[0] == 404, "the client is asked for it"
    file.write_bytes(whole)
    assert forward(third) == (200, [0, 2])
    for name in ("../" * 10 + "etc/passwd", NAME.upper(), "0" * 64):
        assert third.json("POST", "/v1/infer_shape", {"graph": f"sha256:{name}"}).status == 404


class CountingRouter(Router):
    """A router that counts graphs on their way to each server, and their bytes."""

    def __init__(self, *servers: Live) -> None:
        super().__init__(*servers)
        self.graphs = [0] * len(servers)
        self.received = [0] * len(servers)

    def _ask(
        self, number: int, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        self.graphs[number] += body.count(b'"nodes"')
        self.received[number] += len(body)
        return super()._ask(number, method, path, headers, body)


@pytest.mark.parametrize("scheme", ["file", ""])
def test_a_session_that_moves_sends_its_graph_no_second_time(start: Start, scheme: str, tmp_path: Path) -> None:
    router = CountingRouter(start("process", scheme), start("process", scheme))
    connection.use(HttpTransport(router.url, TOKENS["ann"], patience=60))
    net = mx.sym.Variable("data")
    for number in range(30):
        net = mx.sym.FullyConnected(net, num_hidden=4, name=f"fc{number}")
    net = mx.sym.relu(net, name="last")
    executor = net.simple_bind(mx.cpu(), data=(2, 4), grad_req="null")
    executor.forward()[0].wait_to_read()
    assert (router.graphs[0] > 0, router.graphs[1]) == (True, 0)
    if scheme:
        wait_until(lambda: any((tmp_path / "store" / "graphs").rglob("*.json")))
    router.dead.add(0)  # from now on, sessions are on the other server
    with pytest.raises(mx.MXNetError, match="node 0 has died"):
        executor.forward()[0].asnumpy()
    executor = net.simple_bind(mx.cpu(), data=(2, 4), grad_req="null")
    assert executor.forward()[0].shape == (2, 4)
    executor.outputs[0].wait_to_read()
    assert (router.graphs[1] == 0) == bool(scheme)
    assert (router.received[1] < len(net.tojson())) == bool(scheme)
    router.close()
