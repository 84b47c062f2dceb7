"""The engine without HTTP: caches, order, expiry, what is kept and what is let go."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import (
    BadRequestError,
    DeadlineError,
    GoneError,
    MXNetError,
    NotFoundError,
    QuotaError,
    error_to_json,
)
from opbox_service.carriers import Answer
from opbox_service.embedded import EmbeddedTransport
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from tests.contract.live import FC, IDENTITY, symbol, var

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.ones((4, 3), np.float32)
B = np.zeros(4, np.float32)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine_of_test = Engine(Settings(graph_cache=3, plan_cache=2, max_session_bytes=1 << 20, deadline_s=1))
    yield engine_of_test
    engine_of_test.close()


def session(engine: Engine, owner: str = "ann", **header: Any) -> str:
    id: str = engine.call("POST", "/v1/sessions", header, owner=owner)[0]["id"]
    return id


def run(engine: Engine, id: str, seq: int, *commands: Any, wait: bool = True, **tensors: Any) -> Any:
    header = {"seq": seq, "commands": list(commands), "wait": wait}
    return engine.call("POST", f"/v1/sessions/{id}/commands", header, tensors, owner="ann")


def put(id: int) -> dict[str, Any]:
    return {"do": "put", "id": id, "tensor": "x"}


def test_graphs_and_plans_are_bounded(engine: Engine) -> None:
    hashes = []
    for i in range(5):
        graph = symbol(var("x"), ("_copy", f"y{i}", {}, [0]))
        hashes.append(engine.call("PUT", "/v1/graphs", {"graph": graph})[0]["sha256"])
        engine.call("POST", "/v1/forward", {"graph": graph}, {"x": X})
    assert len(engine.graphs) == 3
    with pytest.raises(NotFoundError):
        engine.call("POST", "/v1/infer_shape", {"graph": f"sha256:{hashes[0]}"})
    engine.call("POST", "/v1/infer_shape", {"graph": f"sha256:{hashes[-1]}", "shapes": {"x": [1]}})


def test_what_is_answered_is_the_callers_own(engine: Engine) -> None:
    x = X.copy()
    first = engine.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x})[1]["y_output"]
    x[:] = 7
    second = engine.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x})[1]["y_output"]
    np.testing.assert_array_equal(first, X)
    assert (second == 7).all()
    id = session(engine)
    answered = run(engine, id, 1, put(1), {"do": "fetch", "id": 1, "as": "y"}, x=x)[1]["y"]
    x[:] = 8
    answered[:] = 9
    assert (run(engine, id, 2, {"do": "fetch", "id": 1, "as": "y"})[1]["y"] == 7).all()


def test_calls_that_want_other_gradients_have_plans_of_their_own(engine: Engine) -> None:
    tensors = {"x": X, "w": W, "b": B, "head_grad:fc_output": np.ones((2, 4), np.float32)}
    expected = {"x": [[4, 4, 4]] * 2, "w": [[3, 5, 7]] * 4, "b": [2] * 4}
    for names in (["x"], ["w"], ["b"], ["x", "b"], ["w", "b"], ["w"], []):
        call = {"graph": FC, "parameters": {"grads": names}}
        answer = engine.call("POST", "/v1/backward", call, tensors)[1]
        gradients = {name: answer[f"grad:{name}"].tolist() for name in names}
        assert set(answer) == {"fc_output", *(f"grad:{name}" for name in names)}
        assert gradients == {name: expected[name] for name in names}


def test_gradients_are_those_of_the_mode_of_the_call(engine: Engine) -> None:
    """By the moving statistics a batch normalisation only scales."""
    x, gamma = np.float32([[1], [2], [6]]), np.ones(1, np.float32)
    tensors = {"data": x, "norm_gamma": gamma, "norm_beta": gamma, "norm_moving_mean": gamma, "norm_moving_var": gamma}
    graph = json.loads(mx.sym.BatchNorm(mx.sym.Variable("data"), eps=0.002, name="norm").tojson())
    gradients = {}
    for is_train in (False, True):
        call = {"graph": graph, "parameters": {"grads": ["data"], "is_train": is_train}}
        answer = engine.call("POST", "/v1/backward", call, tensors | {"head_grad:norm_output": np.ones_like(x)})[1]
        gradients[is_train] = answer["grad:data"]
    np.testing.assert_allclose(gradients[False], np.full_like(x, 1 / np.sqrt(1.002)), rtol=1e-6)
    np.testing.assert_allclose(gradients[True], np.zeros_like(x), atol=1e-6)


def test_a_waiting_batch_keeps_its_own_tensors(engine: Engine) -> None:
    id = session(engine)
    x = X.copy()
    assert run(engine, id, 2, put(1), wait=False, x=x)[0] == {"accepted": 2}
    x[:] = -1
    run(engine, id, 1)
    np.testing.assert_array_equal(run(engine, id, 3, {"do": "fetch", "id": 1, "as": "y"})[1]["y"], X)


def test_many_threads_share_a_session_in_order(engine: Engine) -> None:
    id = session(engine)
    run(engine, id, 1, put(1), x=np.zeros(3, np.float32))
    add = {"do": "invoke", "op": "_plus_scalar", "attrs": {"scalar": 1}, "inputs": [1], "outputs": [1], "into": True}
    values: dict[int, float] = {}

    def work(seqs: list[int]) -> None:
        for seq in seqs:
            answer = run(engine, id, seq, add, {"do": "fetch", "id": 1, "as": "y"})
            values[seq] = float(answer[1]["y"][0])

    threads = [threading.Thread(target=work, args=(list(range(2 + i, 102, 4)),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {seq: float(seq - 1) for seq in range(2, 102)}


def test_batches_behind_one_that_never_comes_are_given_up(engine: Engine) -> None:
    id = session(engine)
    late: list[Answer | BaseException] = []
    header = {"seq": 3, "commands": [put(1)]}
    call = engine.read("POST", f"/v1/sessions/{id}/commands", header, {"x": X}, owner="ann")
    rest = engine.begin(call, late.append)
    assert rest is not None
    rest()
    until = time.monotonic() + 5
    while not late:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert isinstance(late[0], DeadlineError)
    assert "batch 1 did not come" in late[0].message
    assert run(engine, id, 4, put(1), x=X)[0] == {"results": []}


def test_a_session_that_ends_lets_go_of_everything(engine: Engine) -> None:
    id = session(engine)
    bind = {"do": "bind", "id": 9, "graph": FC, "args": {"x": 1, "w": 2, "b": 3}, "outputs": [8]}
    puts = [{"do": "put", "id": i, "tensor": name} for i, name in ((1, "x"), (2, "w"), (3, "b"))]
    run(engine, id, 1, *puts, bind, {"do": "forward", "executor": 9}, x=X, w=W, b=B)
    owned = engine.sessions.get("ann", id)
    refs = [weakref.ref(resource) for resource in (owned.table.array(1), owned.table.array(8), owned.table.executor(9))]
    assert owned.budget.used > 0
    engine.call("DELETE", f"/v1/sessions/{id}", owner="ann")
    assert owned.budget.used == 0
    del owned
    gc.collect()
    assert [ref() for ref in refs] == [None, None, None]
    with pytest.raises(GoneError, match="was deleted"):
        engine.call("GET", f"/v1/sessions/{id}", owner="ann")
    with pytest.raises(NotFoundError):
        engine.call("GET", f"/v1/sessions/{id}", owner="bob")


def test_sessions_that_come_and_go_do_not_hold_up_the_others(engine: Engine) -> None:
    """A whole collection keeps the interpreter's lock: one a second at the most, unless there is much to return."""
    whole: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            whole.append(info["collected"])

    gc.callbacks.append(note)
    begun = time.monotonic()
    try:
        for _ in range(100):
            engine.call("DELETE", f"/v1/sessions/{session(engine)}", owner="ann")
        assert len(whole) <= 3 + time.monotonic() - begun
        count = len(whole)
        while len(whole) == count:  # what the last one had is returned all the same
            assert time.monotonic() < begun + 30
            time.sleep(0.05)
    finally:
        gc.callbacks.remove(note)


def test_much_memory_is_returned_at_once() -> None:
    large = Engine(Settings(max_session_bytes=1 << 28))
    whole: list[str] = []
    zeros = {"do": "zeros", "ids": [1], "shape": [100, 1 << 20], "dtype": "int8"}
    try:
        for _ in range(2):  # the first that ends has its memory returned in any case
            id = session(large)
            large.call("POST", f"/v1/sessions/{id}/commands", {"seq": 1, "commands": [zeros]}, owner="ann")
            whole.clear()
            gc.callbacks.append(lambda phase, info: whole.append(phase))
            large.call("DELETE", f"/v1/sessions/{id}", owner="ann")
            gc.callbacks.pop()
            assert "stop" in whole
    finally:
        large.close()


def test_memory_is_counted_once_and_given_back(engine: Engine) -> None:
    id = session(engine)
    big = np.zeros(100_000, np.float32)
    run(engine, id, 1, put(1), {"do": "view", "id": 2, "of": 1, "begin": 0, "end": 5}, x=big)
    used = engine.sessions.get("ann", id).budget
    assert used.used == big.nbytes
    run(engine, id, 2, {"do": "free", "ids": [1]})
    assert used.used == big.nbytes, "the view still holds it"
    run(engine, id, 3, {"do": "free", "ids": [2]})
    assert used.used == 0
    with pytest.raises(QuotaError, match="at most 1048576 bytes"):
        run(engine, id, 4, put(1), put(2), put(3), x=big)
    assert used.used == 2 * big.nbytes


def test_an_embedded_engine_raises_what_a_server_answers() -> None:
    transport = EmbeddedTransport()
    assert transport.call("GET", "/v2").header["name"] == "opbox"
    assert transport.call("GET", "/v2/health/live").header["live"] is True
    id = transport.call("POST", "/v1/sessions", {}).header["id"]
    transport.call("DELETE", f"/v1/sessions/{id}")
    with pytest.raises(GoneError) as caught:
        transport.call("GET", f"/v1/sessions/{id}")
    assert caught.value.status == 410
    with pytest.raises(MXNetError, match="fc"):
        transport.call("POST", "/v1/forward", {"graph": FC}, {"x": X, "w": W[:, :2], "b": B})


def test_where_the_engine_raised_an_error_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = EmbeddedTransport()
    for debug in (False, True):
        monkeypatch.setenv("OPBOX_DEBUG", "1" if debug else "")
        with pytest.raises(NotFoundError) as caught:
            transport.call("POST", "/v1/sessions/none/commands", {"commands": []})
        assert (caught.value.__cause__ is not None) is debug


def test_a_closed_engine_takes_no_calls() -> None:
    engine = Engine(Settings())
    engine.close()
    with pytest.raises(MXNetError, match="stopping"):
        engine.call("GET", "/v1/ops")


def test_an_error_of_ours_tells_nothing_of_us(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    status, body = error_to_json(RuntimeError("/secret/path"))
    assert status == 500
    assert "secret" not in str(body)
    assert error_to_json(MemoryError())[0] == 507


def test_of_very_many_errors_the_first_is_told() -> None:
    engine = Engine(Settings())
    wrong = {f"x{i}": "y" if i >= 300 else [2] for i in range(20_000)}
    with pytest.raises(BadRequestError, match=r"shapes.x300: expected a list of integers or null"):
        engine.call("POST", "/v1/infer_shape", {"graph": {}, "shapes": wrong})
    fields = {f"x{i}": 1 for i in range(20_000)}
    with pytest.raises(BadRequestError, match=r"unknown field 'x0'"):
        engine.call("POST", "/v1/infer_shape", {"graph": {}, **fields})
    session = engine.call("POST", "/v1/sessions")[0]["id"]
    commands = [{"do": "free", "ids": [1]}] * 100 + [{"do": "free", "ids": ["x"] * 5000}] * 100
    with pytest.raises(BadRequestError, match=r"command 100 \(free\): ids.0: expected an integer"):
        engine.call("POST", f"/v1/sessions/{session}/commands", {"commands": commands})
    engine.close()


def test_a_session_too_many_is_told_what_its_owner_can_do() -> None:
    engine = Engine(Settings.embedded().model_copy(update={"max_sessions": 1}))
    id = engine.call("POST", "/v1/sessions", {})[0]["id"]
    with pytest.raises(
        QuotaError, match=r"^sessions: expected at most 1 of an owner, got one more: end one of yours \("
    ):
        engine.call("POST", "/v1/sessions", {})
    # What the sentence names works.
    assert [session["id"] for session in engine.call("GET", "/v1/sessions")[0]["sessions"]] == [id]
    engine.call("DELETE", f"/v1/sessions/{id}")
    engine.call("POST", "/v1/sessions", {})
    engine.close()


@pytest.mark.parametrize(
    ("seq", "commands"),
    [
        (2, []),  # its turn has not come
        (1, [{"do": "free"}]),  # it is to be refused
        (1, "free"),
        (1, [{"do": "free", "ids": []}] * (Settings().max_commands + 1)),
        (1, [{"do": "define", "kind": "Custom", "op_type": "a", "sha256": "0" * 64, "bundle": {}}]),  # brings code
    ],
)
def test_what_is_not_for_now_is_not_run_at_once(engine: Engine, seq: int, commands: Any) -> None:
    id = session(engine)
    one = engine.sessions.get("ann", id)
    assert not one.run_at_once(seq, commands, {}, lambda answer: pytest.fail("answered"))
    answer = one.json()
    assert (answer["next_seq"], answer["waiting"]) == (1, 0)


def test_a_batch_that_is_run_at_once_makes_way_for_those_behind_it(engine: Engine) -> None:
    id = session(engine)
    one = engine.sessions.get("ann", id)
    answers: list[Any] = []
    assert one.run_at_once(1, [], {}, lambda answer: one.submit(2, [], {}, answers.append))
    assert len(answers) == 1
    with pytest.raises(MXNetError, match="seq: expected 3, got 1"):
        run(engine, id, 1)
    assert one.json()["next_seq"] == 3
