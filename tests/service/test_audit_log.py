"""The audit log without a server: its lines, and its files in turn."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.audit import AuditLog
from opbox_service.accounting.books import Books
from opbox_service.settings import Settings


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
