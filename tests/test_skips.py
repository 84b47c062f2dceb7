"""What a suite may skip: reasons and numbers of `.ci/skips.toml`, held against a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import skips

SKIPPING = """
import pytest

@pytest.mark.parametrize("number", range({number}))
def test_something(number: int) -> None:
    pytest.skip("{reason}")

def test_that_passes() -> None:
    pass
"""
GPU = "no pretend GPU: make test-gpu-pretend"


def test_reasons_of_the_table_are_let_through() -> None:
    assert skips.unexpected_skips("test", []) == []
    assert skips.unexpected_skips("test", [GPU] * skips.most_skips("test")[GPU]) == []
    assert skips.unexpected_skips("test", ["4 rows skipped: device 'gpu:0' is not available: no CuPy"]) == []


def test_another_reason_and_too_many_are_named() -> None:
    most = skips.most_skips("test")[GPU]
    assert skips.unexpected_skips("test", ["the kernel does not work"] * 2 + [GPU] * (most + 1)) == [
        f"test: expected at most {most} skipped tests with the reason {GPU!r}, got {most + 1}",
        "test: expected no skipped tests with the reason 'the kernel does not work', got 2",
    ]
    assert skips.unexpected_skips("nvrtc", [GPU]) != []


def test_a_suite_that_has_no_table_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"expected one of .*nvrtc.*, got 'unknown'"):
        skips.unexpected_skips("unknown", [])


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("reason", "status"), [("the kernel does not work", 1), ("no matrix unit", 0)])
def test_a_run_fails_by_its_skips(tmp_path: Path, reason: str, status: int, workers: str) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING.format(number=3, reason=reason), "utf-8")
    command = [sys.executable, "-m", "pytest", "-n", workers, "-p", "tests.conftest", str(tmp_path)]
    environment = os.environ | {skips.VARIABLE: "test"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert run.returncode == status, run.stdout + run.stderr
    assert "1 passed, 3 skipped" in run.stdout
    assert ("expected no skipped tests with the reason 'the kernel does not work', got 3" in run.stdout) == bool(status)
