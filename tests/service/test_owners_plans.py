"""Compiled plans of calls without a session belong to their owners, who lose no more than they have too much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opbox_service.engine import Engine
from opbox_service.settings import Settings
from opbox_service.stateless.plans import PlanCache
from tests.contract.live import symbol, var


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine_of_test = Engine(Settings(plan_cache=4))
    yield engine_of_test
    engine_of_test.close()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each plan that was compiled."""
    counts: list[int] = []
    compile_plan = PlanCache._compile

    def counting(self: PlanCache, *arguments: Any) -> Any:
        counts.append(1)
        return compile_plan(self, *arguments)

    monkeypatch.setattr(PlanCache, "_compile", counting)
    return counts


def forward(engine: Engine, owner: str, size: int) -> np.ndarray[Any, Any]:
    graph = symbol(var("x"), ("_mul_scalar", "y", {"scalar": "2"}, [0]))
    x = np.ones(size, np.float32)
    return engine.call("POST", "/v1/forward", {"graph": graph}, {"x": x}, owner=owner)[1]["y_output"]


def test_no_plan_of_another_owner_is_used(engine: Engine, compiled: list[int]) -> None:
    for owner in ("ann", "bob", "ann", "bob"):
        assert forward(engine, owner, 3).tolist() == [2, 2, 2]
    assert len(compiled) == 2


def test_the_owner_of_many_plans_leaves_the_others_theirs(engine: Engine, compiled: list[int]) -> None:
    forward(engine, "bob", 1)
    for size in range(1, 9):
        forward(engine, "ann", size)
    assert len(compiled) == 9
    forward(engine, "bob", 1)
    forward(engine, "ann", 8)
    assert len(compiled) == 9
    forward(engine, "ann", 1)
    assert len(compiled) == 10


def test_bytes_are_counted_by_owner(engine: Engine, compiled: list[int]) -> None:
    nbytes = 5 * 4 * 1000  # two of ann's at most: each has 1000 numbers coming in, and as many going out
    engine.runner._plans = PlanCache(64, nbytes)
    forward(engine, "bob", 1)
    for size in (1000, 1001, 1002):
        forward(engine, "ann", size)
    forward(engine, "bob", 1)
    forward(engine, "ann", 1002)
    assert len(compiled) == 4
