"""Owners' weights are shares of the processors, whichever processes work for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from opbox_service.worker.processor_shares import ProcessorShares, steps_of
from tests.contract.live import IDENTITY, SCOPES, TOKENS, Live, Session
from tests.contract.test_workers import wait_for

X = np.ones(4, np.float32)


@dataclass(eq=False)
class Process:
    """A worker process that is none."""

    pid: int = field(default_factory=os.getpid)
    user: int = 0
    busy: bool = False


def niceness(pid: int) -> set[int]:
    """Of all threads of a process, beyond this one's."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) - own for thread in os.listdir(f"/proc/{pid}/task")}


def weighed(**weights: float) -> str:
    """Tokens of owners with these weights."""
    owners = {**dict.fromkeys(("ann", "bob", "py"), 1.0), **weights}
    tokens = [
        {"name": name, "token": TOKENS[name], "scopes": SCOPES[name], "weight": weight}
        for name, weight in owners.items()
    ]
    return json.dumps([*tokens, {"name": "monitor", "token": TOKENS["monitor"], "scopes": ["metrics"]}])


def test_an_owner_s_weight_is_parted_among_the_processes_that_work_for_it() -> None:
    shares, processes = ProcessorShares(reversible=True), [Process() for _ in range(4)]
    shared, alone, *_ = processes
    for owner in ("ann", "bob"):
        shares.use(shared, owner, 1.0)
    for process in processes[1:]:
        shares.use(process, "carl", 1.0)
    weights = shares.weights()
    assert weights[shared] == 2
    assert [weights[process] for process in processes[1:]] == [1 / 3] * 3
    assert steps_of(weights) == {shared: 0, **dict.fromkeys(processes[1:], 8)}, "1.25 ** 8 is about 6"
    shares.use(alone, "carl", 3.0)
    assert shares.weights()[alone] == 1
    shares.share([alone])  # the others have ended
    assert shares.weights() == {alone: 3}


def test_weights_alone_count_where_nothing_can_be_taken_back() -> None:
    shares, processes = ProcessorShares(reversible=False), [Process() for _ in range(3)]
    for process in processes:
        shares.use(process, "ann", 2.0)
    shares.use(processes[0], "bob", 5.0)
    assert [shares.weights()[process] for process in processes] == [5, 2, 2]


def test_of_owners_with_a_worker_each(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_WORKERS="auto", OPBOX_TOKENS=weighed(ann=4))
    (shared,) = server.workers()
    sessions = {name: server.session(name) for name in ("bob", "ann")}
    bobs, anns = (pid for pid in server.workers() if pid != shared)

    def call(*names: str) -> None:
        for name in names:
            assert sessions[name].run({"do": "seed", "seed": 1}).status == 200

    wait_for(lambda: call("ann", "bob") or niceness(bobs) == {6}, 30)  # 1.25 ** 6 is about 4
    assert niceness(anns) == niceness(shared) == {0}
    if os.geteuid() == 0:
        wait_for(lambda: call("bob") or niceness(bobs) == {0}, 30)


@pytest.mark.skipif(os.geteuid() != 0, reason="what one uses at the moment counts where niceness can be taken back")
def test_of_sessions_that_bring_code_and_of_a_worker_that_owners_share(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_TOKENS=weighed(ann=4, py=1), OPBOX_CODE_SPARES="0")
    (shared,) = server.workers()
    sessions = [server.session("py", code=True) for _ in range(2)]
    codes = server.code_workers()

    def call(sessions: list[Session], *, also: bool = True) -> None:
        for session in sessions:
            assert session.run({"do": "seed", "seed": 1}).status == 200
        if also:
            assert server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}).status == 200

    def nice() -> list[set[int]]:
        return [niceness(pid) for pid in codes]

    wait_for(lambda: call(sessions) or nice() == [{9}, {9}], 30)  # 1.25 ** 9 is about 8
    assert niceness(shared) == {0}
    # bob's weight comes on top of ann's where both use one process.
    wait_for(lambda: call(sessions) or (server.session("bob").delete() and nice() == [{10}, {10}]), 30)
    assert sessions[1].delete().status == 200
    del codes[1]
    wait_for(lambda: call(sessions[:1]) or nice() == [{6}], 30)
    wait_for(lambda: call(sessions[:1], also=False) or nice() == [{0}], 30)  # nobody else wants anything
