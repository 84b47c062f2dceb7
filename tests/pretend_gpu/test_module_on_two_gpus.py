"""Programs on two GPUs of one engine: MXNet's numbers, the bits of a session for each, and one request a step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.cli.commands import main
from opbox.device_sessions import adopt
from opbox.http import HttpTransport
from opbox.session import Session
from tests.contract.live import TOKENS, Live
from tests.training import several_devices

RECORDED: dict[str, Any] = json.loads(Path(several_devices.RECORDED).read_text())
CASES = [name for name, options in several_devices.CASES.items() if options["devices"] <= 2]
TWO = [mx.gpu(0), mx.gpu(1)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("two")
    server = Live("process", folder, OPBOX_WORKERS="1", OPBOX_STATE_DIR=str(folder / "state"))
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["embedded", "http"])
def engine(gpu: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    # This file speaks of the program that pytest is; no code of its own is in it.
    monkeypatch.setenv("OPBOX_CODE", "0")
    over_http = request.param == "http"
    connection.use(HttpTransport(request.getfixturevalue("live").url, TOKENS["ann"]) if over_http else None)
    yield request.param
    connection.use(None)


def trained(case: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(json.dumps(several_devices.trained(mx, **several_devices.CASES[case], kind="gpu")))
    return row


@pytest.mark.parametrize("case", CASES)
def test_trainings_are_mxnets(case: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "1")  # put back afterwards
    row, recorded = trained(case), RECORDED[case]
    for name, values in recorded["numbers"].items():
        # Six steps in float32, whose sums are in another order: Adam divides by small roots of them.
        np.testing.assert_allclose(row["numbers"][name], values, rtol=2e-4, atol=2e-5, err_msg=name)
    arrays = [one.replace("gpu", "cpu") for listed in row["texts"]["arrays"] for one in listed]
    assert arrays == [one for listed in recorded["texts"]["arrays"] for one in listed]
    assert mx.gpu(0).session.shares_batches(mx.gpu(1).session)


def test_numbers_are_those_of_a_session_for_each(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "1")
    numbers = []
    for together in (True, False):
        connection.use(None)
        if not together:
            for device in ("gpu:0", "gpu:1"):
                adopt(Session(connection.transport(), device))
        numbers.append([trained(case)["numbers"] for case in ("local", "not on the store")])
        assert mx.gpu(0).session.shares_batches(mx.gpu(1).session) == together
    connection.use(None)
    assert numbers[0] == numbers[1]


def module(context: Any) -> Any:
    mod = mx.mod.Module(several_devices.network(mx), context=context)
    mod.bind([("data", (4, 6))], [("softmax_label", (4,))])
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer("device", "adam")
    return mod


def test_a_step_is_one_request(engine: str) -> None:
    mod = module(TWO)
    metric = mx.metric.create("acc")
    data = mx.io.NDArrayIter(np.random.RandomState(0).rand(40, 6), np.zeros(40), 4)
    mod.forward_backward(next(data))
    mod.update()
    mod.get_outputs()[0].wait_to_read()
    session = mx.gpu(0).session
    assert session.shares_batches(mx.gpu(1).session)
    before = session.requests
    for batch in data:
        mod.forward_backward(batch)
        mod.update()
        mod.update_metric(metric, batch.label)
        mod._flush()
    assert session.requests - before == 9
    metric.get()
    for arrays in mod._exec_group.param_arrays:
        np.testing.assert_array_equal(arrays[0].asnumpy(), arrays[1].asnumpy())


def test_a_store_of_two_gpus_waits_for_nothing(engine: str) -> None:
    store = mx.kv.create("device")
    store.init("w", mx.nd.zeros((2,), TWO[0]))
    outs = [mx.nd.zeros((2,), ctx) for ctx in TWO]
    session = mx.gpu(1).session
    before = session.requests
    for step in range(3):
        store.push("w", [mx.nd.ones((2,), ctx) * (step + 1) for ctx in TWO])
        store.pull("w", out=outs)
    assert session.requests == before
    assert [out.asnumpy().tolist() for out in outs] == [[6, 6], [6, 6]]
    assert [out.context for out in outs] == TWO


def test_gradients_are_compressed_on_each(engine: str) -> None:
    store = mx.kv.create("device")
    store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
    store.init("w", mx.nd.zeros((2,), TWO[1]))
    for _ in range(2):
        store.push("w", [mx.nd.ones((2,), ctx) * 0.75 * (ctx.device_id + 1) for ctx in TWO])
    out = mx.nd.zeros((2,), TWO[0])
    store.pull("w", out=out)
    assert out.asnumpy().tolist() == [2, 2], "1.5 of the first GPU and 0.5 + 1.5 of the second: one threshold each"


def test_the_command_lists_all_devices_of_a_session(live: Live, gpu: Any, capsys: Any, monkeypatch: Any) -> None:
    session = live.session(devices=["gpu:0", "gpu:1"])
    monkeypatch.setenv("OPBOX_URL", live.url)
    monkeypatch.setenv("OPBOX_TOKEN", TOKENS["ann"])
    connection.use(None)
    assert main(["sessions"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if session.id in line)
    assert "gpu:0, gpu:1" in row
    session.delete()
    connection.use(None)


def test_arrays_go_from_one_to_the_other(engine: str) -> None:
    x = mx.nd.array(range(6), TWO[0])
    y = mx.nd.zeros((6,), TWO[1], dtype="int32")
    session = mx.gpu(1).session
    before = session.requests
    z = x.as_in_context(TWO[1])
    z += 1
    x.copyto(y)
    w = mx.nd.zeros((2, 6), TWO[1])
    w[:] = x
    w[0] = x * 2
    assert session.requests == before
    assert z.asnumpy().tolist() == [1, 2, 3, 4, 5, 6]
    assert y.asnumpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert w.asnumpy().tolist() == [[0, 2, 4, 6, 8, 10], [0, 1, 2, 3, 4, 5]]
    assert (z.context, y.context, x.copyto(TWO[1]).context) == (TWO[1],) * 3


def test_each_gpu_draws_its_own_numbers(engine: str) -> None:
    drawn = []
    assert all(ctx.session for ctx in TWO)
    for _ in range(2):
        mx.random.seed(3, ctx="all")
        drawn.append([mx.nd.random.uniform(shape=(4,), ctx=ctx).asnumpy() for ctx in TWO])
    np.testing.assert_array_equal(drawn[0], drawn[1])
    mx.random.seed(5, ctx=TWO[1])
    first, second = (mx.nd.random.uniform(shape=(4,), ctx=ctx).asnumpy() for ctx in TWO)
    mx.random.seed(5, ctx=TWO[0])
    np.testing.assert_array_equal(mx.nd.random.uniform(shape=(4,), ctx=TWO[0]).asnumpy(), second)
    assert (first != second).any()


def test_arrays_of_two_gpus_do_not_mix(engine: str) -> None:
    x, y = (mx.nd.ones((2,), ctx) for ctx in TWO)
    with pytest.raises(mx.MXNetError, match="expected all arrays on gpu:0, got one on gpu:1; move it with as_in_cont"):
        x + y
    with pytest.raises(mx.MXNetError, match=r"device 'gpu:9' is not available: this machine has fewer GPUs"):
        mx.nd.ones((2,), mx.gpu(9))
    assert (x + 1).asnumpy().tolist() == [2, 2]
    assert (y + 1).asnumpy().tolist() == [2, 2]


def test_a_failing_command_names_its_line(engine: str) -> None:
    mx.nd.ones((2,), TWO[0])
    x = mx.nd.ones((2, 3), TWO[1])
    broken = mx.nd.dot(x, x)
    with pytest.raises(mx.MXNetError, match=r"test_module_on_two_gpus\.py"):
        broken.asnumpy()
    assert x.sum().asscalar() == 6


def test_code_is_for_sessions_on_one_device(live: Live, gpu: Any) -> None:
    answer = live.call("POST", "/v1/sessions", {"devices": ["gpu:0", "gpu:1"], "code": True}, owner="py")
    sentence = "expected one in a session with a process of its own for code, got gpu:0, gpu:1: make a session for each"
    assert (answer.status, answer.error) == (400, f"devices: {sentence}")
    session = live.session("py", devices=["gpu:0", "gpu:1"])
    answer = session.run({"do": "define", "op": "Custom", "op_type": "f", "sha256": "0", "bundle": {}})
    assert answer.status == 501
    assert answer.error.startswith(
        "code: expected a session on one device, got one on gpu:0, gpu:1: make a session with"
    )
    assert session.run({"do": "use_device", "device": "gpu:1"}).status == 200, "it goes on"
    session.delete()


class Doubled(mx.operator.CustomOp):
    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        number = mx.nd.ones((1,), in_data[0].context) * 2
        self.assign(out_data[0], req[0], mx.nd.broadcast_mul(in_data[0], number.as_in_context(in_data[0].context)))
        assert in_data[0].context == mx.current_context()
        contexts.append(str(in_data[0].context))


class DoubledProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
        return Doubled()


contexts: list[str] = []


def test_an_operator_of_ones_own_runs_on_each_in_ones_own_process(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(None)
    mx.operator.register("doubled_on_two_gpus")(DoubledProp)
    contexts.clear()
    arrays = [mx.nd.array([1, 2], ctx) for ctx in TWO]
    assert mx.gpu(0).session.shares_batches(mx.gpu(1).session)
    outs = [mx.nd.Custom(x, op_type="doubled_on_two_gpus") for x in arrays]
    assert [out.asnumpy().tolist() for out in outs] == [[2, 4], [2, 4]]
    assert contexts == ["gpu(0)", "gpu(1)"]
    connection.use(None)


def test_a_program_goes_on_when_the_worker_of_both_ends(live: Live, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    monkeypatch.setenv("OPBOX_CODE", "0")
    connection.use(HttpTransport(live.url, TOKENS["ann"]))
    try:
        mx.nd.ones((2,), TWO[0]).wait_to_read()
        weight = mx.nd.zeros((2,), TWO[1])
        saved = mx.Recovery("two", every=1)
        saved.watch({"weight": weight})
        weight += 1
        saved.step()
        os.kill(live.workers()[0], signal.SIGKILL)
        with pytest.raises(mx.MXNetError) as lost:
            (weight + 1).asnumpy()
        saved.recover(lost.value)
        assert (weight + 1).asnumpy().tolist() == [2, 2]
        assert weight.copyto(TWO[0]).asnumpy().tolist() == [1, 1]
        assert mx.gpu(0).session.shares_batches(weight._session)
        assert [row["devices"] for row in live.call("GET", "/v1/sessions").header["sessions"]] == [["gpu:0", "gpu:1"]]
    finally:
        connection.use(None)


def test_a_program_on_the_second_gpu_ends_quietly(gpu: Any) -> None:
    """At its end CuPy takes every device for the first."""
    program = "import opbox as mx; print(mx.nd.ones((2,), mx.gpu(1)).exp().sum().asnumpy())"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    environment["PYTHONPATH"] = ":".join(sys.path)
    ended = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
