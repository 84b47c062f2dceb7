"""The gateway before real servers: routing, streams, and what it does when a node dies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox.http import HttpTransport
from opbox.session_opening import open_session
from opbox_protocol import wire
from opbox_service.cluster.documents import NodeReport, ReplicaReport, SessionReport
from opbox_service.session_ids import node_of
from tests.cluster.gateway_nodes import Box, GatewayThread
from tests.contract.live import TOKENS, got

TOML = '[inputs.data]\nshape = [1, 2]\ndatatype = "FP32"\n'
REQUEST = {"inputs": [{"name": "data", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


def save_models(folder: Path) -> None:
    """A quick model and a slow one."""
    for name, seconds in (("quick", 0.0), ("slow", 1.0)):
        nodes: list[dict[str, Any]] = [
            {"op": "null", "name": "data", "attrs": {}, "inputs": []},
            {"op": "null", "name": "w", "attrs": {}, "inputs": []},
            {"op": "broadcast_add", "name": "sum", "attrs": {}, "inputs": [[0, 0, 0], [1, 0, 0]]},
        ]
        for at in range(3):
            slow = {
                "op": "_test_slow",
                "name": f"y{at}",
                "attrs": {"seconds": str(seconds)},
                "inputs": [[at + 2, 0, 0]],
            }
            nodes.append(slow)
        net = {"nodes": nodes, "arg_nodes": [0, 1], "heads": [[len(nodes) - 1, 0, 0]], "attrs": {}}
        model = folder / name
        model.mkdir(parents=True)
        (model / "net-symbol.json").write_text(json.dumps(net))
        (model / "model.toml").write_text(TOML)
        mx.nd.save(str(model / "net-0001.params"), {"arg:w": mx.nd.ones((1, 2))})


def with_models(box: Box, names: str) -> None:
    """Have the nodes report their models as ready."""

    def report() -> None:
        for name in names:
            models = {model: ReplicaReport(("1",)) for model in ("quick", "slow")}
            box.controller.report(name, NodeReport({"cpu": 1 << 30}, models=models), 0.0)

    box.change(report)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def box(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with Box(tmp_path_factory.mktemp("box"), OPBOX_MODELS=str(models)) as box:
        with_models(box, "ab")
        yield box


@pytest.fixture
def mortal(models: Path, tmp_path: Path) -> Iterator[Box]:
    """Nodes that a test may kill."""
    with Box(tmp_path, OPBOX_MODELS=str(models)) as box:
        with_models(box, "ab")
        yield box


def in_flight(box: Box) -> dict[str, int]:
    nodes = box.ann.get("/v1/cluster").json()["nodes"]
    return {node["name"]: node["in_flight"] for node in nodes}


# -- routing ----------------------------------------------------------------------------------------------------


def test_sessions_are_where_the_controller_places_them_and_found_by_their_ids(box: Box) -> None:
    opened = [box.ann.post("/v1/sessions", json={}) for _ in range(4)]
    assert [answer.status_code for answer in opened] == [201] * 4
    for answer in opened:
        session = answer.json()
        assert session["node"] == node_of(session["id"])
        live = box.lives[session["node"]]
        assert session["url"] == live.url
        path = f"/v1/sessions/{session['id']}"
        ran = box.ann.post(f"{path}/commands", json={"seq": 1, "commands": []})
        assert ran.status_code == 200, ran.text
        assert live.json("GET", path).header["next_seq"] == 2
        assert box.ann.get(f"/v1/history/{session['id']}").status_code == 200
        assert box.ann.delete(path).json() == {"deleted": session["id"]}
        assert box.ann.get(path).status_code == 410


def test_a_session_of_no_node_is_refused_with_a_sentence(box: Box) -> None:
    for id in ("0" * 32, "a", "zz-" + "0" * 32, "%20"):
        answer = box.ann.get(f"/v1/sessions/{id}")
        assert answer.status_code == 404, id
        assert "session" in answer.json()["error"]


def test_a_framed_request_for_a_session_gets_a_framed_answer(box: Box) -> None:
    head, buffers = wire.encode({"device": "cpu"}, {}, "inputs")
    sent = {wire.HEADER_LENGTH: str(len(head)), "Accept": "application/octet-stream"}
    answer = got(box.ann.post("/v1/sessions", content=b"".join([head, *buffers]), headers=sent))
    assert answer.status == 201
    assert answer.header["url"] == box.lives[answer.header["node"]].url


@pytest.mark.parametrize(
    ("content", "headers", "status", "sentence"),
    [
        (b"[1]", {}, 400, "expected a JSON object, got list"),
        (b"{", {}, 400, "got malformed JSON"),
        (b"[" * 60_000, {}, 400, "got malformed JSON"),
        (b" " * 70_000, {}, 413, "expected at most 65536 bytes"),
        (b"{}", {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
        (b"{}", {wire.HEADER_LENGTH: "7"}, 400, "expected the body's 2 bytes"),
        (b"{}", {wire.HEADER_LENGTH: "-2"}, 400, "expected the body's 2 bytes"),
        (b'{"device": "tpu"}', {}, 503, "device: expected one that a node of the cluster has"),
        (b'{"device": 7}', {}, 400, "device"),
        (b'{"ttl_s": -1}', {}, 400, "ttl_s"),
    ],
)
def test_bad_requests_for_sessions(
    box: Box, content: bytes, headers: dict[str, str], status: int, sentence: str
) -> None:
    answer = box.ann.post("/v1/sessions", content=content, headers=headers)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]


def test_tokens_are_checked_where_the_gateway_acts_itself_and_by_the_nodes_elsewhere(box: Box) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong-but-long-enough"}, {"Authorization": "Basic YTpi"}):
        for method, path in (("POST", "/v1/sessions"), ("GET", "/v1/cluster"), ("GET", "/v1/sessions")):
            answer = httpx.request(method, box.url + path, headers=headers, timeout=60)
            assert answer.status_code == 401, (method, path, headers)
            assert "token" in answer.json()["error"]
    id = box.ann.post("/v1/sessions", json={}).json()["id"]
    with box.client("bob") as bob:
        assert bob.get(f"/v1/sessions/{id}").status_code == 404
    box.ann.delete(f"/v1/sessions/{id}")


def test_lists_have_the_rows_of_all_nodes(box: Box) -> None:
    opened = [box.ann.post("/v1/sessions", json={}).json() for _ in range(4)]
    assert {session["node"] for session in opened} == {"a", "b"}
    answer = box.ann.get("/v1/sessions", headers={"Accept-Encoding": "gzip", "Accept": "application/octet-stream"})
    assert answer.status_code == 200
    listed = {row["id"]: row["node"] for row in answer.json()["sessions"]}
    assert listed.items() >= {(session["id"], session["node"]) for session in opened}
    assert answer.json()["unreached"] == []
    with box.client("boss") as boss:
        owners = {row["id"]: row["owner"] for row in boss.get("/v1/admin/sessions").json()["sessions"]}
        assert owners[opened[0]["id"]] == "ann"
    assert box.ann.get("/v1/admin/sessions").status_code == 403
    assert httpx.get(f"{box.url}/v1/sessions").status_code == 401
    mx.connect(box.url, token=TOKENS["ann"])
    try:
        assert {row["node"] for row in mx.connection.device_rows()} == {"a", "b"}
    finally:
        mx.connection.disconnect()
    for session in opened:
        box.ann.delete(f"/v1/sessions/{session['id']}")


def test_several_gateways_serve_one_session(box: Box) -> None:
    second = GatewayThread(box.controller)
    try:
        id = box.ann.post("/v1/sessions", json={}).json()["id"]
        headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
        answer = httpx.post(
            f"{second.url}/v1/sessions/{id}/commands", json={"seq": 1, "commands": []}, headers=headers, timeout=60
        )
        assert answer.status_code == 200
        assert box.ann.delete(f"/v1/sessions/{id}").status_code == 200
    finally:
        second.stop()


def test_a_model_s_requests_go_to_the_replica_with_the_fewest(box: Box) -> None:
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(box.ann.post("/v2/models/slow/infer", json=REQUEST)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: in_flight(box) == {"a": 1, "b": 1})
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200, 200]


# -- streams ----------------------------------------------------------------------------------------------------


def test_large_bodies_come_whole_both_ways(box: Box) -> None:
    id = box.ann.post("/v1/sessions", json={}).json()["id"]
    values = np.random.default_rng(7).random((3 << 20,), np.float32)
    commands = [{"do": "put", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 1, "as": "x"}]
    head, buffers = wire.encode({"seq": 1, "commands": commands}, {"x": values}, "inputs")
    sent = {wire.HEADER_LENGTH: str(len(head))}
    answer = box.ann.post(f"/v1/sessions/{id}/commands", content=b"".join([head, *buffers]), headers=sent)
    assert answer.status_code == 200, answer.text
    assert np.array_equal(got(answer).tensors["x"], values)

    def pieces() -> Iterator[bytes]:  # in chunks
        yield head
        data = b"".join(buffers)
        for at in range(0, len(data), 100_001):
            yield data[at : at + 100_001]

    commands = [{"do": "put", "id": 2, "tensor": "x"}, {"do": "fetch", "id": 2, "as": "x"}]
    head, buffers = wire.encode({"seq": 2, "commands": commands}, {"x": values}, "inputs")
    sent[wire.HEADER_LENGTH] = str(len(head))
    answer = box.ann.post(f"/v1/sessions/{id}/commands", content=pieces(), headers=sent)
    assert answer.status_code == 200, answer.text
    assert np.array_equal(got(answer).tensors["x"], values)
    box.ann.delete(f"/v1/sessions/{id}")


def test_events_come_as_they_are_sent(box: Box) -> None:
    with box.ann.stream("GET", "/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        events = 0
        while events < 2:
            events += next(lines).startswith("data:")


def test_the_page_comes_through(box: Box) -> None:
    answer = httpx.get(box.url + "/", timeout=60)
    assert answer.status_code == 200
    assert "<html" in answer.text


def test_a_script_trains_through_the_gateway(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    mx.connect(box.url, token=TOKENS["ann"])
    try:
        x = mx.nd.array(np.arange(6).reshape(2, 3))
        assert (x * 2).asnumpy().tolist() == [[0, 2, 4], [6, 8, 10]]
    finally:
        mx.connection.disconnect()


# -- deaths -----------------------------------------------------------------------------------------------------


def test_infer_goes_to_another_replica_when_its_node_dies_in_flight(mortal: Box) -> None:
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(mortal.ann.post("/v2/models/slow/infer", json=REQUEST)))
    other = mortal.client("ann")
    busy: list[str] = []

    def one_is_busy() -> bool:
        nodes = other.get("/v1/cluster").json()["nodes"]
        busy[:] = [node["name"] for node in nodes if node["in_flight"]]
        return bool(busy)

    thread.start()
    wait_until(one_is_busy)
    mortal.kill(busy[0])
    thread.join(120)
    assert answers[0].status_code == 200
    assert answers[0].json()["outputs"][0]["data"] == [2, 3]
    # Nor does any later request fail, before the controller knows that the node is lost.
    for _ in range(4):
        assert other.post("/v2/models/quick/infer", json=REQUEST).status_code == 200
    other.close()


def test_what_else_is_in_flight_on_a_node_that_dies_is_answered_with_a_sentence(mortal: Box) -> None:
    session = mortal.ann.post("/v1/sessions", json={}).json()
    path, name = f"/v1/sessions/{session['id']}", session["node"]
    slow = {"do": "invoke", "op": "_test_slow", "attrs": {"seconds": "30"}, "inputs": [1], "outputs": [2]}
    put = {"do": "invoke", "op": "_zeros", "attrs": {"shape": "(2,)"}, "inputs": [], "outputs": [1]}
    body = {"seq": 1, "commands": [put, slow]}
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(mortal.ann.post(f"{path}/commands", json=body)))
    thread.start()
    with mortal.client("ann") as other:
        wait_until(lambda: any(node["in_flight"] for node in other.get("/v1/cluster").json()["nodes"]))
        mortal.kill(name)
        thread.join(60)
        assert answers[0].status_code == 503
        assert f"node {name!r}: expected an answer, got the end of the connection" in answers[0].json()["error"]
        # Until it counts as lost, its sessions may come back.
        answer = other.get(path)
        assert answer.status_code == 503
        assert "expected it to answer, got no connection" in answer.json()["error"]
        assert answer.headers["retry-after"] == "1"
        # The session was reported; then the node is lost.
        mortal.change(lambda: mortal.controller.lost(name, 1.0))
        answer = other.get(path)
        assert answer.status_code in (404, 410)
        assert "session" in answer.json()["error"]
        # New sessions go to the other node; what is for any node does too.
        opened = other.post("/v1/sessions", json={}).json()
        assert opened["node"] != name
        assert other.get("/v2").status_code == 200


def test_a_session_goes_to_another_node_when_the_first_is_not_reached(mortal: Box) -> None:
    mortal.kill("a")
    answer = mortal.ann.get("/v1/devices").json()
    assert ({row["node"] for row in answer["devices"]}, answer["unreached"]) == ({"b"}, ["a"])
    opened = [mortal.ann.post("/v1/sessions", json={}) for _ in range(3)]
    assert [answer.json()["node"] for answer in opened] == ["b"] * 3
    mortal.kill("b")
    answer = mortal.ann.get("/v1/devices")
    assert answer.status_code == 503
    assert "expected a node that answers, got none of 2" in answer.json()["error"]
    answer = mortal.ann.post("/v1/sessions", json={})
    assert answer.status_code == 503
    assert answer.json()["error"]
    answer = mortal.ann.get("/v2")
    assert answer.status_code == 503
    assert "expected a node that answers" in answer.json()["error"]


def test_a_client_says_which_session_it_goes_on_from(mortal: Box) -> None:
    lost = mortal.ann.post("/v1/sessions", json={}).json()
    id, name = lost["id"], lost["node"]
    report = NodeReport({"cpu": 1 << 30}, (SessionReport(id, "ann", "cpu", 0),))
    mortal.change(lambda: mortal.controller.report(name, report, 0.0))
    mortal.change(lambda: mortal.controller.lost(name, 1.0))
    opened = {}
    for owner in ("bob", "ann"):  # it is not bob's
        transport = HttpTransport(mortal.url, TOKENS[owner])
        opened[owner] = open_session(transport, ["cpu"], id)
        transport.close()
        answer = mortal.ann.get(f"/v1/sessions/{id}")
        assert answer.status_code == 410
        assert answer.json()["detail"] == ({"moved": opened["ann"]["id"]} if owner == "ann" else {})
    assert opened["ann"]["node"] != name


def test_a_cluster_without_nodes_says_so(tmp_path: Path) -> None:
    with Box(tmp_path, "") as box:
        assert box.ann.get("/v2/health/live").json() == {"live": True}
        for method, path in (("GET", "/v2"), ("POST", "/v2/models/m/infer"), ("POST", "/v1/sessions")):
            answer = box.ann.request(method, path, json=None if method == "GET" else {})
            assert answer.status_code == 503, path
            assert "join" in answer.json()["error"]
