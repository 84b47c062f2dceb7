"""A slice of each campaign: no fault by any input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from opbox_service import allocator
from opbox_service.carriers import RawResponse
from opbox_service.task import Task
from tests.fuzz import targets
from tests.fuzz.campaign import GROWTH, inputs, run
from tests.fuzz.targets import TARGETS, Fault, check
from tests.fuzzing import FUZZ

SLICE = {"frames": 400, "json": 400, "graphs": 60, "commands": 40, "checkpoints": 40}
SLICE |= {"code_messages": 40, "operators": 120}
"""Inputs of each campaign: about six seconds."""


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a session collects garbage: in a process with all tests that takes longer than the input."""
    monkeypatch.setattr(allocator, "return_memory", lambda: None)


@pytest.mark.parametrize("target", TARGETS)
def test_a_slice(target: str) -> None:
    outcome = run(target, inputs(target, FUZZ, SLICE[target] * FUZZ))
    assert outcome.count == SLICE[target] * FUZZ
    assert not outcome.faults, "\n".join(
        f"{place}: {sentence} --input {piece.hex()}" for place, (piece, sentence) in outcome.faults.items()
    )
    # The operators' slice, which takes most, takes 30 MB, even without any collection of garbage.
    assert outcome.growth <= GROWTH, f"the process grew by {outcome.growth >> 20} MB"


def test_faults_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(data: bytes) -> None:
        raise KeyError(data[0])

    monkeypatch.setitem(TARGETS, "frames", failing)  # type: ignore[arg-type]  # it takes no input
    with pytest.raises(Fault, match="KeyError"):
        check("frames", b"\x01")
    assert [piece for piece, _ in run("frames", [b"\x01", b"\x02"]).faults.values()] == [b"\x01"]


@pytest.mark.parametrize("looks", [True, False])
def test_a_second_without_a_look_is_noticed(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(engine: Any, request: Any, limits: Any, send: Callable[[RawResponse], None], task: Task) -> None:
        end = time.thread_time() + 1.2
        while time.thread_time() < end:
            if looks:
                task.check()
        send(RawResponse(200, {}, []))

    monkeypatch.setattr(targets, "serve", busy)
    if looks:
        assert targets.call("POST", "/v1/forward", b"", None).status == 200
        return
    with pytest.raises(Fault, match=r"1\.2 s without a look"):
        targets.call("POST", "/v1/forward", b"", None)
