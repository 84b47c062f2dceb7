"""Forged checkpoints: an answer of one sentence, or a session in which no command fails by the server's own fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import MXNetError, error_to_json
from opbox_service.accounting.accounts import Accounts
from opbox_service.checkpoint_store import FileCheckpoints
from opbox_service.engine import Engine
from opbox_service.settings import Settings
from tests.contract.live import symbol, var
from tests.forged_checkpoints import FURTHER, forged, forgeries, parts_of
from tests.fuzzing import FUZZ

OWNER = "ann"
NET = symbol(var("x"), var("w"), ("Dropout", "d", {"p": "0.5"}, [0]), ("elemwise_mul", "y", {}, [2, 1]))
BIND = {"do": "bind", "id": 10, "graph": NET, "args": {"x": 1, "w": 2}, "grads": {"w": 3}, "outputs": [4]}
BEGIN: list[dict[str, Any]] = [
    {"do": "put", "id": 1, "tensor": "x"},
    {"do": "put", "id": 2, "tensor": "w"},
    {"do": "zeros", "ids": [3], "shape": [2, 4], "dtype": "float32"},
    BIND,
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "checkpoint", "name": "right", "arrays": {"x": 1, "w": 2}, "executors": [10], "position": {"epoch": 1}},
]
TENSORS = {name: np.arange(8, dtype=np.float32).reshape(2, 4) for name in "xw"}
CHECKED = 300
"""Forgeries in a run of the tests, of about 2,600: a second."""


class Server:
    """An engine with a server's limits, and its state directory."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(state_dir=folder, max_rank=8, max_session_bytes=8 << 20, max_nodes=100)
        self.engine = Engine(settings)
        self.store = FileCheckpoints(settings, Accounts(settings))
        self.session, self.seq = "", 0
        self.open()
        self.run(*BEGIN)
        self.right = bytes(self.store.load(OWNER, "right"))

    def open(self) -> None:
        """Make a new session in the place of the last."""
        if self.session:
            self.engine.call("DELETE", f"/v1/sessions/{self.session}", owner=OWNER)
        opened, _ = self.engine.call("POST", "/v1/sessions", {"code": False}, owner=OWNER)
        self.session, self.seq = opened["id"], 0

    def run(self, *commands: Any, tensors: Any = TENSORS) -> dict[str, Any]:
        """The header of a batch's answer; raises what a client would."""
        self.seq += 1
        header = {"seq": self.seq, "commands": [*commands], "wait": True}
        path = f"/v1/sessions/{self.session}/commands"
        return self.engine.call("POST", path, header, tensors, owner=OWNER)[0]

    def status(self, *commands: Any) -> tuple[int, str]:
        """The status of a batch's answer, and its sentence."""
        try:
            self.run(*commands)
        except Exception as error:
            if not isinstance(error, MXNetError):
                return 500, f"{type(error).__name__}: {error}"
            status, body = error_to_json(error)
            return status, body["error"]
        return 200, ""

    def restore(self, data: bytes, name: str = "forged", **arrays: Any) -> tuple[int, str]:
        """The answer to `restore` of a file, in a new session."""
        self.open()
        self.store.save(OWNER, name, [data])
        return self.status({"do": "restore", "name": name, **arrays})

    def used(self) -> tuple[int, int]:
        """Bytes and objects of the session."""
        session = self.engine.sessions.get(OWNER, self.session)
        return session.budget.used, len(session.table)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("state"))
    yield one
    one.engine.close()


def test_no_forgery_is_answered_by_500_and_none_is_half_restored(server: Server) -> None:
    assert server.restore(server.right) == (200, "")
    nothing = _empty(server)
    every = list(forgeries(server.right))
    faults = []
    for label, data in random.Random(FUZZ).sample(every, min(len(every), CHECKED * FUZZ)):
        status, sentence = server.restore(data)
        if status == 200:
            further = [(*server.status(command), command["do"]) for command in FURTHER]
            faults += [f"{label}: {do}: {sentence}" for status, sentence, do in further if status >= 500]
        elif not 400 <= status < 500 or not sentence.startswith("checkpoint 'forged': ") or server.used() != nothing:
            faults.append(f"{label}: {status} {sentence} {server.used()}")
    assert not faults, "\n".join([f"{len(faults)} faults", *faults[:40]])


def changed(server: Server, *place: Any, to: Any) -> bytes:
    """The right file with one value of its header changed."""
    header, payload = parts_of(server.right)
    value: Any = header
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = to
    return forged(header, payload)


def test_the_sentence_says_what_is_wrong(server: Server) -> None:
    place = "an integer from 0 to 2147483648"
    for data, sentence in (
        (server.right[:100], "expected a file that this server wrote, got another"),
        (changed(server, "blank", 0, 1, to=[1] * 64), "arrays: expected at most 8 dimensions, got 64"),
        (changed(server, "blank", 0, 2, to="FP7"), "blank.0.datatype: expected one of BOOL, INT8, "),
        (changed(server, "random", "source", "executors", to=1 << 40), f"random.source.executors: expected {place}, "),
        (changed(server, "random", "executors", to=[]), "random.executors: expected 1, got 0"),
        (changed(server, "ids", "z", to=9), "ids: expected a number for each array and no other, got 'z' on one side"),
        (changed(server, "executors", 0, "graph", to="sha256:x"), "executors.0: graph: expected symbol JSON as an obj"),
        (changed(server, "executors", 0, "args", "q", to=1), "executors.0: 'q' is no argument of the graph"),
        (changed(server, "executors", 0, "hm", to=1), "executors.0: unknown field 'hm': expected id, graph, args"),
        (changed(server, "step", to=-1), "step: expected an integer of 0 or more, got -1"),
    ):
        status, answer = server.restore(data)
        assert (status, answer.startswith(f"checkpoint 'forged': {sentence}")) == (400, True), answer


def test_a_large_header_needs_memory_of_the_session(server: Server) -> None:
    header, payload = parts_of(server.right)
    status, answer = server.restore(forged({**header, "executors": [{"id": 1}] * 100_000}, payload))
    assert (status, answer.startswith("checkpoint 'forged': session memory: expected at most 8388608 bytes")) == (
        429,
        True,
    )


def test_random_numbers_go_on_at_the_last_place(server: Server) -> None:
    source = {"number": (1 << 64) - 1, "executors": 1 << 31, "moves": 1 << 62}
    data = changed(server, "random", to={"source": source, "executors": [[1 << 31, 1 << 62, 1]]})
    assert server.restore(data) == (200, "")
    draw = {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": [3]}, "inputs": [], "outputs": [20]}
    assert server.status({"do": "forward", "executor": 10, "is_train": True}, draw) == (200, "")


def test_a_failed_restore_leaves_the_session_as_it_was(server: Server) -> None:
    """Its random numbers, its profile, and the arrays that it had beside those of the checkpoint."""
    draw = {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": [3]}, "inputs": []}
    drawn = []
    for restores in (False, True):
        server.open()
        assert server.status({"do": "seed", "seed": 5}) == (200, "")
        if restores:
            server.store.save(OWNER, "forged", [changed(server, "executors", 0, "args", "q", to=1)])
            assert server.status({"do": "restore", "name": "forged"})[0] == 400
        server.run({**draw, "outputs": [20]}, {"do": "fetch", "id": 20, "as": "x"})
        drawn.append(np.array(server.engine.sessions.get(OWNER, server.session).table.read(20)).tolist())
    assert drawn[0] == drawn[1]
    large = {"do": "zeros", "ids": [30], "shape": [(8 << 20) // 4 - 10_000], "dtype": "float32"}
    saved = {"do": "zeros", "ids": [31, 32], "shape": [7_500], "dtype": "float32"}
    server.open()
    assert server.status(saved, {"do": "checkpoint", "name": "two", "arrays": {"a": 31, "b": 32}}) == (200, "")
    assert server.status({"do": "free", "ids": [31, 32]}, large) == (200, "")
    before = server.used()
    status, answer = server.status({"do": "restore", "name": "two", "arrays": {"a": 1, "b": 2}})
    assert (status, "session memory" in answer) == (429, True)
    assert server.used() == before


def _empty(server: Server) -> tuple[int, int]:
    server.open()
    return server.used()
