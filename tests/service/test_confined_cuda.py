"""A process with code reaches what CUDA needs: the MPS server's folders where one runs, and its own threads' names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opbox_service.settings import Settings
from opbox_service.worker import code_worker, landlock
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


@pytest.mark.parametrize("gpu", [True, False])
def test_a_process_with_code_may_write_to_it_where_a_gpu_is(
    gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(code_worker, "has_gpu", lambda settings: gpu)
    worker: Any = SimpleNamespace(settings=Settings(), user=0, folder=str(tmp_path))
    bounds = code_worker.CodeWorker._further_settings(worker)["bounds"]
    assert bounds["write"] == ((str(tmp_path), "/dev/shm") if gpu else ())


NAMES = """
import gc, json, os, sys, threading
from opbox_service.worker.confine import Bounds, confine
bounds, others = json.loads(sys.argv[1])
confine(Bounds(**bounds))

def name(path):
    try:
        with open(path, "w") as file:
            file.write("named")
        return "named"
    except PermissionError:
        return "denied"

def thread():
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    print(name(path), open(path).read().strip(), *map(name, others))

thread()
for _ in range(2):
    one = threading.Thread(target=thread)
    one.start()
    one.join()
"""


def bounds_of(folder: Path, *, gpu: bool, write: tuple[str, ...] = ()) -> Bounds:
    return Bounds(
        user=0,
        folder=str(folder),
        read=(),
        write=write,
        memory=16 << 30,
        open_files=512,
        file_bytes=1 << 30,
        tasks=1000,
        gpu=gpu,
        network=False,
    )


@pytest.mark.skipif(not landlock.abi(), reason="needs a kernel with Landlock, to keep files apart")
@pytest.mark.parametrize("gpu", [True, False])
def test_a_confined_process_names_its_own_threads_alone(tmp_path: Path, gpu: bool) -> None:
    """With a GPU: CUDA does so. Never those of another process of the same user."""
    arguments = json.dumps([asdict(bounds_of(tmp_path, gpu=gpu)), [f"/proc/{os.getpid()}/comm"]])
    done = subprocess.run([sys.executable, "-c", NAMES, arguments], check=True, capture_output=True, text=True)
    outcomes = [line.split() for line in done.stdout.splitlines()]
    assert [(first, now == "named", last) for first, now, last in outcomes] == [
        ("named" if gpu else "denied", gpu, "denied")
    ] * 3


@pytest.mark.skipif(not landlock.abi(), reason="needs a kernel with Landlock, to keep files apart")
def test_a_confined_process_opens_the_pipes(tmp_path: Path) -> None:
    own, pipes, other = (tmp_path / name for name in ("own", "mps", "other"))
    for folder in (own, pipes, other):
        folder.mkdir()
        (folder / "control").touch()

    def outcome(write: tuple[str, ...]) -> list[str]:
        bounds = bounds_of(own, gpu=True, write=write)
        arguments = json.dumps([asdict(bounds), [str(folder / "control") for folder in (own, pipes, other)]])
        command = [sys.executable, "-c", PROGRAM, arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    assert outcome(()) == ["open", "denied", "denied"]
    assert outcome((str(pipes),)) == ["open", "open", "denied"]
