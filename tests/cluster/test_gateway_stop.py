"""A gateway's process that is stopped: what is in flight finishes, within a bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.cluster.gateway_nodes import tokens_setting
from tests.contract.live import TOKENS, Live

HEADERS = {"Authorization": f"Bearer {TOKENS['ann']}"}
Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("none", tmp_path_factory.mktemp("node"), OPBOX_NODE="a")
    yield live
    live.stop()


@pytest.fixture
def start(node: Live) -> Iterator[Start]:
    """Starts a gateway of a process of its own."""
    processes: list[subprocess.Popen[str]] = []

    def start(**settings: str) -> tuple[subprocess.Popen[str], str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
        env |= {"OPBOX_TOKENS": tokens_setting(), "TEST_NODES": f"a={node.url}", **settings}
        command = [
            "opbox_service.cluster.gateway",
            "--port",
            "0",
            "--controller",
            "tests.cluster.known_nodes:controllers",
        ]
        process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env=env)
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("opbox cluster gateway on http://"), line
        return process, line.split()[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def begin(url: str, seconds: float) -> tuple[threading.Thread, list[Any]]:
    """A call in flight that takes so many seconds, and the answer or error that it comes to."""
    path = f"/v1/sessions/{httpx.post(f'{url}/v1/sessions', json={}, headers=HEADERS).json()['id']}/commands"
    zeros = {"do": "invoke", "op": "_zeros", "attrs": {"shape": "(2,)"}, "inputs": [], "outputs": [1]}
    slow = {"do": "invoke", "op": "_test_slow", "attrs": {"seconds": str(seconds)}, "inputs": [1], "outputs": [2]}
    outcome: list[Any] = []

    def call() -> None:
        try:
            body = {"seq": 1, "commands": [zeros, slow]}
            outcome.append(httpx.post(url + path, json=body, headers=HEADERS, timeout=60))
        except httpx.HTTPError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    until = time.monotonic() + 60
    while not httpx.get(f"{url}/v1/cluster", headers=HEADERS).json()["nodes"][0]["in_flight"]:
        assert time.monotonic() < until
    return thread, outcome


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_request_in_flight_finishes(start: Start, first: signal.Signals) -> None:
    process, url = start()
    with httpx.Client() as idle:
        assert idle.get(f"{url}/v2/health/live").status_code == 200  # a connection that is kept open
        thread, outcome = begin(url, 2.0)
        for number in {first, signal.SIGTERM}:  # a terminal's Ctrl-C comes with a SIGTERM
            process.send_signal(number)
        thread.join(60)
        assert outcome[0].status_code == 200, outcome
        assert outcome[0].headers["connection"] == "close"
        assert process.wait(60) == 0
        with pytest.raises(httpx.HTTPError):
            idle.get(f"{url}/v2/health/live")


def test_it_is_not_waited_for_longer_than_the_setting_says(start: Start) -> None:
    process, url = start(OPBOX_STOP_GRACE_S="0.2")
    thread, outcome = begin(url, 5.0)
    process.terminate()
    assert process.wait(60) == 0
    thread.join(60)
    assert isinstance(outcome[0], httpx.HTTPError)


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    process, url = start(OPBOX_STOP_GRACE_S="600")
    thread, outcome = begin(url, 5.0)
    process.terminate()
    until = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < until
        process.terminate()
        time.sleep(0.2)
    assert process.returncode in (0, -signal.SIGTERM)  # one more may come when it listens to none any longer
    thread.join(60)
    assert isinstance(outcome[0], httpx.HTTPError)


def test_a_stream_of_events_does_not_hold_it(start: Start) -> None:
    process, url = start(OPBOX_STOP_GRACE_S="600")
    with httpx.stream("GET", f"{url}/v1/events", headers=HEADERS, timeout=60) as events:
        assert events.status_code == 200
        process.terminate()
        assert process.wait(60) == 0
