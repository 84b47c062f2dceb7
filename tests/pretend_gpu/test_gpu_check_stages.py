"""Each stage of make gpu-check, cut off in its middle on the pretend device, leaves what it has, and no process.

The commands are the real ones. The clock stands still until a stage has left something on disk.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import skips, slices
from tests.gpu_check.__main__ import ENVIRONMENT, ROOT, stages
from tests.gpu_check.stages import read, run

FEWER = {"tests/ops": "tests/ops/test_cuda_rows.py"}
"""Tests in place of a stage's own, which take half a minute to be collected."""
SANITIZER = (
    '#!/bin/sh\n# In the place of compute-sanitizer: drops its options, and runs the rest.\nshift 4\nexec "$@"\n'
)
WHOLE = {slices.VARIABLE: "", skips.VARIABLE: "", "PYTEST_ADDOPTS": ""}
"""The tests that a stage starts are no slice: there might be none left."""


def partial_results(path: Path) -> dict[str, Any]:
    """What a stage that runs has left so far, beside its file: figures, lines of tests, or lines of output."""
    figures, output = path.with_suffix(".figures"), path.with_suffix(".txt")
    try:
        return {"figures": json.loads(figures.read_text("utf-8"))}
    except (FileNotFoundError, ValueError):
        pass
    if lines := list(read(path.with_suffix(".jsonl"))):
        return {"tests": lines}
    return {"output": output.read_text("utf-8").splitlines()} if output.exists() else {}


LEAVES = {"smoke": "figures", "peers": "figures", "selfcheck": "output", "custom": "output"}
"""What stages leave that run no tests."""


def processes_with(mark: str) -> list[str]:
    """The processes in whose environment a word is."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                commands.append((folder / "cmdline").read_text("utf-8", "replace").replace("\0", " "))
        except OSError:  # it has ended, or is another user's
            continue
    return commands


@pytest.mark.parametrize("name", [stage.name for stage in stages()])
def test_a_stage_that_is_cut_off_leaves_its_results(
    gpu: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, folder, path = tmp_path / "bin", tmp_path / "results", tmp_path / "results" / f"1-{name}.json"
    programs.mkdir()
    (programs / "compute-sanitizer").write_text(SANITIZER, "utf-8")
    (programs / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(programs), os.environ["PATH"])))
    monkeypatch.chdir(ROOT)
    [stage] = [stage for stage in stages() if stage.name == name]
    stage = replace(stage, command=[FEWER.get(part, part) for part in stage.command], needs=())
    kind = LEAVES.get(name, "tests")
    seen: list[Any] = []

    def clock() -> float:
        results = partial_results(path).get(kind)
        # The first line of an output may be a heading.
        if results and (kind != "output" or len(results) > 1):
            seen.append(results)
        return stage.limit_s if seen else 0.0

    mark = uuid.uuid4().hex
    environment = {**ENVIRONMENT, **WHOLE, "OPBOX_TEST_MARK": mark, "CUPY_CACHE_DIR": str(tmp_path / "cache")}
    assert run([stage], folder, {"device": "pretended"}, environment, clock) == int(stage.requires)
    record = json.loads(path.read_text("utf-8"))
    assert record["outcome"] == "too slow", record["output"]
    if kind == "figures":
        assert record["figures"]
    elif kind == "output":
        assert len(path.with_suffix(".txt").read_text("utf-8").splitlines()) > 1
    else:
        lines = list(read(path.with_suffix(".jsonl")))
        assert sum(record["tests"].values()) == len(lines) >= 1
        assert all(line["outcome"] in ("passed", "skipped") for line in lines), lines
    deadline = time.monotonic() + 60
    while left := processes_with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
