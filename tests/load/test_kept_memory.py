"""What a heavy request took goes back to the system when it has been answered."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from opbox_service.buffers import KEEP_S
from tests.contract.live import IDENTITY, Live
from tests.load.attacks import ATTACKS, Attack, chain
from tests.load.memory import taken

MIB = 1 << 20
LEFT = 24 * MIB
"""What may stay: modules that the attack loads, and pieces of the heap between what stays. Measured: 6 to 13 MiB."""
LOADED_LAST = "/scipy/fft/"
"""In the names of libraries that a worker loads ahead, 27 MiB, in its first second without a call: the last ones."""
PATIENCE_S = KEEP_S + 60
"""Buffers and graphs go after KEEP_S unused."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the limits that it has by default."""
    usual = ["BODY_BYTES", "HEADER_BYTES", "NODES", "RANK", "SESSIONS", "SESSION_BYTES"]
    live = Live("process", tmp_path_factory.mktemp("kept"), **{f"OPBOX_MAX_{name}": "" for name in usual})
    yield live
    assert live.stop() == 0


def wait_until_loaded(server: Live) -> None:
    (worker,) = server.workers()
    until = time.monotonic() + PATIENCE_S
    while not any(LOADED_LAST in mapped.path for mapped in psutil.Process(worker).memory_maps()):
        assert time.monotonic() < until, f"no {LOADED_LAST} in the worker"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("attack", "status", "least"),
    [
        (ATTACKS["a million wrong fields"], 400, 100 * MIB),
        (lambda server: chain(server, 99_999), 200, 80 * MIB),
    ],
    ids=["wrong fields", "a chain"],
)
@pytest.mark.timeout(300)
def test_memory_goes_back(server: Live, attack: Attack, status: int, least: int) -> None:
    assert server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": np.ones(4, np.float32)}).status == 200
    wait_until_loaded(server)
    before = most = taken(server)
    for _ in range(2):
        assert attack(server).status == status
        most = max(most, taken(server))
    assert most - before > least, "the attack takes what this test sees go"
    until = time.monotonic() + PATIENCE_S
    while taken(server) - before > LEFT:
        assert time.monotonic() < until, f"{(taken(server) - before) >> 20} MiB stay"
        time.sleep(0.5)
