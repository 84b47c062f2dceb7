"""Checkpoints over HTTP: saved at once or every so many steps, restored in a new session, within quotas."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import Live, Session, symbol, var
from tests.contract.test_access import wait_for

# y = dropout(x) * w: a state, a gradient, and a random stream.
NET = symbol(var("x"), var("w"), ("Dropout", "d", {"p": "0.5"}, [0]), ("elemwise_mul", "y", {}, [2, 1]))
BIND = {
    "do": "bind",
    "id": 10,
    "graph": NET,
    "args": {"x": 1, "w": 2},
    "grads": {"w": 3},
    "outputs": [4],
}
X = np.linspace(1, 2, 8, dtype=np.float32)
SGD = {"do": "update", "op": "sgd_mom_update", "attrs": {"lr": 0.1, "momentum": 0.9}}
STEP = [
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "backward", "executor": 10, "head_grads": [1]},
    {**SGD, "calls": [{"inputs": [2, 3, 5]}]},
]
ARRAYS = {"x": 1, "w": 2, "momentum": 5}


def begin(server: Live, owner: str = "ann") -> Session:
    """A session with the network bound."""
    session = server.session(owner, seed=3)
    zeros = {"do": "zeros", "ids": [3, 5], "shape": [8], "dtype": "float32"}
    put = [{"do": "put", "id": 1, "tensor": "x"}, {"do": "put", "id": 2, "tensor": "w"}]
    answer = session.run(*put, zeros, BIND, x=X, w=np.ones(8, np.float32))
    assert answer.status == 200, answer.header
    return session


def mark(step: int, *, first: bool = False, every: int = 3, **further: Any) -> dict[str, Any]:
    """The command behind a step."""
    arrays: Mapping[str, Any] = {"arrays": ARRAYS, "executors": [10]} if first else {}
    return {"do": "checkpoint", "name": "run", "every": every, "step": step, **arrays, **further}


def train(session: Session, steps: range) -> None:
    for step in steps:
        answer = session.run(*STEP, mark(step + 1), wait=step % 2 == 0)
        assert answer.status in (200, 202), answer.header


def weights(session: Session) -> list[Any]:
    fetch = [{"do": "fetch", "id": 2, "as": "w"}, {"do": "fetch", "id": 5, "as": "momentum"}]
    answer = session.run(*fetch)
    assert answer.status == 200, answer.header
    return [answer.tensors["w"].tolist(), answer.tensors["momentum"].tolist()]


def restored(server: Live, owner: str = "ann") -> tuple[Session, dict[str, Any]]:
    session = server.session(owner)
    answer = session.run({"do": "restore", "name": "run"})
    assert answer.status == 200, answer.header
    return session, answer.header["results"][0]


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_restored_training_equals_the_uninterrupted_one(
    start: Callable[..., Live], tmp_path: Path, isolation: str
) -> None:
    server = start(isolation, OPBOX_STATE_DIR=str(tmp_path / "state"))
    session = begin(server)
    first = session.run(mark(0, first=True, position={"epoch": 0}))
    assert (first.status, first.header["results"][0]["step"]) == (200, 0)
    train(session, range(8))
    listed = server.call("GET", "/v1/checkpoints").header["checkpoints"]
    assert [row["name"] for row in listed] == ["run"]
    again, report = restored(server)
    assert (report["step"], report["arrays"]) == (6, ARRAYS)
    train(again, range(6, 11))
    train(session, range(8, 11))
    assert weights(again) == weights(session)
    # Another owner has none of that name.
    other = server.session("bob")
    refused = other.run({"do": "restore", "name": "run"})
    assert refused.status == 404
    assert refused.error == "checkpoint 'run': expected one of yours (GET /v1/checkpoints), got an unknown name"
    assert server.call("DELETE", "/v1/checkpoints/run", owner="bob").status == 404
    assert server.call("DELETE", "/v1/checkpoints/run").header == {"deleted": "run"}
    assert server.call("GET", "/v1/checkpoints").header["checkpoints"] == []


def test_a_worker_that_is_killed_and_a_server_that_stops_lose_nothing_saved(
    start: Callable[..., Live], tmp_path: Path
) -> None:
    settings = {"OPBOX_STATE_DIR": str(tmp_path / "state")}
    server = start("process", **settings)
    session = begin(server)
    assert session.run(mark(0, first=True)).status == 200
    train(session, range(5))
    expected = begin(server, "bob")
    assert expected.run(mark(0, first=True, every=1000)).status == 200
    train(expected, range(12))
    reference = weights(expected)
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)
    assert session.run(*STEP).status in (410, 503)
    wait_for(lambda: server.clients["ann"].get("/v2/health/ready").is_success)
    again, report = restored(server)
    assert report["step"] == 3
    train(again, range(3, 7))
    assert server.stop() == 0
    # The last multiple of three is 6; a stop saves the step that the session is at.
    server = start("process", **settings)
    last, report = restored(server)
    assert report["step"] == 7
    train(last, range(7, 12))
    assert weights(last) == reference


def test_what_changed_behind_the_last_mark_is_not_saved_at_a_stop(start: Callable[..., Live], tmp_path: Path) -> None:
    settings = {"OPBOX_STATE_DIR": str(tmp_path / "state")}
    server = start("none", **settings)
    session = begin(server)
    assert session.run(mark(0, first=True)).status == 200
    train(session, range(2))
    assert session.run(*STEP).status == 200  # half of something: no mark behind it
    assert server.stop() == 0
    server = start("none", **settings)
    assert restored(server)[1]["step"] == 0


def test_quotas_and_wrong_commands(start: Callable[..., Live], tmp_path: Path) -> None:
    state = tmp_path / "state"
    limits = {"OPBOX_MAX_CHECKPOINTS": "2", "OPBOX_MAX_CHECKPOINT_BYTES": "20000"}
    server = start("process", OPBOX_STATE_DIR=str(state), **limits)
    session = server.session()
    zeros = {"do": "zeros", "ids": [1], "shape": [10], "dtype": "float32"}
    large = {"do": "zeros", "ids": [2], "shape": [10000], "dtype": "float32"}
    assert session.run(zeros, large).status == 200

    def save(name: str, *ids: int) -> Any:
        return session.run({"do": "checkpoint", "name": name, "arrays": {f"a{id}": id for id in ids}})

    assert save("one", 1).status == 200
    files = sorted(path.stat().st_mtime_ns for path in state.rglob("*.checkpoint"))
    refused = save("one", 2)
    assert (refused.status, "expected at most 20000 bytes" in refused.error) == (507, True)
    assert sorted(path.stat().st_mtime_ns for path in state.rglob("*.checkpoint")) == files
    assert save("two", 1).status == 200
    assert (save("three", 1).status, save("two", 1).status) == (507, 200)
    for command, status, words in (
        ({"name": "../x", "arrays": {}}, 400, "name: expected up to 64 letters"),
        ({"name": "x", "arrays": {"a": 77}}, 404, "array 77: expected one of this session"),
        ({"name": "x", "arrays": {}, "executors": [1]}, 404, "executor 1: expected one bound in"),
        ({"name": "x"}, 400, "arrays: expected the arrays to save, got none yet"),
        ({"name": "x", "arrays": {}, "every": -1}, 400, "every"),
        ({"name": "x", "arrays": {}, "step": -1}, 400, "step"),
        ({"name": "x", "arrays": {}, "position": {"epoch": None}}, 400, "position"),
    ):
        answer = session.run({"do": "checkpoint", **command})
        assert (answer.status, words in answer.error) == (status, True), answer.error
    for command, status, words in (
        ({"name": "one"}, 409, "expected a session without arrays"),
        ({"name": "nothing", "arrays": {}}, 404, "expected one of yours"),
        ({"name": "one", "arrays": {"b": 9}}, 404, "array 'b': expected one of a1"),
        ({"name": "one", "arrays": {"a1": 1}}, 409, "id 1 is taken"),
    ):
        answer = session.run({"do": "restore", **command})
        assert (answer.status, words in answer.error) == (status, True), answer.error
    assert session.run({"do": "restore", "name": "one", "arrays": {"a1": 9}}).status == 200
    # Neither a file that was cut nor one of another make is read.
    for path in state.rglob("one.checkpoint"):
        path.write_bytes(path.read_bytes()[:100])
    answer = session.run({"do": "restore", "name": "one", "arrays": {"a1": 19}})
    assert answer.error == "checkpoint 'one': expected a file that this server wrote, got another"


def test_a_session_with_a_process_of_its_own_saves_too(start: Callable[..., Live], tmp_path: Path) -> None:
    server = start("process", OPBOX_STATE_DIR=str(tmp_path / "state"))
    session = begin(server, "py")
    assert session.run(mark(0, first=True)).status == 200
    train(session, range(4))
    assert session.delete().status == 200
    assert restored(server, "py")[1]["step"] == 3


def test_without_a_directory_there_are_none(server: Live) -> None:
    session = server.session()
    for command in ({"do": "checkpoint", "name": "x", "arrays": {}}, {"do": "restore", "name": "x"}):
        answer = session.run(command)
        assert answer.status == 501
        assert answer.error.endswith(
            "expected a server with a directory for them, got one without: set OPBOX_STATE_DIR, "
            "or OPBOX_STORE_URL in a cluster"
        )
    assert server.call("GET", "/v1/checkpoints").status == 501
