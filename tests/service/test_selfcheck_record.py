"""The verdict of a GPU's self-check on disk: kept, read again, and passed over where it cannot be or is another's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opbox_ops.trust import ANY_TYPE
from opbox_service.selfcheck import first_use
from opbox_service.selfcheck.record import Record, copy_verdicts
from opbox_service.settings import Settings

IDENTITY = {"device": "a GPU", "driver": "580"}
NAME = ["softmax/cuda.softmax", "float32"]
KEY = (NAME[0], NAME[1])


def test_what_was_found_out_is_read_again(tmp_path: Path) -> None:
    record = Record.of(tmp_path / "new" / "folder", IDENTITY)
    record.begin()
    record.add(started=1)
    record.add(running=[NAME])
    record.add(unit="softmax", answers=[[*NAME, "differs"]])
    record.add(lost=[["sort", ANY_TYPE]], reason="it did not end")
    again = Record.of(record.path.parent, IDENTITY)
    assert again.answers == record.answers == {KEY: "differs", ("sort", ANY_TYPE): "it did not end"}
    assert (again.units, again.lost, again.finished) == ({"softmax"}, ["sort"], False)
    again.begin()  # written anew, it says the same
    record.add(finished=1)
    last = Record.of(record.path.parent, IDENTITY)
    assert (last.answers, last.units, last.finished) == (record.answers, {"softmax"}, True)


def test_of_another_device_or_driver_nothing_is_read(tmp_path: Path) -> None:
    record = Record.of(tmp_path, IDENTITY)
    record.begin()
    record.add(finished=1)
    other = Record.of(tmp_path, {**IDENTITY, "driver": "590"})
    assert other.path != record.path
    assert not other.finished
    other.path.write_bytes(record.path.read_bytes())
    other.read()
    assert not other.finished


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    record = Record.of(tmp_path, IDENTITY)
    record.begin()
    record.add(unit="softmax", answers=[[*NAME, ""]])
    first, *rest = record.path.read_text().splitlines()
    garbage = ["\0", "[1]", '{"unit": 3}', '{"lost": 1}', '{"running": [[1]]}', '{"unit": "x", "answers": [["a"]]}']
    record.path.write_text("\n".join([first, *garbage, *rest, '{"unit": "so']))
    record.read()
    assert (record.answers, record.units) == ({KEY: ""}, {"softmax"})
    record.path.write_bytes(b"\xff\xfe" * 100)
    record.read()
    assert (record.answers, record.units) == ({}, set())


def test_what_ran_when_the_machine_went_down_is_tried_once_more(tmp_path: Path) -> None:
    record = Record.of(tmp_path, IDENTITY)
    for _ in range(2):
        record.begin()
        assert record.lost == []
        record.add(started=1)
        record.add(running=[NAME])
        record = Record.of(tmp_path, IDENTITY)
    record.begin()
    assert record.lost == [NAME[0]]
    again = Record.of(tmp_path, IDENTITY)
    assert again.answers == {(NAME[0], ANY_TYPE): "the process that checked it ended while it ran, twice"}


def test_a_check_that_its_time_ended_interrupts_nothing(tmp_path: Path) -> None:
    record = Record.of(tmp_path, IDENTITY)
    for _ in range(3):
        record.begin()
        record.add(started=1)
        record.add(running=[NAME])
        record.add(stopped=1)
        record = Record.of(tmp_path, IDENTITY)
    record.begin()
    assert record.lost == []


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    record = Record.of(file / "folder", IDENTITY)
    record.begin()
    record.add(unit="softmax", answers=[[*NAME, ""]])
    assert record.answers == {KEY: ""}
    assert record.problem == (
        f"the verdict cannot be kept in {file / 'folder'} (Not a directory): every process checks anew"
    )


def test_another_user_gets_copies_that_it_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "own"))
    record = Record.of(tmp_path / "own", IDENTITY)
    record.begin()
    record.add(finished=1)
    (tmp_path / "own" / "kernel.cubin").write_text("")
    (tmp_path / "session").mkdir()
    copy_verdicts(tmp_path / "session")
    assert os.listdir(tmp_path / "session") == [record.path.name]
    assert (tmp_path / "session" / record.path.name).stat().st_mode & 0o777 == 0o644
    assert Record.of(tmp_path / "session", IDENTITY).finished


def test_a_server_starts_a_check_only_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "has_gpu", lambda settings: False)
    assert first_use.start_check(Settings(gpu_selfcheck_s=60)) is None
    monkeypatch.setattr(first_use, "has_gpu", lambda settings: True)
    assert first_use.start_check(Settings(gpu_selfcheck_s=0)) is None
    monkeypatch.setattr(first_use, "highest_level", lambda: "reference")
    assert first_use.start_check(Settings(gpu_selfcheck_s=60)) is None
    monkeypatch.setattr(first_use, "highest_level", lambda: "generated")
    process = first_use.start_check(Settings(gpu_selfcheck_s=60))
    assert process is not None
    process.kill()
    assert process.wait(60)
