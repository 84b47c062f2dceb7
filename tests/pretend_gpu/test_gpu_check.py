"""The smoke stage of make gpu-check, on the pretend device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_check import smoke
from tests.gpu_check.machine import description

from .counts import checks


def test_the_smoke_stage_passes_and_writes_its_figures(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoke, "REPEATS", 1)
    assert smoke.main([str(tmp_path / "figures.json")]) == 0
    assert json.loads((tmp_path / "figures.json").read_text("utf-8"))["milliseconds"].keys() == smoke.CHECKS.keys()


def test_the_device_is_described(gpu: Any) -> None:
    described = description()
    assert described["device"]["devices"] >= 2
    assert described["driver"]["cuda"] >= 13000
    assert "cupy-cuda13x" in described["versions"]


def test_the_checks_of_the_operator_table_are_counted(gpu: Any) -> None:
    operators, numbers = checks()
    assert operators > 300
    assert numbers["test_forward"] >= operators
    assert {"test_gradient", "test_requests", "test_layouts"} < numbers.keys()
