"""The comparison with PyTorch: its ratios, and what it says of a process that ended. No network runs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from .__main__ import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    for folder in ("examples", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module("gpu_vs_peers")


def test_each_goal_has_its_ratio(script: Any) -> None:
    medians = {
        "opbox": [1.0, 2.0],
        "opbox, TF32": [1.0, 1.0],
        "opbox, HTTP": [2.0, 2.5],
        "eager": [3.0, 3.0],
        "graphs": [2.0, 2.0],
        "graphs, TF32": [0.5, 4.0],
        "deterministic": [4.0, 5.0],
        "graphs, deterministic": [2.5, 6.0],
    }
    assert script.ratios(medians) == {
        "over opbox": [2.0, 1.0],
        "deterministic over opbox": [2.5, 2.5],
        "TF32 over opbox with it": [0.5, 4.0],
        "eager over opbox": [3.0, 1.5],
        "in process over HTTP": [0.5, 0.8],
    }
    assert script.ratios({"opbox": [1.0, 2.0]}) == {}
    assert script.ratios({}) == {}


def test_a_peer_that_ends_says_why(script: Any) -> None:
    peer = script.Peer(sys.executable, "symbols.py", "no_such_module", "cpu")
    try:
        assert peer.ask({"name": "x"}) is None
        assert peer.why_ended() == "status 1: ModuleNotFoundError: No module named 'no_such_module'"
    finally:
        peer.close()
