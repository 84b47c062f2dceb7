"""Other users' calls take turns on one worker: a small one does not wait for somebody else's queue."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from tests.contract.live import IDENTITY, TOKENS, Live, symbol, var

X = np.ones(16, np.float32)
LONG = symbol(var("x"), *(("_test_slow", f"y{i}", {"seconds": "0.05"}, [i]) for i in range(40)))
"""Two seconds, in steps of 50 ms."""


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_small_call_goes_before_another_s_queue(start: Callable[..., Live], isolation: str) -> None:
    server = start(isolation, OPBOX_THREADS="1")
    session = server.session("ann")
    ended: list[str] = []

    def call(owner: str, graph: object, **headers: str) -> None:
        answer = server.call("POST", "/v1/forward", {"graph": graph}, {"x": X}, owner=owner, **headers)
        assert answer.status == 200, answer.header
        ended.append(owner + headers.get("Priority", ""))

    call("bob", IDENTITY)
    ended.clear()
    flood = [threading.Thread(target=call, args=("ann", LONG), kwargs={"Priority": "u=6"}) for _ in range(4)]
    for thread in flood:
        thread.start()
    time.sleep(0.7)
    state = server.json("GET", session.path).header
    assert state["calls_before"] >= 1
    accepted = session.run({"do": "seed", "seed": 1}, wait=False)
    assert accepted.status == 202
    assert float(accepted.http["opbox-wait"]) >= 0
    assert int(accepted.http["opbox-calls-before"]) >= 0
    call("bob", IDENTITY)
    call("ann", IDENTITY)
    for thread in flood:
        thread.join(60)
    assert ended == ["bob", "ann", *["annu=6"] * 4]
    assert server.json("GET", session.path).header["calls_before"] == 0


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_who_is_refused_by_a_full_queue_is_told_place_and_wait(start: Callable[..., Live], isolation: str) -> None:
    server = start(isolation, OPBOX_MAX_WAITING="2")
    session = server.session()
    seed = {"do": "seed", "seed": 1}
    session.seq = 1  # the first batch does not come: those behind it wait
    answers = [session.run(seed, wait=False) for _ in range(3)]
    assert [answer.status for answer in answers] == [202, 202, 429]
    for answer in answers:
        assert int(answer.http["opbox-calls-before"]) >= 0
        assert float(answer.http["opbox-wait"]) >= 0
    assert int(answers[-1].http["retry-after"]) >= 1
    assert server.json("GET", session.path).header["waiting"] == 2


def test_a_token_s_weight_is_its_share(start: Callable[..., Live]) -> None:
    tokens = [
        {"name": name, "token": TOKENS[name], "scopes": ["run"], "weight": weight}
        for name, weight in (("ann", 4), ("bob", 1))
    ]
    server = start("process", OPBOX_THREADS="1", OPBOX_TOKENS=json.dumps(tokens))
    stop = time.monotonic() + 6
    served = dict.fromkeys(("ann", "bob"), 0)
    graph = symbol(var("x"), *(("_test_slow", f"y{i}", {"seconds": "0.01"}, [i]) for i in range(4)))

    def flood(owner: str) -> None:
        while time.monotonic() < stop:
            assert server.call("POST", "/v1/forward", {"graph": graph}, {"x": X}, owner=owner).status == 200
            served[owner] += 1

    threads = [threading.Thread(target=flood, args=(owner,)) for owner in served for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert served["ann"] > 1.8 * served["bob"], served
