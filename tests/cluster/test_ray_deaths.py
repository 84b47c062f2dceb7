"""Nodes of Ray die while clients infer on them and while a script trains there; a gateway stands before them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.client.test_recovery import Steps, lost, train
from tests.cluster.model_load import Load
from tests.cluster.ray_cluster import PATIENCE_S, TOKENS, Nodes, call, nodes_in, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="oc", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield from nodes_in(Path(folder), 3, OPBOX_STORE_URL=f"file://{folder}/store")


@pytest.fixture(scope="module")
def gateway(nodes: Nodes) -> Iterator[str]:
    with nodes.gateway() as url:
        yield url


def serving(nodes: Nodes, count: int) -> tuple[str, ...]:
    """The nodes where the model is ready, once there are so many."""

    def names() -> Any:
        ready = nodes.ask("directory", -1).models.get("net", ())
        return len(ready) == count and ready

    return tuple(until(names, f"{count} nodes serve the model"))


def test_no_request_fails_when_a_node_dies_that_serves_a_model(nodes: Nodes, gateway: str) -> None:
    """A node's raylet, actor and server are killed under load; another node gets its replica."""
    names = serving(nodes, 2)
    victim = next(name for name in names if name != "a")  # Ray's head is the cluster's
    load = Load(gateway)
    try:
        load.more(100)
        nodes.kill_node(victim)
        nodes.until_state(victim, "lost")
        load.more(100)
        assert victim not in serving(nodes, 2)
        load.more(100)
    finally:
        load.end()


def test_a_training_whose_node_dies_goes_on_on_another_with_the_same_bits(nodes: Nodes, gateway: str) -> None:
    """The node that is left beside the head is killed; its session's steps come from the shared store."""
    (victim,) = (name for name in "bc" if nodes.status(name)["state"] == "ready")
    # Nearly all of the head's memory is somebody's, so that the training begins on the other node.
    nodes.place(1, "bob", 60 << 20, avoid=(victim,))
    _, full = call(nodes.status("a")["url"], "POST", "/v1/sessions", {}, owner="bob")
    until(lambda: nodes.status("a")["sessions"] == 1, "the session is reported")
    connection.use(HttpTransport(gateway, TOKENS["ann"], patience=PATIENCE_S))
    try:

        def kill() -> None:
            mx.nd.waitall()
            until(lambda: nodes.status(victim)["sessions"] == 1, "it trains on the node that is to die")
            assert call(nodes.status("a")["url"], "DELETE", f"/v1/sessions/{full['id']}", owner="bob")[0] == 200
            nodes.kill_node(victim)

        parameters, records = train(None, Steps({11: kill}))
        step, number = lost(records)
        assert (step, 1 <= number <= 4) == (8, True)
        (warning,) = [record for record in records if "was lost" in record]
        assert f"node {victim} was lost" in warning
        expected, _ = train(None, None)
        for name, value in expected.items():
            np.testing.assert_array_equal(parameters[name], value, err_msg=name)
    finally:
        connection.use(None)
