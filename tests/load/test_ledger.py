"""All that a call takes is somebody's, admitted before it is there: idle plans, JSON, answers, waiting batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from opbox_protocol.errors import QuotaError, UnsupportedError
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.codec import limits_of, serve
from opbox_service.engine import Engine
from opbox_service.json_text import parsed_bytes
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from tests.contract.live import IDENTITY, Live, symbol, var

MIB = 1 << 20
X = np.ones(4 * MIB, np.float32)
"""16 MiB, as are the plan's input and its output."""
GREEDY = symbol(var("x"), ("_test_greedy", "y", {}, [0]))


@pytest.fixture
def engine() -> Iterator[Engine]:
    fresh = Engine(Settings(isolation="none", max_device_bytes=200 * MIB, max_owner_bytes=150 * MIB))
    yield fresh
    fresh.close()


def forward(engine: Engine, owner: str) -> None:
    engine.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, owner=owner)


def used(engine: Engine, owner: str) -> int:
    return engine.ledger.of(owner, "cpu").used


def test_an_idle_plan_is_its_owners(engine: Engine) -> None:
    forward(engine, "ann")
    nbytes = used(engine, "ann")
    assert 16 * MIB <= nbytes <= 48 * MIB
    for _ in range(3):
        forward(engine, "bob")
        assert (used(engine, "ann"), used(engine, "bob")) == (nbytes, nbytes)
    forward(engine, "ann")
    assert (used(engine, "ann"), used(engine, "bob")) == (nbytes, nbytes)
    engine.runner.close()
    for owner in ("ann", "bob"):
        assert used(engine, owner) == 0
        assert engine.ledger.of(owner, "cpu").idle == 0


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_an_idle_plan_goes_when_somebody_needs_its_memory(engine: Engine, owner: str) -> None:
    forward(engine, "ann")
    session = engine.sessions.create(owner)
    other = engine.sessions.create("carl")
    other.budget.take(50 * MIB)
    assert session.budget.available == 150 * MIB
    session.budget.take(150 * MIB)
    assert used(engine, "ann") == (150 * MIB if owner == "ann" else 0)
    with pytest.raises(QuotaError):
        forward(engine, "bob")
    session.budget.give(100 * MIB)
    forward(engine, "bob")


def test_a_call_that_fails_leaves_nothing(engine: Engine) -> None:
    engine.runner.close()
    with pytest.raises(QuotaError, match="memory"):
        engine.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": np.ones(45 * MIB, np.float32)}, owner="ann")
    assert used(engine, "ann") == 0


def test_a_device_has_one_quota_whatever_it_is_called(engine: Engine) -> None:
    zeros = {"do": "zeros", "ids": [1], "shape": [100, MIB], "dtype": "int8"}
    for number, name in enumerate(("cpu", "cpu:0", "cpu:1", "cpu:00")):
        session = engine.sessions.create("ann", device=name)
        assert session.device == "cpu"
        path = f"/v1/sessions/{session.id}/commands"
        if number:
            with pytest.raises(QuotaError, match="memory of all your sessions"):
                engine.call("POST", path, {"seq": 1, "commands": [zeros]}, owner="ann")
        else:
            engine.call("POST", path, {"seq": 1, "commands": [zeros]}, owner="ann")
    call = {"graph": IDENTITY, "parameters": {"device": "cpu:123"}}
    engine.call("POST", "/v1/forward", call, {"x": X[:4]}, owner="bob")
    assert {device for _, device in engine.device_times.sums()} == {"cpu"}
    assert engine.ledger.devices == ["cpu"]


@pytest.mark.parametrize("name", ["cpu:x", "cpu:", "tpu", "", "cpu:-1", "gpu:1e3", "CPU", "cpu:0 ", "cpu:" + "9" * 50])
def test_a_device_that_is_none_is_refused_in_a_sentence(engine: Engine, name: str) -> None:
    with pytest.raises(UnsupportedError, match="expected 'cpu', 'gpu' or one with a number"):
        engine.call("POST", "/v1/sessions", {"device": name}, owner="ann")
    call = {"graph": IDENTITY, "parameters": {"device": name}}
    with pytest.raises(UnsupportedError, match="expected 'cpu', 'gpu' or one with a number"):
        engine.call("POST", "/v1/forward", call, {"x": X[:4]}, owner="ann")


def post(engine: Engine, path: str, text: bytes) -> int:
    route, parameters = ROUTES.match("POST", path)
    answers: list[RawResponse] = []
    request = RawRequest(route, parameters, path, "ann", frozenset({"run"}), "id", text)
    rest = serve(engine, request, limits_of(engine.settings), answers.append)
    if rest is not None:
        rest()
    return answers[0].status


def test_json_is_admitted_before_it_is_read(engine: Engine) -> None:
    text = json.dumps({"graph": IDENTITY, "shapes": {f"x{i}": [1] for i in range(100_000)}}).encode()
    nbytes = parsed_bytes(len(text), engine.settings.max_json_values, engine.settings.max_json_keys)
    assert len(text) * 2 < nbytes < 150 * MIB
    assert post(engine, "/v1/infer_shape", text) == 400  # arguments that the graph has not
    assert used(engine, "ann") == 0
    budget = engine.ledger.of("ann", "cpu")
    budget.take(150 * MIB - nbytes + 1)
    assert post(engine, "/v1/infer_shape", text) == 429
    assert used(engine, "ann") == 150 * MIB - nbytes + 1


def test_the_commands_of_a_waiting_batch_are_counted(engine: Engine) -> None:
    session = engine.sessions.create("ann")
    commands = [{"do": "seed", "seed": i} for i in range(5000)]
    text = json.dumps({"seq": 2, "wait": False, "commands": commands}).encode()
    assert post(engine, f"/v1/sessions/{session.id}/commands", text) == 202
    assert session.budget.used > len(text)
    assert post(engine, f"/v1/sessions/{session.id}/commands", b'{"seq": 1, "commands": []}') == 200
    assert (session.budget.used, used(engine, "ann")) == (0, 0)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_an_answer_is_its_owner_s_until_it_has_been_read(start: Callable[..., Live], isolation: str) -> None:
    limits = {"OPBOX_MAX_OWNER_BYTES": str(64 * MIB), "OPBOX_MAX_DEVICE_BYTES": str(200 * MIB)}
    server = start(isolation, **limits)
    session = server.session()
    make = {"do": "invoke", "op": "_zeros", "attrs": {"shape": [10 * MIB // 4]}, "outputs": [1]}
    assert session.run(make).status == 200
    read = {"do": "fetch", "id": 1, "as": "x"}
    assert [session.run(read).status for _ in range(8)] == [200] * 8
    assert session.run({**make, "attrs": {"shape": [40 * MIB // 4]}, "outputs": [2]}).status == 200
    refused = session.run({"do": "fetch", "id": 2, "as": "x"})
    assert (refused.status, "memory of all your sessions" in refused.error) == (429, True)
    assert session.run(read).status == 200
    if isolation == "none":
        return
    before = server.workers()
    denied = server.call("POST", "/v1/forward", {"graph": GREEDY}, {"x": X[:4]})
    assert (denied.status, denied.header["type"]) == (507, "OutOfMemoryError")
    assert server.workers() == before
    assert session.run(read).status == 200
