"""The audit log without a server: its lines, and its files in turn."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.audit import AuditLog
from opbox_service.accounting.books import Books
from opbox_service.settings import Settings
from tests.contract.live import Live


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def test_lines_are_added_in_order_and_files_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for _ in range(2):  # the second goes on with the first's file
        audit = AuditLog(path, largest=4000, files=3)
        for number in range(60):
            audit.note("test", "ann\n\ud800", number=number, text="x" * 1000)
        audit.close()
    files = sorted(tmp_path.glob("audit.log*"))
    assert [file.name for file in files] == ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]
    numbers = [entry["number"] for file in reversed([files[0], *files[1:]]) for entry in entries(file)]
    assert numbers[-1] == 59
    assert all(later in (earlier + 1, 0) for earlier, later in itertools.pairwise(numbers))
    assert all(len(entry["text"]) == 300 for entry in entries(files[0]))


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text('{"time": "2030-01')
    audit = AuditLog(path)
    audit.note("test", "ann")
    audit.close()
    cut, whole = path.read_text().splitlines()
    assert cut == '{"time": "2030-01'
    assert json.loads(whole)["action"] == "test"


def test_lines_wait_for_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "audit.log"
    for later in (True, False):
        audit = AuditLog(path)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            audit.note("test", "ann", number=1)
            audit.tick()
            if not later:
                audit.close()
        if later:
            audit.note("test", "ann", number=2)
            audit.close()
    assert [entry["number"] for entry in entries(path)] == [1, 2, 1]


def test_a_server_that_keeps_the_lock_stops_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit, lost = (AuditLog(path, locked_s=0.05) for _ in range(2))
    lock = os.open(tmp_path / ".audit.log.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    audit.note("test", "ann", number=1)
    lost.note("test", "ann", number=0)
    lost.close()
    with pytest.raises(NotReadyError, match=r"got none \(another server has had it locked for 0.05 s\)"):
        AuditLog(path, locked_s=0.05)
    os.close(lock)
    audit.tick()
    audit.note("test", "ann", number=2)
    audit.close()
    assert [entry["number"] for entry in entries(path)] == [1, 2]


def test_refusals_that_repeat_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path)
    for _ in range(1000):
        audit.refusal("ann", status=429, route="POST /v1/forward")
    audit.refusal("ann", status=403, route="POST /v1/forward")
    for number in range(5000):
        audit.refusal(f"owner{number}", status=401, route="other")
    audit.close("server.stopped")
    listed = [entry for entry in entries(path) if entry["owner"] == "ann"]
    assert [(entry["status"], entry.get("repeated")) for entry in listed] == [(429, None), (403, None), (429, 999)]
    assert len(entries(path)) < 1100
    assert [entry["action"] for entry in entries(path)[-2:]] == ["left out", "server.stopped"]


def test_a_folder_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(NotReadyError, match="state_dir: cannot make"):
        Books(Settings(state_dir=file / "state"), Accounts(Settings()))
    (tmp_path / "audit.log").mkdir()
    with pytest.raises(NotReadyError, match="expected an audit log that can be written"):
        AuditLog(tmp_path / "audit.log")


class SmallDisk:
    """A file system of 1 MiB, and a file on it that takes up all that is free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)

    def fill(self, but: int = 0) -> None:
        """Leave no more than `but` bytes free; the file system has pages."""
        with (self.folder / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize > but:
                file.write(b"x" * 4096)

    def free(self) -> None:
        (self.folder / "filler").unlink()


def may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False)
        subprocess.run(["umount", folder], capture_output=True, check=False)
    return mounted.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    yield SmallDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


needs_mounts = pytest.mark.skipif(not may_mount(), reason="mount is not permitted here")


@needs_mounts
def test_a_full_disk_has_whole_lines_and_gets_the_others_when_it_is_not_full(disk: SmallDisk) -> None:
    path = disk.folder / "audit.log"
    audit = AuditLog(path)
    disk.fill(but=8192)
    for number in range(100):
        audit.note("test", "ann", number=number, text="x" * 250)
    until(lambda: audit.problem)
    assert audit.problem == "No space left on device"
    before = path.read_bytes()
    assert 4096 <= len(before) <= 8192
    assert before.endswith(b"\n")
    written = [entry["number"] for entry in entries(path)]
    assert written == list(range(len(written)))
    audit.tick()  # without space this adds nothing
    disk.free()
    audit.tick()
    audit.note("test", "ann", number=100)
    audit.close()
    assert [entry["number"] for entry in entries(path)] == list(range(101))
    assert audit.problem == ""


@needs_mounts
def test_the_number_of_lines_that_a_full_disk_cost_outlives_the_server(disk: SmallDisk) -> None:
    path = disk.folder / "audit.log"
    audit = AuditLog(path)
    audit.note("test", "ann", number=0)
    until(lambda: path.stat().st_size)
    disk.fill()
    for number in range(1, 200):
        audit.note("test", "ann", number=number, text="x" * 250)
    audit.close()
    lost = 199 - entries(path)[-1]["number"]
    assert lost > 150
    for server in range(2):  # the first of them cannot say it either
        if server:
            disk.free()
        audit = AuditLog(path)
        audit.tick()
        audit.close()
    assert [(entry["action"], entry["lines"]) for entry in entries(path) if "lines" in entry] == [("left out", lost)]
    audit = AuditLog(path)
    audit.tick()
    audit.close()
    assert sum(entry["action"] == "left out" for entry in entries(path)) == 1, "it is said once"


def test_lines_beyond_those_that_wait_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path, waiting=10)
    path.unlink()
    path.mkdir()  # which nobody writes lines to
    audit.note("test", "ann", number=0)
    until(lambda: audit.problem)
    for number in range(1, 100):
        audit.note("test", "ann", number=number)
    path.rmdir()

    def whole() -> bool:
        audit.tick()
        return path.exists() and len(entries(path)) == 11

    until(whole)
    audit.close()
    assert [entry.get("number", entry.get("lines")) for entry in entries(path)] == [*range(10), 90]


@needs_mounts
def test_sessions_are_refused_while_a_required_log_cannot_be_written(disk: SmallDisk, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="audit_required: expected a state_dir"):
        Books(Settings(audit_required=True), Accounts(Settings()))
    server = Live("process", tmp_path, OPBOX_STATE_DIR=str(disk.folder), OPBOX_AUDIT_REQUIRED="1")

    def opened() -> int:
        answer = server.json("POST", "/v1/sessions", {})
        if answer.status == 201:
            server.json("DELETE", f"/v1/sessions/{answer.header['id']}")
        return answer.status

    try:
        session = server.session()
        disk.fill()
        until(lambda: opened() == 503)
        refusal = server.json("POST", "/v1/sessions", {})
        assert "expected an audit log that can be written, got none (No space left on device)" in refusal.error
        assert refusal.http["retry-after"]
        assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=np.ones(4, np.float32)).status == 200
        disk.free()
        until(lambda: opened() == 201)
    finally:
        assert server.stop() == 0
    assert all(entry["action"] for entry in entries(disk.folder / "audit.log"))
