"""A process with code reaches the MPS server's folders where one runs, and nothing else that it did not before."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from opbox_service.worker import landlock
from opbox_service.worker.code_worker import mps_folders
from opbox_service.worker.confine import Bounds

PROGRAM = """
import json, sys
from opbox_service.worker.confine import Bounds, confine
bounds, files = json.loads(sys.argv[1])
confine(Bounds(**bounds))
for file in files:
    try:
        open(file, "r+b").close()
        print("open")
    except PermissionError:
        print("denied")
"""


def test_where_no_server_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert mps_folders() == []


def test_where_one_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert mps_folders() == [tmp_path, Path("/dev/shm")]


@pytest.mark.skipif(not landlock.abi(), reason="needs a kernel with Landlock, to keep files apart")
def test_a_confined_process_opens_the_pipes(tmp_path: Path) -> None:
    own, pipes, other = (tmp_path / name for name in ("own", "mps", "other"))
    for folder in (own, pipes, other):
        folder.mkdir()
        (folder / "control").touch()

    def outcome(write: tuple[str, ...]) -> list[str]:
        bounds = Bounds(
            user=0,
            folder=str(own),
            read=(),
            write=write,
            memory=16 << 30,
            open_files=512,
            file_bytes=1 << 30,
            tasks=1000,
            gpu=True,
            network=False,
        )
        arguments = json.dumps([asdict(bounds), [str(folder / "control") for folder in (own, pipes, other)]])
        command = [sys.executable, "-c", PROGRAM, arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert outcome(()) == ["open", "denied", "denied"]
    assert outcome((str(pipes),)) == ["open", "open", "denied"]
