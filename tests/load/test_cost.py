"""Requests that state large counts are answered by one sentence before anything of that size is made."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from opbox_service.buffers import KEEP_S
from tests.contract.live import Live
from tests.load.attacks import ATTACKS, chain
from tests.load.memory import taken

REFUSED = {
    "Concat of 300 million arrays": (400, "65536"),
    "Concat of 300 million in a graph": (400, "65536"),
    "SliceChannel into 300 million": (400, "65536"),
    "split_v2 into 300 million": (400, "65536"),
    "50 MB of empty lists": (413, "values"),
    "50 MB of numbers": (413, "as bytes behind a header"),
    "100 MB of numbers": (413, "bytes of JSON"),
    "16 MB of objects": (413, "values"),
    "a million wrong fields": (400, "shapes"),
    "600,000 edges": (413, "inputs together"),
    "5 million edges": (413, "values"),
    "10 million edges": (413, "values"),
    "19,000 unknown variables": (422, "unknown"),
    "an answer of 8 GiB as JSON": (413, "octet-stream"),
    "one array 200 times": (413, "the answer"),
    "one array 200 times as JSON": (413, "octet-stream"),
    "512 MB as JSON": (413, "octet-stream"),
}
GROWTH = 600 << 20
"""Bytes that all of it together may leave behind; each attack took gigabytes."""
PATIENCE_S = KEEP_S + 10
"""Idle buffers go after KEEP_S."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the limits that it has by default."""
    usual = dict.fromkeys(
        ["BODY_BYTES", "HEADER_BYTES", "NODES", "RANK", "SESSIONS", "SESSION_BYTES"],
        "",
    )
    live = Live("process", tmp_path_factory.mktemp("load"), **{f"OPBOX_MAX_{name}": "" for name in usual})
    yield live
    assert live.stop() == 0


def test_large_counts_are_refused_in_a_sentence(server: Live) -> None:
    before, workers = taken(server), server.workers()
    for name, (status, word) in REFUSED.items():
        answer = ATTACKS[name](server)
        assert (answer.status, word in answer.error) == (status, True), (name, answer.status, answer.error[:300])
        assert len(answer.error) < 2000, name
    assert server.workers() == workers
    assert server.metric("opbox_worker_restarts_total") == 0
    until = time.monotonic() + PATIENCE_S
    while taken(server) - before >= GROWTH:
        assert time.monotonic() < until, (taken(server) - before) >> 20
        time.sleep(0.5)


def test_a_long_chain_has_its_answer(server: Live) -> None:
    """Shorter than the attack's, which takes its share of some ten seconds."""
    answer = chain(server, 10_000)
    assert (answer.status, answer.header["out_shapes"]) == (200, [[2]])
    assert server.metric("opbox_worker_restarts_total") == 0
