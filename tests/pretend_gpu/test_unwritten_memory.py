"""A GPU's memory comes with what others had in it: no owner sees that, in outputs or in moving sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opbox_service.engine import Engine
from opbox_service.settings import Settings
from tests.contract.live import symbol, var

SIZE = 50_000
SECRET = np.full(SIZE, 3.25, np.float32)
X = np.linspace(1, 2, SIZE, dtype=np.float32)
NET = symbol(var("x"), ("sin", "s", {}, [0]), ("sort", "inner", {}, [1]), ("sort", "y", {}, [2]), heads=[1, 3])


@pytest.fixture
def engine(gpu: Any) -> Iterator[Engine]:
    """An engine in whose device's memory another owner has computed."""
    one = Engine(Settings())
    id = begin(one, "ann", SECRET)
    run(one, id, "ann", {"do": "forward", "executor": 10}, x=SECRET)
    one.call("DELETE", f"/v1/sessions/{id}", owner="ann")
    yield one
    one.close()


def begin(engine: Engine, owner: str, x: np.ndarray) -> str:
    """A session that has bound NET; its outputs are 20 and 21."""
    id: str = engine.call("POST", "/v1/sessions", {"device": "gpu", "code": False}, owner=owner)[0]["id"]
    bind = {"do": "bind", "id": 10, "graph": NET, "args": {"x": 1}, "outputs": [20, 21]}
    run(engine, id, owner, {"do": "put", "id": 1, "tensor": "x"}, bind, x=x)
    return id


def run(engine: Engine, id: str, owner: str, *commands: Any, **tensors: np.ndarray) -> dict[str, np.ndarray]:
    body = {"commands": list(commands), "wait": True}
    return engine.call("POST", f"/v1/sessions/{id}/commands", body, tensors, owner=owner)[1]


def test_no_memory_of_a_session_has_old_values(gpu: Any, engine: Engine) -> None:
    """Neither what can be fetched, nor what goes along when the session moves."""
    id = begin(engine, "bob", X)
    dataset = {"do": "dataset", "id": 30, "shape": [4, SIZE], "dtype": "float32"}
    fetch = [{"do": "fetch", "id": number, "as": str(number)} for number in (20, 21)]
    outputs = run(engine, id, "bob", dataset, *fetch)
    table = engine.sessions.get("bob", id).table
    arena = table.executor(10)._arena
    assert arena.nbytes >= 4 * SIZE
    for array in (*outputs.values(), table.backend.get(table.rows_entry(30).array), table.backend.get(arena)):
        assert not array.any()
