"""Models that have no `replicas`, or that an owner published, reach the node that has them by the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol import routes
from opbox_service.cluster.node_reports import ServerApi, report_of
from tests.cluster.gateway_nodes import Box
from tests.contract.live import TOKENS

REQUEST = {"inputs": [{"name": "data", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """Two nodes without a common store: ann has published `sums` on b alone."""
    with Box(tmp_path_factory.mktemp("nodes"), "ab", OPBOX_STATE_DIR="{node}/state") as box:
        publish(box, "b", tmp_path_factory.mktemp("files"))
        yield box


def publish(box: Box, node: str, folder: Path) -> None:
    connection.use(HttpTransport(box.lives[node].url, TOKENS["ann"]))
    network = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
    module = mx.mod.Module(network, label_names=None)
    module.bind([("data", (1, 3))], for_training=False)
    module.init_params(mx.init.One())
    module.save_checkpoint(str(folder / "sums"), 1)
    with mx.serve.Client(box.lives[node].url, TOKENS["ann"]) as client:
        client.publish("sums", [folder / "sums-symbol.json", folder / "sums-0001.params"])
    connection.use(None)


def report(box: Box) -> None:
    """Have each node report what its server says, as a node's actor does."""
    paths = routes.DEVICES, routes.ADMIN_SESSIONS, routes.ADMIN_MODELS, routes.ADMIN_USAGE
    for name, live in box.lives.items():
        api = ServerApi(live.url, TOKENS["boss"])
        devices, sessions, models, usage = map(api.get, paths)
        api.close()
        taken = report_of(devices, sessions, models, usage)
        box.change(lambda name=name, taken=taken: box.controller.report(name, taken, 0.0))


def statuses(client: httpx.Client, model: str) -> set[int]:
    return {client.post(f"/v2/models/{model}/infer", json=REQUEST).status_code for _ in range(6)}


def test_a_published_model_reaches_its_node_by_both_of_its_names(box: Box) -> None:
    report(box)
    for name in ("sums", "ann.sums"):
        answer = box.ann.post(f"/v2/models/{name}/infer", json=REQUEST)
        assert answer.json()["outputs"][0]["data"] == [6, 6]
        assert statuses(box.ann, name) == {200}
        assert box.ann.get(f"/v2/models/{name}/ready").status_code == 200
    with box.client("bob") as bob:
        assert statuses(bob, "sums") == statuses(bob, "ann.sums") == {404}


def test_a_model_that_no_node_has_is_answered_as_a_server_does(box: Box) -> None:
    report(box)
    with httpx.Client(base_url=box.lives["a"].url, headers={"Authorization": f"Bearer {TOKENS['ann']}"}) as direct:
        for method, path in (("POST", "infer"), ("GET", "ready"), ("GET", "config")):
            body = REQUEST if method == "POST" else None
            by_gateway, own = (
                client.request(method, f"/v2/models/nobodys/{path}", json=body) for client in (box.ann, direct)
            )
            assert by_gateway.status_code == own.status_code == 404
            assert by_gateway.json()["error"] == own.json()["error"]
    with httpx.Client(base_url=box.url, headers={"Authorization": "Bearer nobodys"}) as stranger:
        assert statuses(stranger, "sums") == {401}


def test_names_of_others_models_are_not_shown(box: Box) -> None:
    report(box)

    def shown(owner: str) -> list[str]:
        with box.client(owner) as client:
            return [row["name"] for row in client.get("/v1/cluster").json()["models"]]

    assert shown("ann") == shown("boss") == ["ann.sums"]
    assert shown("bob") == []


def test_all_owners_models_are_an_administrators_to_list(box: Box) -> None:
    live = box.lives["b"]
    (row,) = live.json("GET", routes.ADMIN_MODELS, owner="boss").header["models"]
    assert (row["name"], row["version"], row["state"], row["owner"]) == ("ann.sums", "1", "READY", "ann")
    assert live.json("GET", routes.MODELS, owner="boss").header["models"] == []
    assert live.json("GET", routes.ADMIN_MODELS, owner="ann").status == 403
    assert np.isfinite(row["bytes"])
