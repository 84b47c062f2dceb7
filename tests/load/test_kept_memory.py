"""What a heavy request took goes back to the system when it has been answered."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from opbox_service.buffers import KEEP_S
from tests.contract.live import IDENTITY, Live
from tests.load.attacks import ATTACKS, Attack, chain
from tests.load.memory import taken

MIB = 1 << 20
LEFT = 40 * MIB
"""What may stay: graphs of 20,000 nodes (25 MB), modules that are loaded late, and pieces of the heap between."""
PATIENCE_S = KEEP_S + 60
"""Buffers and graphs go after KEEP_S unused."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the limits that it has by default."""
    usual = ["BODY_BYTES", "HEADER_BYTES", "NODES", "RANK", "SESSIONS", "SESSION_BYTES"]
    live = Live("process", tmp_path_factory.mktemp("kept"), **{f"OPBOX_MAX_{name}": "" for name in usual})
    yield live
    assert live.stop() == 0


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
    before = most = taken(server)
    for _ in range(2):
        assert attack(server).status == status
        most = max(most, taken(server))
    assert most - before > least, "the attack takes what this test sees go"
    until = time.monotonic() + PATIENCE_S
    while taken(server) - before > LEFT:
        assert time.monotonic() < until, (taken(server) - before) >> 20
        time.sleep(0.5)
