"""A session begins in a worker that others share, and moves to a process of its own when its first code comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection, session_opening
from opbox.http import HttpTransport
from tests.contract import mischief
from tests.contract.isolation import X, definition, server, settings, step
from tests.contract.live import Got, Live, Session, symbol, var

__all__ = ["server"]

NET = symbol(
    var("x"),
    var("w"),
    var("b"),
    ("FullyConnected", "fc", {"num_hidden": "8"}, [0, 1, 2]),
    var("gamma"),
    var("beta"),
    var("mean", __init__='["zero", {}]'),
    var("variance"),
    ("BatchNorm", "norm", {"fix_gamma": "False"}, [3, 4, 5, 6, 7]),
    ("Activation", "act", {"act_type": "tanh"}, [8]),
    ("Dropout", "drop", {"p": "0.5"}, [9]),
    ("sum", "total", {}, [10]),
    heads=[10, 11],
)
ARGS = {"x": 1, "w": 2, "b": 3, "gamma": 4, "beta": 5}
GRADS = {"w": 12, "b": 13, "gamma": 14}
AUX = {"mean": 21, "variance": 22}


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = {"x": (16, 6), "w": (8, 6), "b": (8,), "gamma": (8,), "beta": (8,), "mean": (8,), "variance": (8,)}
    values = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    return values | {f"g{name}": np.zeros(shapes[name], np.float32) for name in GRADS} | {"one": np.ones(1, np.float32)}


def begin(session: Session) -> None:
    """Arrays, some of which share memory, an executor bound to them, and a forward run that backward waits for."""
    values = arrays()
    ids = {**ARGS, **AUX, **{f"g{name}": id for name, id in GRADS.items()}, "one": 30}
    puts = [{"do": "put", "id": id, "tensor": name} for name, id in ids.items()]
    answer = session.run(
        *puts,
        {"do": "bind", "id": 40, "graph": NET, "args": ARGS, "grads": GRADS, "aux": AUX, "outputs": [41, 42]},
        {"do": "view", "id": 50, "of": 2, "begin": 2, "end": 5},
        {"do": "view", "id": 51, "of": 41, "shape": [8, 16]},
        {"do": "free", "ids": [3]},  # the executor still has it
        {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": "(3,)"}, "inputs": [], "outputs": [60]},
        {"do": "dataset", "id": 70, "shape": [9, 6], "dtype": "float32"},
        {"do": "put_rows", "id": 70, "tensor": "w", "begin": 1},
        {"do": "forward", "executor": 40, "is_train": True},
        **values,
    )
    assert answer.status == 200, answer.header


def go_on(session: Session) -> dict[str, np.ndarray]:
    """What is computed of all that."""
    updates = [{"inputs": [ARGS[name], GRADS[name]]} for name in ("w", "gamma")]
    answer = session.run(
        {"do": "backward", "executor": 40, "head_grads": [41, 30]},
        {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.1"}, "calls": updates},
        {"do": "invoke", "op": "_random_normal", "attrs": {"shape": "(5,)"}, "inputs": [], "outputs": [61]},
        {"do": "fetch", "id": 50, "as": "rows of w"},
        {"do": "take_rows", "id": 71, "of": 70, "begin": 1, "end": 9},
        {"do": "fetch", "id": 71, "as": "rows of the dataset"},
        {"do": "fetch", "id": 51, "as": "outputs before"},
        {"do": "forward", "executor": 40, "is_train": True},
        {"do": "fetch", "id": 51, "as": "outputs"},
        *({"do": "fetch", "id": id, "as": f"array {id}"} for id in (1, 2, 4, 12, 13, 14, 21, 22, 41, 42, 60, 61)),
    )
    assert answer.status == 200, answer.header
    assert session.run({"do": "take_rows", "id": 72, "of": 70, "begin": 0, "end": 1}).status == 409  # has not come
    return answer.tensors


def bring_code(session: Session, **further: Any) -> Got:
    """Commands of the session's own operator, with numbers that nothing else has."""
    code, define = definition(mischief.MischiefProp, "mischief")
    attrs = {"op_type": "mischief", "__code__": code, "what": "nothing", "value": ""}
    return session.run(
        {"do": "put", "id": 1001, "tensor": "mine"},
        define,
        {"do": "invoke", "op": "Custom", "attrs": attrs, "inputs": [1001], "outputs": [1002]},
        {"do": "fetch", "id": 1002, "as": "y"},
        mine=X,
        **further,
    )


def state(session: Session) -> Mapping[str, Any]:
    return session.server.call("GET", session.path, owner=session.owner).header


def test_everything_goes_on_bit_for_bit(server: Live) -> None:
    """Between forward and backward; beside a session that has had a process of its own from its beginning."""
    count = server.metric("opbox_code_workers")
    own, moved = server.session("py", code=True), server.session("py")
    answers = []
    for session in (own, moved):
        begin(session)
        before = state(session)
        assert server.metric("opbox_code_workers") == count + 1
        brought = bring_code(session)
        assert brought.status == 200, brought.header
        np.testing.assert_array_equal(brought.tensors["y"], X + 1)
        assert {name: state(session)[name] for name in ("id", "created", "ttl_s", "executors")} == {
            name: before[name] for name in ("id", "created", "ttl_s", "executors")
        }
        answers.append(go_on(session))
    assert server.metric("opbox_code_workers") == count + 2
    for name, value in answers[0].items():
        np.testing.assert_array_equal(answers[1][name], value, err_msg=name)
    assert state(moved)["bytes"] == state(own)["bytes"]
    assert [row["id"] for row in server.call("GET", "/v1/sessions", owner="py").header["sessions"]].count(moved.id) == 1
    for session in (own, moved):
        assert session.delete().status == 200
    assert server.metric("opbox_code_workers") == count


def test_a_session_that_brings_none_takes_no_process(server: Live) -> None:
    count = server.metric("opbox_code_workers")
    session = server.session("py")
    begin(session)
    go_on(session)
    assert server.metric("opbox_code_workers") == count
    assert session.delete().status == 200


def test_batches_keep_their_order(server: Live) -> None:
    """Those that were sent before the code came, those behind it that came first, waited for or not."""
    session = server.session("py")
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200
    path, code = f"{session.path}/commands", step("nothing")[1:]

    def add(seq: int, commands: Any, *, wait: bool = True, **tensors: np.ndarray) -> Got:
        header = {"seq": seq, "commands": commands, "wait": wait}
        return server.call("POST", path, header, tensors, owner="py")

    twice = {"do": "invoke", "op": "elemwise_add", "attrs": {}, "inputs": [1, 1], "outputs": [5]}
    copied = [twice, {"do": "copy", "from": 5, "to": 1}, {"do": "free", "ids": [5]}]
    results: dict[int, Got] = {}

    def waited(seq: int) -> None:
        results[seq] = add(seq, [*copied, {"do": "fetch", "id": 1, "as": "x"}])

    threads = [threading.Thread(target=waited, args=(seq,)) for seq in (6, 8)]
    for thread in threads:
        thread.start()
    assert add(7, [{"do": "put", "id": 70, "tensor": "t"}, *copied], wait=False, t=X + 5).status == 202
    assert add(5, copied, wait=False).status == 202
    assert add(3, code, wait=False).status == 202
    assert add(4, [{"do": "fetch", "id": 2, "as": "y"}][:0], wait=False).status == 202
    assert add(2, copied, wait=False).status == 202
    for thread in threads:
        thread.join(60)
    for seq, factor in ((6, 8), (8, 32)):
        assert results[seq].status == 200, results[seq].header
        np.testing.assert_array_equal(results[seq].tensors["x"], factor * X)
    session.seq = 8
    np.testing.assert_array_equal(session.run({"do": "fetch", "id": 70, "as": "t"}).tensors["t"], X + 5)
    np.testing.assert_array_equal(session.run({"do": "fetch", "id": 2, "as": "y"}).tensors["y"], 2 * X + 1)
    assert session.delete().status == 200


def test_where_no_process_is_to_be_had_the_session_goes_on_without_code(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_SESSIONS="1", OPBOX_CODE_SPARES="0"))
    other, session = server.session("bob", code=True), server.session("py")
    begin(session)
    refused = bring_code(session)
    assert (refused.status, refused.header["type"]) == (429, "QuotaError")
    assert refused.header["detail"] == {"command": 1, "seq": 2}
    assert '{"code": false}' in refused.error
    assert session.run({"do": "describe", "id": 1001}).status == 200, "what stands before the code has run"
    assert session.run({"do": "free", "ids": [1001]}).status == 200
    invoke = {**step("nothing")[2], "inputs": [1], "outputs": [1002]}
    unknown = session.run(invoke)
    assert unknown.status == 404, unknown.header
    assert not server.code_workers() or len(server.code_workers()) == 1
    assert other.delete().status == 200
    brought = bring_code(session)
    assert brought.status == 200, brought.header
    assert set(go_on(session)) > {"outputs"}
    # What nobody waits for is told to who waits next.
    third = server.session("py")
    assert third.run(*step("nothing"), wait=False, x=X).status == 202
    late = third.run({"do": "describe", "id": 1})
    assert (late.status, late.header["detail"]["seq"]) == (429, 1)


def test_the_client_sends_its_code_again_after_a_refusal(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_opening, "will_bring_code", lambda: False)  # other tests' operators are registered
    server = start("process", **settings(OPBOX_CODE_SESSIONS="1", OPBOX_CODE_SPARES="0"))
    other = server.session("bob", code=True)
    connection.use(HttpTransport(server.url, "py-secret-of-22-characters"))
    try:
        before = mx.nd.array(X) * 3

        def mine() -> np.ndarray:
            net = mx.sym.Custom(mx.sym.Variable("data"), op_type="mischief", what="nothing")
            return net.simple_bind(mx.cpu(), data=(6,)).forward(data=mx.nd.array(X))[0].asnumpy()

        with pytest.raises(mx.base.MXNetError, match="expected at most 1 of all owners"):
            mine()
        np.testing.assert_array_equal(before.asnumpy(), 3 * X)
        assert other.delete().status == 200
        np.testing.assert_array_equal(mine(), X + 1)
        np.testing.assert_array_equal((before + 1).asnumpy(), 3 * X + 1)
        assert len(server.call("GET", "/v1/sessions", owner="py").header["sessions"]) == 1
    finally:
        connection.use(None)


def test_arrays_that_have_no_room_there_stay(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_MAX_CODE_BYTES=str(240 << 20), OPBOX_CODE_SPARES="0"))
    session = server.session("py")
    large = np.arange(48 << 20, dtype=np.uint8)
    for id in range(1, 5):
        assert session.run({"do": "put", "id": id, "tensor": "x"}, x=large).status == 200
    refused = bring_code(session)
    assert refused.status in (429, 503, 507), refused.header
    again = session.run({"do": "fetch", "id": 4, "as": "x"})
    np.testing.assert_array_equal(again.tensors["x"], large)
    assert session.run({"do": "free", "ids": [1, 2, 3, 4, 1001]}).status == 200
    assert bring_code(session).status == 200


@pytest.mark.parametrize("isolation", ["process", "auto"])
def test_an_owners_quota_is_not_taken_twice(start: Callable[..., Live], isolation: str) -> None:
    """A session with more than half of what its owner may have."""
    further = {"OPBOX_WORKERS": "auto"} if isolation == "auto" else {}
    server = start("process", **settings(OPBOX_MAX_OWNER_BYTES=str(64 << 20), **further))
    session = server.session("py")
    large = np.ones(40 << 20, np.uint8)
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=large).status == 200
    assert bring_code(session).status == 200
    assert session.run({"do": "put", "id": 2, "tensor": "x"}, x=large[: 20 << 20]).status == 200
    assert session.run({"do": "put", "id": 3, "tensor": "x"}, x=large).status == 429
    assert session.delete().status == 200
    fresh = server.session("py")
    assert fresh.run({"do": "put", "id": 1, "tensor": "x"}, x=large).status == 200


def test_calls_meanwhile_go_where_the_session_is(server: Live) -> None:
    """Bodies in shared buffers, small ones, and calls about the session, from several threads while it moves."""
    session = server.session("py")
    large = np.arange(1 << 20, dtype=np.float32)
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=large).status == 200
    failures: list[Any] = []
    numbers = iter(range(2, 1000))
    lock = threading.Lock()
    moved = threading.Event()

    def send() -> None:
        for _ in range(12):
            with lock:
                seq = next(numbers)
            commands: list[Any] = [{"do": "write", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 1, "as": "x"}]
            tensors = {"x": large + seq}
            if seq == 20:
                _, define = definition(mischief.DoublerProp, "doubler")
                commands = [define, {"do": "fetch", "id": 1, "as": "x"}]
                tensors = {}
            answer = server.call(
                "POST", f"{session.path}/commands", {"seq": seq, "commands": commands}, tensors, owner="py"
            )
            if answer.status != 200:
                failures.append(answer.header)
            elif seq != 20 and not np.array_equal(answer.tensors["x"], large + seq):
                failures.append(seq)
            if seq == 20:
                moved.set()

    def ask() -> None:
        while not moved.is_set():
            answer = server.call("GET", session.path, owner="py")
            if answer.status != 200:
                failures.append(answer.header)

    threads = [threading.Thread(target=send) for _ in range(4)] + [threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    assert state(session)["next_seq"] == 50
    assert session.delete().status == 200
