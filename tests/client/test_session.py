"""The stream of commands: when it is sent, in what order, and what happens to errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox.session import BATCH_COMMANDS
from opbox_protocol.errors import MXNetError, NotFoundError, QuotaError, ShapeError, TransportError
from tests.contract.live import TOKENS, Live

pytestmark = pytest.mark.usefixtures("engine")


def test_commands_wait_for_a_value_to_be_needed() -> None:
    session = mx.cpu().session
    before = session.requests
    x = mx.nd.ones((2, 2))
    for _ in range(50):
        x = x + 1
    assert session.requests == before
    assert x.asnumpy().max() == 51
    assert session.requests == before + 1


def test_a_training_step_is_one_request() -> None:
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), name="softmax")
    executor = net.simple_bind(mx.cpu(), data=(4, 5))
    session = mx.cpu().session
    session.wait()
    before = session.requests
    for _ in range(10):
        executor.forward(is_train=True, data=np.ones((4, 5), "f"))
        executor.backward()
        for weight, gradient in zip(executor.arg_arrays, executor.grad_arrays, strict=True):
            mx.nd.sgd_update(weight, gradient, lr=0.1, out=weight)
        pending = executor.outputs[0]._fetch_async()
        session.flush()
    assert pending.result().shape == (4, 3)
    assert session.requests == before + 10


def test_flush_does_not_wait_and_sends_nothing_twice() -> None:
    session = mx.cpu().session
    pending = mx.nd.ones((3,))._fetch_async()
    before = session.requests
    session.flush()
    session.flush()
    assert session.requests == before + 1
    assert pending.result().tolist() == [1, 1, 1]


def test_asking_for_an_old_value_leaves_the_new_batch_open() -> None:
    session = mx.cpu().session
    pending = mx.nd.ones((3,))._fetch_async()
    session.flush()
    mx.nd.zeros((3,))
    before = session.requests
    pending.result()
    assert session.requests == before


def test_a_fetch_is_of_its_moment() -> None:
    x = mx.nd.zeros((2,))
    early = x._fetch_async()
    x += 1
    late = x._fetch_async()
    assert early.result().tolist() == [0, 0]
    assert late.result().tolist() == [1, 1]


def test_a_full_batch_leaves_by_itself() -> None:
    session = mx.cpu().session
    session.wait()
    before = session.requests
    x = mx.nd.zeros((1,))
    for _ in range(BATCH_COMMANDS):
        x += 1
    assert session.requests == before + 1
    assert x.asnumpy().tolist() == [BATCH_COMMANDS]


def test_many_batches_keep_their_order() -> None:
    session = mx.cpu().session
    x = mx.nd.zeros((1,))
    pending = []
    for i in range(300):
        x += 1
        if i % 7 == 0:
            pending.append((i + 1, x._fetch_async()))
        session.flush()
    for expected, value in pending:
        assert value.result()[0] == expected
    assert x.asnumpy()[0] == 300


def test_errors_of_flushed_steps_surface_at_the_next_wait() -> None:
    session = mx.cpu().session
    mx.nd.ones((2, 3)) + mx.nd.ones((4,))
    session.flush()
    with pytest.raises(ShapeError, match=r"test_session\.py"):
        mx.waitall()
    mx.waitall()
    assert mx.nd.ones((2,)).asnumpy().sum() == 2


def test_arrays_of_a_failed_command_are_not_there() -> None:
    bad = mx.nd.ones((2, 3)) + mx.nd.ones((4,))
    with pytest.raises(ShapeError):
        bad.wait_to_read()
    with pytest.raises(NotFoundError):
        bad.asnumpy()


def test_forgotten_arrays_are_freed() -> None:
    session = mx.cpu().session
    x = mx.nd.ones((4,))
    x.wait_to_read()
    number = x._id
    del x
    gc.collect()
    mx.waitall()
    with pytest.raises(NotFoundError):
        session.fetch(number).result()


def test_who_waits_again_waits_for_nothing_in_this_process() -> None:
    session = mx.cpu().session
    mx.nd.ones((4,)).wait_to_read()
    mx.waitall()  # the array above is freed
    before = session.requests
    for _ in range(3):
        mx.waitall()
    assert session.requests - before == (0 if session.in_process else 3)
    x = mx.nd.ones((4,))
    session.flush()  # nobody has waited for this one
    mx.waitall()
    assert session.requests - before == (2 if session.in_process else 5)
    assert x.asnumpy().sum() == 4


def test_who_waits_again_is_told_of_an_end() -> None:
    x = mx.nd.ones((2,))
    x.wait_to_read()
    mx.disconnect()
    with pytest.raises(TransportError, match="closed"):
        x.wait_to_read()


def test_a_closed_session_says_so() -> None:
    x = mx.nd.ones((2,))
    x.asnumpy()
    mx.disconnect()
    with pytest.raises(TransportError, match="closed"):
        x.asnumpy()
    assert mx.nd.ones((2,)).asnumpy().sum() == 2


def test_arrays_of_different_sessions_do_not_mix() -> None:
    x = mx.nd.ones((2,))
    x.asnumpy()
    mx.disconnect()
    with pytest.raises(MXNetError, match="as_in_context"):
        mx.nd.ones((2,)) + x


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(MXNetError, match="gpu"):
        mx.nd.ones((2,), ctx=mx.gpu(97)).asnumpy()
    assert mx.nd.ones((2,)).asnumpy().sum() == 2


def test_the_sender_thread_ends_with_its_session() -> None:
    import threading

    mx.nd.ones((2,)).asnumpy()
    assert [t for t in threading.enumerate() if t.name.startswith("opbox-cpu")]
    mx.disconnect()
    assert not [t for t in threading.enumerate() if t.name.startswith("opbox-cpu")]


SCRIPT = """
import opbox as mx
x = mx.nd.ones((3,))
x += 1
{end}
"""


@pytest.mark.parametrize("end", ["print(x.asnumpy().sum())", "mx.cpu().session.flush(); print(6.0)", "print(6.0)"])
def test_a_program_ends_cleanly(end: str, engine: str, request: pytest.FixtureRequest) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    if engine == "http":
        server: Live = request.getfixturevalue("live")
        env |= {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS["ann"]}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(end=end)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "6.0", "")
    if engine == "http":
        assert server.json("GET", "/v1/sessions").header["sessions"] == []


@pytest.mark.parametrize(("detail", "least", "most"), [({"retry_after_s": 7200}, 1, 2), ({}, 5, 20)])
def test_a_used_up_quota_is_told_at_once_and_a_full_queue_asked_ever_less_often(
    live: Live, monkeypatch: pytest.MonkeyPatch, detail: dict[str, Any], least: int, most: int
) -> None:
    monkeypatch.setattr("opbox.batch_posting.PATIENCE", 2.0)  # fixed pauses of 0.02 s would be 100 requests
    transport = HttpTransport(live.url, TOKENS["ann"])
    connection.use(transport)
    mx.nd.ones((2,)).wait_to_read()
    sent, call = [], transport.call

    def refuse(method: str, path: str, header: Any = None, tensors: Any = None) -> Any:
        if path.endswith("/commands") and header and header["commands"]:
            sent.append(time.monotonic())
            raise QuotaError("worker seconds: expected at most 2, got 3.6", detail=detail)
        return call(method, path, header, tensors)

    monkeypatch.setattr(transport, "call", refuse)
    with pytest.raises(QuotaError, match="worker seconds"):
        mx.nd.ones((2,)).wait_to_read()
    assert least <= len(sent) <= most


def test_no_server(tmp_path: Path) -> None:
    connection.use(HttpTransport("http://127.0.0.1:9", "t"))
    with pytest.raises(TransportError, match="nothing listens there"):
        mx.nd.ones((2,))


def test_a_wrong_address() -> None:
    with pytest.raises(MXNetError, match="OPBOX_URL"):
        HttpTransport("ftp://there")


def test_a_wrong_token(live: Live) -> None:
    connection.use(HttpTransport(live.url, "wrong"))
    with pytest.raises(MXNetError) as caught:
        mx.nd.ones((2,))
    assert caught.value.status == 401


def test_large_arrays_go_both_ways() -> None:
    values = np.random.default_rng(0).standard_normal((1 << 20,)).astype("f")
    np.testing.assert_array_equal(mx.nd.array(values).asnumpy(), values)


def test_the_embedded_engine_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(None)
    assert (connection.transport().address, connection.transport().in_process) == ("this process", True)
    connection.use(None)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    with pytest.raises(MXNetError, match="no engine: set OPBOX_URL"):
        connection.transport()
