"""Rolling restarts under a flood: server after server behind one port, and the owners' file read again and again."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opbox.http import HttpTransport
from tests.contract.live import IDENTITY, SCOPES, TOKENS, Live
from tests.contract.test_access import wait_for
from tests.contract.test_restart import TOKEN, Callers, Servers, activated, sharing

__all__ = ["activated", "sharing"]

X = np.arange(6, dtype=np.float32)
CALLERS = 12
RESTARTS = 3


def roll(servers: Servers, *options: str, **how: str) -> None:
    """RESTARTS servers, one in the place of the other, while CALLERS call without a pause; each counts its answers."""
    running = servers.start(*options, **how)
    clients = [HttpTransport(servers.url, TOKEN) for _ in range(CALLERS)]
    answers = [0] * CALLERS

    def call(number: int) -> None:
        for _ in range(20):
            x = X + answers[number]
            reply = clients[number].call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x})
            np.testing.assert_array_equal(reply.tensors["y_output"], x)
            answers[number] += 1

    callers = Callers(call, CALLERS)
    for _ in range(RESTARTS):
        count = sum(answers)
        wait_for(lambda: sum(answers) > count + 10 * CALLERS or callers.errors)  # noqa: B023
        following = servers.start(*options, **how)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
        running = following
    count = sum(answers)
    wait_for(lambda: sum(answers) > count + 10 * CALLERS or callers.errors)
    callers.stop()
    for client in clients:
        client.close()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_no_call_is_dropped_behind_a_passed_socket(activated: Servers, isolation: str) -> None:
    roll(activated, isolation=isolation)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_no_call_is_dropped_on_a_shared_port(sharing: Servers, isolation: str) -> None:
    roll(sharing, "--reuse-port", isolation=isolation)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_owners_are_read_again_under_load(start: Callable[..., Live], tmp_path: Path, isolation: str) -> None:
    """Every write of the file is taken in; wrong ones change nothing; no call of the flood fails."""
    file = tmp_path / "tokens.json"
    tokens = [{"name": name, "token": token, "scopes": SCOPES[name]} for name, token in TOKENS.items()]

    def write(text: str) -> None:
        draft = file.with_suffix(".new")
        draft.write_text(text)
        draft.replace(file)

    def terms(sessions: int) -> str:
        return json.dumps({"tokens": tokens, "owners": {"ann": {"sessions": sessions, "weight": 2}}})

    write(terms(1))
    server = start(isolation, OPBOX_TOKENS="", OPBOX_TOKENS_FILE=str(file))
    ended, errors, counts = threading.Event(), [], [0] * 8

    def flood(number: int) -> None:
        while not ended.is_set():
            owner = ("ann", "bob")[number % 2]
            answer = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, owner=owner)
            if answer.status != 200:
                errors.append(answer.header)
                return
            counts[number] += 1

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        for sessions in (2, 3, 4):
            write(terms(sessions))
            wait_for(lambda: server.json("GET", "/v1/usage").header["quotas"]["sessions"] == sessions)  # noqa: B023
            write('{"tokens": [')
            time.sleep(1.5)  # more than the file is looked at
            assert server.json("GET", "/v1/usage").header["quotas"]["sessions"] == sessions
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not errors, errors[:3]
    assert all(counts)
