"""A node is killed in mid-training: its session goes on elsewhere, with the bits of a run that nobody disturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from pydantic import ValidationError

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import MXNetError
from opbox_service.checkpoint_store import store_of
from opbox_service.settings import Settings
from tests.client.test_recovery import Steps, lost, train
from tests.cluster.router import Router
from tests.contract.live import TOKENS, Live, Session

Start = Callable[..., Live]
ZEROS = {"do": "zeros", "ids": [1], "shape": [4], "dtype": "float32"}
SCHEMES = ("file", "local")
"""A folder of the server's own making, and one that fsspec has as it has an object store."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that share a store; each has a state directory of its own."""
    running: list[Live] = []

    def start(isolation: str = "process", scheme: str = "file") -> Live:
        folder = tmp_path / f"node{len(running)}"
        folder.mkdir()
        shared = {"OPBOX_STORE_URL": f"{scheme}://{tmp_path}/store", "OPBOX_STATE_DIR": str(folder / "state")}
        running.append(Live(isolation, folder, **shared))
        return running[-1]

    yield start
    connection.use(None)
    for server in running:
        server.stop()


def kill(server: Live) -> None:
    """End a server's processes as the death of its machine does."""
    processes = [psutil.Process(server.process.pid)]
    processes += processes[0].children(recursive=True)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    server.process.wait(30)


@pytest.fixture
def router(node: Start) -> Iterator[Router]:
    """A router before two servers; the client uses it."""
    router = Router(node(), node())
    connection.use(HttpTransport(router.url, TOKENS["ann"], patience=60))
    yield router
    connection.use(None)
    router.close()


def test_fit_goes_on_on_another_node_with_the_bits_of_an_undisturbed_run(router: Router) -> None:
    def kill_first() -> None:
        mx.nd.waitall()
        kill(router.servers[0])

    parameters, records = train(None, Steps({11: kill_first}))
    step, number = lost(records)
    assert (step, 1 <= number <= 4) == (8, True)
    assert (router.opened[0], router.opened[-1]) == (0, 1)
    (warning,) = [record for record in records if "was lost" in record]
    assert "node 0 has died" in warning
    assert "done again" in warning
    expected, quiet = train(None, None)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)
    accuracy = [[line for line in lines if "Train-accuracy" in line] for lines in (records, quiet)]
    assert accuracy[0] == accuracy[1] != []


def test_a_node_that_is_stopped_loses_no_step_that_it_accepted(router: Router) -> None:
    def stop_first() -> None:
        mx.nd.waitall()
        assert router.servers[0].stop() == 0

    parameters, records = train(None, Steps({10: stop_first}))
    step, number = lost(records)
    assert (step, number <= 2) == (10, True)  # a stop saves where the session is
    expected, _ = train(None, None)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)


@pytest.mark.parametrize("url", ["/mnt/opbox", "file://mnt", "memory://opbox", "s3:bucket", "s3://bucket?a=b", "s3://"])
def test_a_store_that_cannot_be_shared_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="such as file:///mnt/opbox"):
        Settings(store_url=url)


def test_a_store_without_its_package_says_what_to_install() -> None:
    settings = Settings(store_url="unheard://of/opbox")
    with pytest.raises(MXNetError, match=r"pip install 'opbox-service\[cluster\]'"):
        store_of(settings)


def test_a_session_without_checkpoints_is_told_why_it_is_gone(router: Router) -> None:
    weight = mx.nd.ones((3,))
    weight.wait_to_read()
    kill(router.servers[0])
    with pytest.raises(MXNetError, match="node 0 has died") as gone:
        weight.asnumpy()
    assert gone.value.status == 410
    assert mx.nd.ones((2,)).asnumpy().tolist() == [1, 1]
    assert router.opened == [0, 1]


def save(session: Session, step: int, **further: Any) -> Any:
    """The step's number in the array, and a checkpoint of that."""
    mark = {"do": "checkpoint", "name": "run", "every": 1, "step": step, **further}
    return session.run(
        {"do": "free", "ids": [1]}, {"do": "put", "id": 1, "tensor": "x"}, mark, x=np.full(4, step, np.float32)
    )


def restore(server: Live, owner: str = "ann") -> tuple[Session, Any]:
    """A session that goes on from the checkpoint, and the answer to that."""
    session = server.session(owner)
    return session, session.run({"do": "restore", "name": "run", "takes_over": True})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_session_that_came_back_cannot_save_what_another_goes_on_from(node: Start, scheme: str) -> None:
    first, second = node("none", scheme), node("none", scheme)
    old = first.session()
    assert old.run(ZEROS).status == 200
    assert save(old, 1, arrays={"x": 1}).status == 200
    new, restored = restore(second)
    assert (restored.status, restored.header["results"][0]["step"]) == (200, 1)
    fenced = save(old, 2)
    assert fenced.status == 409
    assert "checkpoint 'run': expected this session to be the last that goes on from it" in fenced.error
    assert save(new, 2).status == 200
    assert first.stop() == 0  # which saves where sessions are, but not this one
    assert [row["name"] for row in second.call("GET", "/v1/checkpoints").header["checkpoints"]] == ["run"]
    newest, restored = restore(second)
    assert restored.header["results"][0]["step"] == 2
    assert newest.run({"do": "fetch", "id": 1, "as": "x"}).tensors["x"].tolist() == [2] * 4
    assert save(new, 3).status == 409
    # A program that begins anew under the name does not fence itself.
    fresh = second.session()
    assert fresh.run(ZEROS).status == 200
    assert save(fresh, 1, arrays={"x": 1}).status == 200
    assert save(fresh, 2).status == 200


@pytest.mark.parametrize("scheme", SCHEMES)
def test_owners_and_forged_files(node: Start, tmp_path: Path, scheme: str) -> None:
    first, second = node("process", scheme), node("process", scheme)
    session = first.session()
    assert session.run(ZEROS).status == 200
    assert save(session, 1, arrays={"x": 1}).status == 200
    _, refused = restore(second, "bob")
    assert refused.status == 404
    assert second.call("DELETE", "/v1/checkpoints/run", owner="bob").status == 404
    (file,) = (tmp_path / "store").rglob("*.checkpoint")
    file.write_bytes(file.read_bytes()[:-8])
    _, refused = restore(second)
    assert refused.status == 400
    assert "expected a file that this server wrote, got another" in refused.error
    assert second.call("DELETE", "/v1/checkpoints/run").status == 200
    _, refused = restore(first)
    assert refused.status == 404


def test_a_model_and_a_dataset_of_one_server_are_the_others_too(node: Start, tmp_path: Path) -> None:
    first, second = node(), node()
    connection.use(HttpTransport(first.url, TOKENS["ann"]))
    network = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, no_bias=True, name="fc")
    module = mx.mod.Module(network, label_names=None)
    module.bind([("data", (1, 3))], for_training=False)
    module.init_params(mx.init.One())
    module.save_checkpoint(str(tmp_path / "ones"), 1)
    files = [tmp_path / "ones-symbol.json", tmp_path / "ones-0001.params"]
    with mx.serve.Client(first.url, TOKENS["ann"]) as client:
        client.publish("ones", files)
    mx.datasets.put("rows", np.arange(6, dtype=np.float32).reshape(2, 3))
    connection.use(HttpTransport(second.url, TOKENS["ann"]))
    assert mx.datasets.get("rows")["data"].shape == (2, 3)
    assert second.json("POST", "/v2/repository/models/ann.ones/load", {}, owner="boss").status == 200
    inputs = [{"name": "data", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]
    answer = second.json("POST", "/v2/models/ones/infer", {"inputs": inputs})
    assert answer.header["outputs"][0]["data"] == [6, 6]
