"""Work that nobody waits for any more ends at its next step: by DELETE, by a client that goes away, by the deadline."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from opbox.http import HttpTransport
from opbox.session import Session
from opbox_protocol.errors import CancelledError
from tests.contract.live import TOKENS, Got, Live, symbol, var

X = np.ones(16, np.float32)
STEPS = 240
PATIENCE_S = 30
"""Half of what the work would take, were it not stopped."""
SLOW = symbol(var("x"), *(("_test_slow", f"y{i}", {"seconds": "0.25"}, [i]) for i in range(STEPS)))
"""A minute, in steps of a quarter of a second."""


@pytest.fixture(params=["none", "process"], scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(request.param, tmp_path_factory.mktemp("cancel"), OPBOX_THREADS="2")
    yield live
    assert live.stop() == 0


def in_thread(work: Callable[[], Got]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(work())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.8)
    return thread, answers


def wait_for(condition: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + PATIENCE_S, "it did not come to pass"
        time.sleep(0.05)


def slow_executor(session: Any) -> None:
    bind = {"do": "bind", "id": 2, "graph": SLOW, "args": {"x": 1}, "outputs": [3]}
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, bind, x=X).status == 200


def test_a_request_is_cancelled_by_its_id(server: Live) -> None:
    call = lambda: server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X}, **{"X-Request-Id": "mine"})  # noqa: E731
    running, answers = in_thread(call)
    assert server.call("DELETE", "/v1/requests/mine", owner="bob").status == 404
    assert server.call("DELETE", "/v1/requests/mine").header == {"cancelled": "mine"}
    running.join(PATIENCE_S)
    assert (answers[0].status, answers[0].header["type"]) == (499, "CancelledError")
    assert "y" in answers[0].header["node"]
    assert server.call("DELETE", "/v1/requests/mine").status == 404


def test_a_session_is_cancelled_and_goes_on(server: Live) -> None:
    session = server.session()
    slow_executor(session)
    forward = {"do": "forward", "executor": 2}
    running, answers = in_thread(lambda: session.run(forward))
    session.run({"do": "put", "id": 7, "tensor": "x"}, wait=False, x=X)
    waiting, later = in_thread(lambda: session.run({"do": "fetch", "id": 1, "as": "x"}))
    assert server.call("DELETE", f"{session.path}/commands", owner="bob").status == 404
    assert server.call("DELETE", f"{session.path}/commands").header == {"cancelled": [2, 3, 4]}
    for thread in (running, waiting):
        thread.join(PATIENCE_S)
    assert [answer.status for answer in (*answers, *later)] == [499, 499]
    assert server.call("DELETE", f"{session.path}/commands").header == {"cancelled": []}
    again = session.run({"do": "fetch", "id": 1, "as": "x"})
    assert again.status == 200
    np.testing.assert_array_equal(again.tensors["x"], X)
    assert session.run({"do": "fetch", "id": 7, "as": "x"}).status == 404
    session.delete()


def test_a_session_of_one_s_own_process_is_cancelled_and_goes_on(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session("py")
    slow_executor(session)
    running, answers = in_thread(lambda: session.run({"do": "forward", "executor": 2}))
    cancel = lambda: server.call("DELETE", f"{session.path}/commands", owner="py").header  # noqa: E731
    wait_for(lambda: cancel() == {"cancelled": [2]})
    running.join(PATIENCE_S)
    assert answers[0].status == 499
    assert session.run({"do": "fetch", "id": 1, "as": "x"}).status == 200
    assert session.delete().status == 200


def test_deleting_a_session_ends_what_it_runs(server: Live) -> None:
    session = server.session()
    slow_executor(session)
    running, answers = in_thread(lambda: session.run({"do": "forward", "executor": 2}))
    assert session.delete().status == 200
    running.join(PATIENCE_S)
    assert answers[0].status == 410


def test_a_client_that_goes_away_stops_its_work(server: Live) -> None:
    other = server.session("bob")
    session = server.session()
    slow_executor(session)
    url, token = f"{server.url}{session.path}/commands", {"Authorization": f"Bearer {TOKENS['ann']}"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json={"commands": [{"do": "forward", "executor": 2}]}, headers=token, timeout=1)
    wait_for(lambda: server.json("GET", session.path).header["next_seq"] == 3)
    assert session.seq == 1
    assert other.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200
    session.delete()
    other.delete()


def test_the_deadline_stops_the_work(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_DEADLINE_S="3")
    session = server.session()
    slow_executor(session)
    assert session.run({"do": "forward", "executor": 2}).status == 504
    wait_for(lambda: server.json("GET", session.path).header["next_seq"] == 3)
    assert session.run({"do": "fetch", "id": 1, "as": "x"}).status == 200


def test_a_script_cancels_and_goes_on(server: Live) -> None:
    transport = HttpTransport(server.url, TOKENS["ann"])
    session = Session(transport, "cpu")
    put(session, 1)
    session.wait()
    slow_calls(session)
    pending = session.fetch(3)
    session.flush()
    time.sleep(0.8)
    begun = time.monotonic()
    session.cancel()
    with pytest.raises(CancelledError):
        pending.result()
    assert time.monotonic() - begun < PATIENCE_S
    np.testing.assert_array_equal(session.fetch(1).result(), X)
    session.wait()
    session.close()
    transport.close()


def test_an_interrupt_stops_the_work_on_the_server(server: Live) -> None:
    transport = HttpTransport(server.url, TOKENS["ann"])
    session = Session(transport, "cpu")
    put(session, 1)
    slow_calls(session)
    pending = session.fetch(3)
    session.flush()
    # Where the tests themselves run in the background, SIGINT is ignored: a script in a terminal has this handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(1.0, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    interrupt.start()
    begun = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            pending.result()
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < PATIENCE_S
    path = f"/v1/sessions/{session.id}"
    wait_for(lambda: server.json("GET", path).header["next_seq"] == session.requests + 1)
    np.testing.assert_array_equal(session.fetch(1).result(), X)
    session.close()
    transport.close()


def put(session: Session, id: int) -> None:
    session.record({"do": "put", "id": id, "tensor": ""}, X)


def slow_calls(session: Session) -> None:
    """Calls of a minute together, the first of whose results is array 3."""
    for i in range(STEPS):
        session.record(
            {"do": "invoke", "op": "_test_slow", "attrs": {"seconds": "0.25"}, "inputs": [1], "outputs": [3 + i]}
        )
