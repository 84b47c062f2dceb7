"""Sessions over HTTP: commands, order, batches that nobody waits for, owners, ends."""

from __future__ import annotations

import threading
import time

import numpy as np

from opbox_protocol.symbol_json import content_hash
from tests.contract.live import FC, Got, Live, Session, symbol, var

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
B = np.ones(4, np.float32)


def put(id: int, tensor: str) -> dict:
    return {"do": "put", "id": id, "tensor": tensor}


def fetch(id: int, name: str = "y") -> dict:
    return {"do": "fetch", "id": id, "as": name}


def bound(session: Session) -> None:
    """x 1, w 2, b 3, their gradients 4, 5, 6, an executor 7, its output 8."""
    bind = {
        "do": "bind",
        "id": 7,
        "graph": FC,
        "args": {"x": 1, "w": 2, "b": 3},
        "grads": {"x": 4, "w": 5, "b": 6},
        "grad_req": {"x": "write", "w": "write", "b": "add"},
        "outputs": [8],
    }
    ids = [put(1, "x"), put(2, "w"), put(3, "b"), put(4, "x"), put(5, "w"), put(6, "b")]
    assert session.run(*ids, bind, x=X, w=W, b=B).status == 200


def test_a_training_step_is_one_batch(server: Live) -> None:
    session = server.session(seed=1)
    bound(session)
    heads = np.ones((2, 4), np.float32)
    answer = session.run(
        put(9, "heads"),
        {"do": "forward", "executor": 7, "is_train": True},
        {"do": "backward", "executor": 7, "head_grads": [9]},
        {"do": "update", "op": "sgd_update", "attrs": {"lr": 0.5}, "calls": [{"inputs": [2, 5]}, {"inputs": [3, 6]}]},
        fetch(8, "y"),
        fetch(5, "gw"),
        fetch(6, "gb"),
        fetch(2, "w"),
        {"do": "free", "ids": [9]},
        heads=heads,
    )
    assert answer.status == 200, answer.header
    np.testing.assert_allclose(answer.tensors["y"], X @ W.T + B, rtol=1e-6)
    np.testing.assert_allclose(answer.tensors["gw"], heads.T @ X, rtol=1e-6)
    np.testing.assert_allclose(answer.tensors["gb"], B + 2, rtol=1e-6)
    np.testing.assert_allclose(answer.tensors["w"], W - 0.5 * (heads.T @ X), rtol=1e-6)


def test_imperative_calls_views_and_copies(server: Live) -> None:
    session = server.session()
    answer = session.run(
        put(1, "x"),
        {"do": "invoke", "op": "elemwise_add", "inputs": [1, 1], "outputs": [2]},
        {"do": "view", "id": 3, "of": 2, "begin": 1, "end": 2},
        {"do": "view", "id": 4, "of": 2, "at": 0},
        {"do": "view", "id": 5, "of": 2, "shape": [6]},
        {"do": "copy", "from": 4, "to": 6},
        {"do": "write", "id": 3, "tensor": "row"},
        fetch(2, "sum"),
        fetch(5, "flat"),
        fetch(6, "copied"),
        {"do": "invoke", "op": "elemwise_add", "inputs": [1, 1], "outputs": [2], "into": True},
        fetch(2, "again"),
        {"do": "describe", "id": 4},
        x=X,
        row=np.full((1, 3), 9, np.float64),
    )
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(answer.tensors["sum"], [[0, 2, 4], [9, 9, 9]])
    np.testing.assert_array_equal(answer.tensors["flat"], [0, 2, 4, 9, 9, 9])
    np.testing.assert_array_equal(answer.tensors["copied"], [0, 2, 4])
    np.testing.assert_array_equal(answer.tensors["again"], X * 2)
    assert answer.header["results"] == [{"command": 12, "shape": [3], "datatype": "FP32", "device": "cpu"}]


def test_a_view_outlives_what_it_is_of(server: Live) -> None:
    session = server.session()
    session.run(put(1, "x"), {"do": "view", "id": 2, "of": 1, "at": 1}, {"do": "free", "ids": [1]}, x=X)
    answer = session.run(fetch(2))
    np.testing.assert_array_equal(answer.tensors["y"], X[1])
    assert server.call("GET", session.path).header["bytes"] == X.nbytes
    session.run({"do": "free", "ids": [2]})
    assert server.call("GET", session.path).header["bytes"] == 0


def test_random_streams_repeat_after_seed(server: Live) -> None:
    session = server.session(seed=5)
    draw = {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": "(3,)"}, "inputs": []}
    answer = session.run(
        {**draw, "outputs": [1]},
        {"do": "seed", "seed": 5},
        {**draw, "outputs": [2]},
        {**draw, "outputs": [3]},
        fetch(1, "a"),
        fetch(2, "b"),
        fetch(3, "c"),
    )
    np.testing.assert_array_equal(answer.tensors["a"], answer.tensors["b"])
    assert not np.array_equal(answer.tensors["b"], answer.tensors["c"])


def test_batches_run_in_order_whichever_comes_first(server: Live) -> None:
    session = server.session()
    answers: dict[int, Got] = {}
    add = {"do": "invoke", "op": "elemwise_add", "inputs": [1, 1], "outputs": [1], "into": True}

    def send(seq: int, *commands: dict, **tensors: np.ndarray) -> None:
        header = {"seq": seq, "commands": list(commands)}
        answers[seq] = server.call("POST", f"{session.path}/commands", header, tensors)

    threads = [
        threading.Thread(target=send, args=(3, add, fetch(1))),
        threading.Thread(target=send, args=(2, add)),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert not answers
    send(1, put(1, "x"), x=X)
    for thread in threads:
        thread.join(10)
    assert {answer.status for answer in answers.values()} == {200}
    np.testing.assert_array_equal(answers[3].tensors["y"], X * 4)


def test_a_batch_that_nobody_waits_for_is_answered_at_once_and_runs(server: Live) -> None:
    session = server.session()
    seconds = 6
    slow = symbol(var("x"), ("_test_slow", "y", {"seconds": str(seconds)}, [0]))
    bind = {"do": "bind", "id": 2, "graph": slow, "args": {"x": 1}, "outputs": [3]}
    begun = time.monotonic()
    answer = session.run(put(1, "x"), bind, {"do": "forward", "executor": 2}, wait=False, x=X)
    assert (answer.status, answer.header) == (202, {"accepted": 1})
    assert time.monotonic() - begun < seconds
    np.testing.assert_array_equal(session.run(fetch(3)).tensors["y"], X)


def test_an_error_nobody_waited_for_is_kept_and_what_follows_skipped(server: Live) -> None:
    session = server.session()
    assert session.run(put(1, "x"), x=X).status == 200
    assert session.run({"do": "forward", "executor": 99}, put(2, "x"), wait=False, x=X).status == 202
    assert session.run(put(3, "x"), {"do": "free", "ids": [1]}, wait=False, x=X).status == 202
    answer = session.run(fetch(1))
    assert answer.status == 404
    assert answer.header["detail"] == {"seq": 2, "command": 0}
    for id in (1, 2, 3):
        assert session.run(fetch(id)).status == 404, f"array {id} should not be there"
    assert session.run(put(4, "x"), fetch(4), x=X).status == 200


def test_the_first_error_stops_a_batch_and_what_was_done_stays(server: Live) -> None:
    session = server.session()
    bad = {"do": "invoke", "op": "FullyConnected", "attrs": {"num_hidden": 4}, "inputs": [1, 1, 1], "outputs": [2]}
    answer = session.run(put(1, "x"), bad, put(3, "x"), x=X)
    assert (answer.status, answer.header["detail"]) == (422, {"seq": 1, "command": 1})
    assert answer.header["type"] == "ShapeError"
    assert session.run(fetch(1)).status == 200
    assert session.run(fetch(3)).status == 404


def test_a_malformed_batch_changes_nothing_and_keeps_its_place(server: Live) -> None:
    session = server.session()
    answer = session.run(put(1, "x"), {"do": "putt", "id": 2}, x=X)
    assert (answer.status, answer.header["type"]) == (400, "BadRequestError")
    assert "expected one of put, write" in answer.error
    assert session.run(fetch(1)).status == 404
    again = session.run({"do": "fetch", "id": "one", "as": "y"})
    assert again.error == "command 0 (fetch): id: expected an integer from 0 to 2**63 - 1, got 'one'"
    extra = session.run({"do": "fetch", "id": 1, "as": "y", "colour": 3})
    assert "unknown field 'colour': expected id, as" in extra.error


def test_a_seq_comes_once(server: Live) -> None:
    session = server.session()
    session.run(put(1, "x"), x=X)
    session.seq = 0
    answer = session.run(put(2, "x"), x=X)
    assert (answer.status, answer.header["type"]) == (409, "ConflictError")
    assert session.run(put(2, "x"), fetch(2), x=X).status == 200


def test_ids_are_taken_once_and_freed_for_reuse(server: Live) -> None:
    session = server.session()
    session.run(put(1, "x"), x=X)
    assert session.run(put(1, "x"), x=X).status == 409
    assert session.run({"do": "free", "ids": [1, 77]}, put(1, "x"), x=X).status == 200


def test_sessions_are_their_owners(server: Live) -> None:
    session = server.session("ann")
    mine = server.call("GET", "/v1/sessions", owner="ann").header["sessions"]
    assert session.id in {row["id"] for row in mine}
    assert session.id not in {row["id"] for row in server.call("GET", "/v1/sessions", owner="bob").header["sessions"]}
    for method, path in (("GET", session.path), ("DELETE", session.path), ("POST", f"{session.path}/commands")):
        answer = server.call(method, path, {"commands": []} if method == "POST" else {}, owner="bob")
        assert (answer.status, answer.header["type"]) == (404, "NotFoundError")
        assert "ends when it idles and when the server restarts" in answer.error
    assert session.delete().status == 200
    assert server.call("GET", session.path, owner="ann").status == 410
    assert server.call("GET", session.path, owner="bob").status == 404


def test_a_session_ends_when_it_is_not_used(server: Live) -> None:
    session = server.session(ttl_s=0.3)
    assert session.run(put(1, "x"), x=X).status == 200
    time.sleep(1.6)
    answer = session.run(fetch(1))
    assert (answer.status, answer.header["type"]) == (410, "GoneError")
    assert "expired" in answer.error


def test_quotas_are_checked_before_memory_is_taken(server: Live) -> None:
    session = server.session()
    huge = {"do": "invoke", "op": "_zeros", "attrs": {"shape": "(100000, 100000)"}, "inputs": [], "outputs": [1]}
    answer = session.run(huge)
    assert (answer.status, answer.header["type"]) == (429, "QuotaError")
    assert server.call("GET", session.path).header["bytes"] == 0


def test_an_executor_tells_its_memory(server: Live) -> None:
    session = server.session()
    bound(session)
    memory = session.run({"do": "describe_executor", "id": 7}).header["results"][0]
    assert memory["steps"] >= 2
    assert {"arena_bytes", "naive_bytes"} <= set(memory)
    assert session.run({"do": "free", "ids": [7]}, {"do": "forward", "executor": 7}).status == 404


def test_a_batch_that_needs_a_graph_which_is_not_here_runs_no_command_and_keeps_its_place_free(server: Live) -> None:
    session = server.session()
    key = content_hash(FC)[::-1]  # of no graph
    body = {"seq": 1, "commands": [{"do": "free", "ids": []}], "graphs": [f"sha256:{key}"]}
    for wait in (True, False):
        answer = server.call("POST", f"{session.path}/commands", {**body, "wait": wait})
        assert answer.status == 404
        assert answer.header["detail"]["graph"] == key
        assert "command" not in answer.header["detail"]
    assert server.call("GET", session.path).header["next_seq"] == 1
    assert server.call("POST", f"{session.path}/commands", {**body, "graphs": []}).status == 200


def test_many_arrays_of_zeros_are_one_command(server: Live) -> None:
    session = server.session()
    zeros = {"do": "zeros", "ids": [1, 2], "shape": [2, 3], "dtype": "int32"}
    answer = session.run(zeros, {"do": "invoke", "op": "_ones", "attrs": {"shape": "(2, 3)"}, "outputs": [3]}, fetch(2))
    assert answer.tensors["y"].dtype == np.int32
    assert not answer.tensors["y"].any()
    assert server.call("GET", session.path).header["bytes"] == 3 * 24
    assert session.run({**zeros, "ids": [4, 4]}).status == 409
    assert session.run({**zeros, "ids": [4], "shape": [1 << 40, 1 << 40]}).status in (413, 429)
    assert server.call("GET", session.path).header["objects"] == 3
