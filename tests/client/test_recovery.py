"""A training goes on when its worker is killed or its server restarted, from the last checkpoint and no earlier."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import MXNetError
from tests.contract.live import TOKENS, Live
from tests.contract.recovering import counted_through_a_kill

ROWS, WIDTH, BATCH = 240, 300, 10  # so many that the rows are a dataset on the server


def network() -> Any:
    data = mx.sym.Variable("data")
    hidden = mx.sym.FullyConnected(data, num_hidden=8, name="fc1")
    hidden = mx.sym.Dropout(mx.sym.BatchNorm(hidden, name="bn"), p=0.3)
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def batches() -> Any:
    rng = np.random.default_rng(5)
    data = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return mx.io.NDArrayIter(data, (data.sum(1) > 0).astype(np.float32), BATCH)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Live]]:
    """The servers of a test; the client uses the first."""
    running: list[Live] = []
    yield running
    connection.use(None)
    for server in running:
        server.stop()


def start(servers: list[Live], folder: Path, isolation: str = "process", port: str = "0") -> Live:
    server = Live(isolation, folder, OPBOX_STATE_DIR=str(folder / "state"), options=("--port", port))
    servers.append(server)
    return server


class Steps:
    """A callback that counts batches, and does something behind some of them."""

    def __init__(self, at: dict[int, Any]) -> None:
        self.at = at
        self.count = 0

    def __call__(self, param: Any) -> None:
        self.count += 1
        if self.count in self.at:
            self.at[self.count]()


def train(
    skip: range | None, callback: Any, every: int = 4, devices: int = 1, on_server: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Parameters after one epoch whose steps in `skip` are left out, and what was logged.

    With `on_server` batches are arrays on the server, which are lost with their session.
    """
    records: list[str] = []
    logger = logging.getLogger("test-recovery")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]  # a handler of one line
    logger.addHandler(handler)
    mx.random.seed(11)
    np.random.seed(11)
    mod = mx.mod.Module(network(), logger=logger, context=[mx.cpu(number) for number in range(devices)])
    params = {"learning_rate": 0.05, "lr_scheduler": mx.lr_scheduler.FactorScheduler(5, 0.9, base_lr=0.05)}
    options = {"optimizer": "adam", "optimizer_params": params, "initializer": mx.init.Xavier()}
    data = batches()
    if skip is not None or on_server:
        listed = list(data)
        data = Listed(data, [batch for step, batch in enumerate(listed) if step not in (skip or ())], on_server)
    mod.fit(data, num_epoch=1, checkpoint_every=every, batch_end_callback=callback, **options)
    logger.removeHandler(handler)
    return {name: array.asnumpy() for name, array in mod.get_params()[0].items()}, records


class Listed(mx.io.DataIter):  # type: ignore[misc]  # found when it is asked for
    """Some of an iterator's batches."""

    def __init__(self, source: Any, rows: list[Any], on_server: bool) -> None:
        super().__init__(BATCH)
        self._on_server = on_server
        self.provide_data, self.provide_label = source.provide_data, source.provide_label
        self._rows = rows
        self._next = iter(rows)

    def next(self) -> Any:
        batch = next(self._next)
        if not self._on_server:
            return batch
        data, label = ([mx.nd.array(array.asnumpy()) for array in arrays] for arrays in (batch.data, batch.label))
        return mx.io.DataBatch(data, label, batch.pad)

    def reset(self) -> None:
        self._next = iter(self._rows)


def lost(records: list[str]) -> tuple[int, int]:
    """The step of the checkpoint and the steps that are lost, or done again, of the one sentence about a loss."""
    sentences = [record for record in records if "was lost" in record]
    assert len(sentences) == 1, records
    words = sentences[0].split("of step ")[1].replace(",", "").split()
    return int(words[0]), int(words[1])


def test_fit_goes_on_when_its_worker_is_killed(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"]))

    def kill() -> None:
        mx.nd.waitall()
        os.kill(server.workers()[0], signal.SIGKILL)

    parameters, records = train(None, Steps({11: kill}))
    step, number = lost(records)
    assert (step, number <= 4, number) == (8, True, number)
    expected, quiet = train(None, None)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)
    accuracy = [[line for line in lines if "Train-accuracy" in line] for lines in (records, quiet)]
    assert accuracy[0] == accuracy[1] != [], "each step counts once"


def test_a_callback_that_waits_for_a_lost_session_is_called_again(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"]))
    batches: list[int] = []

    def wait(param: Any) -> None:
        batches.append(param.nbatch)
        mx.nd.waitall()
        if batches.count(9) == 1 and param.nbatch == 9:
            os.kill(server.workers()[0], signal.SIGKILL)

    parameters, records = train(None, wait)
    assert lost(records)[0] == 8
    assert sorted(set(batches)) == list(range(ROWS // BATCH))
    assert len(batches) - len(set(batches)) <= 1, "only that in which the loss was noticed, if any"
    expected, _ = train(None, None)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)


def test_steps_whose_batches_are_on_the_server_are_lost(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"]))

    def kill() -> None:
        mx.nd.waitall()
        os.kill(server.workers()[0], signal.SIGKILL)

    parameters, records = train(None, Steps({11: kill}), on_server=True)
    step, number = lost(records)
    assert (step, 1 <= number <= 4) == (8, True)
    expected, _ = train(range(step, step + number), None)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)


def test_fit_on_two_contexts_goes_on_when_its_server_is_restarted(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    port = server.url.rpartition(":")[2]
    connection.use(HttpTransport(server.url, TOKENS["ann"], patience=60))

    def restart() -> None:
        mx.nd.waitall()
        assert server.stop() == 0
        start(servers, tmp_path, port=port)

    parameters, records = train(None, Steps({10: restart}), devices=2)
    step, number = lost(records)
    assert (step, 1 <= number <= 2) == (10, True)  # a stop saves where it is, and not at a fourth step alone
    expected, _ = train(None, None, devices=2)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value, err_msg=name)


def test_a_loop_of_ones_own_goes_on(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path)
    connection.use(HttpTransport(server.url, TOKENS["ann"]))
    other = mx.nd.ones((2,))
    assert counted_through_a_kill(9, server.workers()[0]) == 7
    with pytest.raises(MXNetError, match="expected one of this session, got nothing"):
        other.asnumpy()


def test_other_errors_are_not_taken_for_a_loss(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path, "none")
    connection.use(HttpTransport(server.url, TOKENS["ann"]))
    weight = mx.nd.zeros((3,))
    saved = mx.Recovery("loop", every=2)
    with pytest.raises(ValueError, match="expected arrays to be watched first"):
        saved.step()
    saved.watch({"weight": weight})
    with pytest.raises(MXNetError) as wrong:
        mx.nd.dot(weight, mx.nd.ones((4,))).asnumpy()
    with pytest.raises(MXNetError) as caught:
        saved.recover(wrong.value)
    assert caught.value is wrong.value
    for name, every, words in (("", 1, "name: expected"), ("a/b", 1, "name: expected"), ("a", 0, "every: expected")):
        with pytest.raises(ValueError, match=words):
            mx.Recovery(name, every)
    with pytest.raises(ValueError, match="expected arrays of one device, got 0"):
        saved.watch({})


def test_steps_that_are_passed_over_are_lost_too(servers: list[Live], tmp_path: Path) -> None:
    server = start(servers, tmp_path, "none")
    connection.use(HttpTransport(server.url, TOKENS["ann"]))
    weight = mx.nd.zeros((3,))
    saved = mx.Recovery("loop", every=2)
    saved.watch({"weight": weight})
    for passed_over, expected in ((0, 1), (1, 2)):
        for _ in range(3):
            weight += 1
            saved.step()
        mx.nd.waitall()
        connection.transport().call("DELETE", f"/v1/sessions/{mx.cpu().session.id}")
        with pytest.raises(MXNetError) as loss:
            weight.asnumpy()
        assert saved.recover(loss.value, passed_over) == (expected, {"weight"})
        assert weight.asnumpy().tolist() == [saved.steps] * 3
        assert saved.steps % 2 == 0


def test_a_server_without_a_directory_says_so(servers: list[Live], tmp_path: Path) -> None:
    servers.append(Live("none", tmp_path))
    connection.use(HttpTransport(servers[0].url, TOKENS["ann"]))
    with pytest.raises(MXNetError, match="set OPBOX_STATE_DIR"):
        train(None, None)
