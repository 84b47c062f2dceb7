"""A node is killed in mid-training: its session goes on elsewhere, with the bits of a run that nobody disturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import MXNetError
from tests.client.test_recovery import Steps, lost, train
from tests.cluster.router import Router
from tests.contract.live import TOKENS, Live

Start = Callable[..., Live]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Start]:
    """Starts servers that share a store; each has a state directory of its own."""
    running: list[Live] = []

    def start(isolation: str = "process", store: str | None = None, **settings: str) -> Live:
        folder = tmp_path / f"node{len(running)}"
        folder.mkdir()
        store = f"file://{tmp_path}/store" if store is None else store
        shared = {"OPBOX_STORE_URL": store, "OPBOX_STATE_DIR": str(folder / "state"), **settings}
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


def test_a_session_without_checkpoints_is_told_why_it_is_gone(router: Router) -> None:
    weight = mx.nd.ones((3,))
    weight.wait_to_read()
    kill(router.servers[0])
    with pytest.raises(MXNetError, match="node 0 has died") as gone:
        weight.asnumpy()
    assert gone.value.status == 410
    assert mx.nd.ones((2,)).asnumpy().tolist() == [1, 1]
    assert router.opened == [0, 1]
