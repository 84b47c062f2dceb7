"""Servers on state of another version: older state is upgraded and stays usable, newer state stops the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.contract.live import Live

X = np.arange(4, dtype=np.float32)


def test_state_from_before_there_were_versions_is_upgraded(start: Callable[..., Live], tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = start("none", OPBOX_STATE_DIR=str(state))
    put = {"do": "put", "id": 1, "tensor": "x"}
    assert first.session().run(put, {"do": "checkpoint", "name": "run", "arrays": {"x": 1}}, x=X).status == 200
    assert first.stop() == 0
    for name in ("version.json", ".lock"):
        (state / name).unlink()
    second = start("process", OPBOX_STATE_DIR=str(state))
    assert json.loads((state / "version.json").read_bytes())["format"] == 1
    answer = second.session().run(
        {"do": "restore", "name": "run", "arrays": {"x": 1}}, {"do": "fetch", "id": 1, "as": "x"}
    )
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(answer.tensors["x"], X)


def test_newer_state_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "version.json").write_text('{"format": 7, "opbox": "3.1.0"}')
    done = subprocess.run(
        [sys.executable, "-m", "opbox_service.serve", "--port", "0", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")},
        check=False,
    )
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("opbox serve: ")]
    assert line.startswith(
        f"opbox serve: state_dir: {tmp_path}: expected state of format 1 or older, got format 7, which "
        "opbox 3.1.0 wrote"
    )
    assert "Traceback" not in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name not in ("version.json", ".lock")]
