"""Sessions that bring code: who gets one, how it ends, and that nobody else notices."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from tests.contract import mischief
from tests.contract.isolation import (
    X,
    definition,
    own_folders,
    run,
    server,
    settings,
    step,
    train,
)
from tests.contract.live import Live
from tests.contract.test_workers import shared_memory, wait_for

__all__ = ["server"]

# -- who gets one ---------------------------------------------------------------------------------------------------


def test_only_tokens_that_may_upload_get_a_process(server: Live) -> None:
    count = server.metric("opbox_code_workers")
    plain, chosen = server.session("ann"), server.session("py", code=False)
    assert server.metric("opbox_code_workers") == count
    own = server.session("py", code=True)
    assert server.metric("opbox_code_workers") == count + 1
    refused = server.call("POST", "/v1/sessions", {"code": True}, owner="ann")
    assert (refused.status, refused.header["type"]) == (403, "ForbiddenError")
    assert server.call("POST", "/v1/sessions", {"code": 1}, owner="py").status == 400
    told_so = chosen.run(*step("nothing"), x=X)
    assert (told_so.status, told_so.header["type"]) == (409, "ConflictError")
    assert '{"code": true}' in told_so.error
    assert plain.run(*step("nothing"), x=X).status == 403
    listed = server.call("GET", "/v1/sessions", owner="py").header["sessions"]
    assert {chosen.id, own.id} <= {row["id"] for row in listed}
    for session in (plain, chosen, own):
        assert session.delete().status == 200
    assert own.run({"do": "describe", "id": 1}).status == 410


def test_their_number_is_limited(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_SESSIONS="2", OPBOX_CODE_SPARES="0"))
    sessions = [server.session("py", code=True), server.session("bob", code=True)]
    refused = server.call("POST", "/v1/sessions", {"code": True}, owner="py")
    assert (refused.status, refused.header["type"]) == (429, "QuotaError")
    assert '{"code": false}' in refused.error
    assert sessions[0].delete().status == 200
    assert server.session("py").run(*step("nothing"), x=X).status == 200


def test_a_session_that_loops_can_be_listed_and_deleted(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_DEADLINE_S="120"))
    session = server.session("py")
    running = threading.Thread(target=session.run, args=step("loop_with_the_lock"), kwargs={"x": X})
    running.start()
    time.sleep(0.5)
    listed = server.call("GET", "/v1/sessions", owner="py").header["sessions"]
    assert session.id in {row["id"] for row in listed}
    assert server.call("DELETE", session.path, owner="py").status == 200
    running.join(60)
    assert not running.is_alive(), "it goes on until its deadline"
    assert "deleted" in session.run({"do": "describe", "id": 1}).error


def test_a_session_expires_with_its_process(server: Live) -> None:
    count = server.metric("opbox_code_workers")
    session = server.session("py", ttl_s=0.5, code=True)
    wait_for(lambda: server.metric("opbox_code_workers") <= count)
    answer = session.run({"do": "describe", "id": 1})
    assert answer.status == 410
    assert "expired" in answer.error


def test_one_name_two_codes(server: Live) -> None:
    answers = []
    for cls in (mischief.DoublerProp, mischief.TriplerProp):
        code, define = definition(cls, "of_one_name")
        session = server.session("py")
        invoke = {
            "do": "invoke",
            "op": "Custom",
            "attrs": {"op_type": "of_one_name", "__code__": code},
            "inputs": [1],
            "outputs": [2],
        }
        answer = session.run(
            {"do": "put", "id": 1, "tensor": "x"}, define, invoke, {"do": "fetch", "id": 2, "as": "y"}, x=X
        )
        assert answer.status == 200, answer.header
        answers.append(answer.tensors["y"] / np.maximum(X, 1))
        session.delete()
    assert [float(answer[1]) for answer in answers] == [2.0, 3.0]


# -- nobody else notices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_another_session_trains_on_bit_for_bit(server: Live, owner: str) -> None:
    """In a worker that sessions share (ann), and in one of its own (bob)."""
    undisturbed = train(server.session(owner, code=owner == "bob"), 20)
    done = threading.Event()
    weights: list[list[np.ndarray]] = []
    training = threading.Thread(
        target=lambda: weights.append(train(server.session(owner, code=owner == "bob"), 20, done.is_set))
    )
    training.start()
    try:
        for what in ("segfault", "leave", "memory", "fork_bomb", "connection", "loop", "raising"):
            session, answer = run(server, what)
            assert answer.status in (422, 429, 504)
            server.call("DELETE", session.path, owner="py")
    finally:
        done.set()
        training.join(60)
    (disturbed,) = weights
    for before, after in zip(undisturbed, disturbed, strict=False):
        np.testing.assert_array_equal(before, after)
    assert len(disturbed) >= len(undisturbed)
    assert server.metric("opbox_worker_restarts_total") == 0


def test_nothing_stays_behind(server: Live) -> None:
    before = set(os.listdir("/dev/shm"))
    big = np.arange(300_000, dtype=np.float32)
    for what in ("segfault", "leave", "folder", "fork_and_stay"):
        session = server.session("py", code=True)
        sent = session.run({"do": "put", "id": 9, "tensor": "x"}, {"do": "fetch", "id": 9, "as": "x"}, x=big)
        np.testing.assert_array_equal(sent.tensors["x"], big)
        session.run(*step(what), x=X)
        server.call("DELETE", session.path, owner="py")
    left = server.call("GET", "/v1/sessions", owner="py").header["sessions"]
    for row in left:
        server.call("DELETE", f"/v1/sessions/{row['id']}", owner="py")
    expected = 1 + int(server.metric("opbox_code_workers"))
    wait_for(lambda: len(own_folders(server)) <= expected)
    wait_for(lambda: len(server.code_workers()) <= expected)
    assert {name for name in os.listdir("/dev/shm") if "opbox" in name} <= before
    # A page and a file for the stack for each process that is there.
    wait_for(lambda: len(shared_memory(server.process.pid)) <= 2 * expected)


def test_a_killed_server_takes_them_along_and_the_next_one_its_folders(start: Callable[..., Live]) -> None:
    server = start("process", **settings())
    run(server, "folder")
    workers, folders = server.code_workers(), own_folders(server)
    assert folders
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    following = start("process", **settings())
    following.session("py")
    assert not [folder for folder in folders if os.path.exists(folder)]


# -- through the client ---------------------------------------------------------------------------------------------


def test_the_client_goes_on_in_a_new_session(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(HttpTransport(server.url, "py-secret-of-22-characters"))
    try:
        data = mx.sym.Variable("data")

        def output(what: str) -> np.ndarray:
            net = mx.sym.Custom(data, op_type="mischief", what=what, name="mine")
            executor = net.simple_bind(mx.cpu(), data=(6,))
            return executor.forward(data=mx.nd.array(X))[0].asnumpy()

        np.testing.assert_array_equal(output("nothing"), X + 1)
        lost = mx.nd.ones((2,))
        with pytest.raises(mx.base.MXNetError, match=r"SIGSEGV.*mischief.py:\d+ in segfault"):
            output("segfault")
        with pytest.raises(mx.base.MXNetError, match="SIGSEGV"):
            lost.asnumpy()
        np.testing.assert_array_equal(output("nothing"), X + 1)
    finally:
        connection.use(None)
