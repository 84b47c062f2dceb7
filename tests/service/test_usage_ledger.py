"""The usage ledger without a server: its figures, its file, and the books that write to it."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.accounting.usage import SHOWN_DAYS, UsageLedger, today
from opbox_service.device_time import DeviceTime
from opbox_service.settings import Settings

from .test_audit_log import entries as audit_entries

NOON = 1_900_000_000.0 - 1_900_000_000.0 % 86_400 + 43_200


def test_figures_are_added_up_and_stored(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    first, second = UsageLedger(path, now=lambda: NOON), UsageLedger(path, now=lambda: NOON)
    first.count("ann", requests=2, peak_bytes=100)
    second.count("ann", requests=3, peak_bytes=70)
    second.count("bob", worker_seconds=0.25)
    assert first.days("ann")["ann"][today(NOON)].requests == 2
    first.flush().result()
    second.flush().result()
    first.flush().result()  # it learns what the other has added
    for ledger in (first, second):
        usage = ledger.days()["ann"][today(NOON)]
        assert (usage.requests, usage.peak_bytes) == (5, 100)
        assert ledger.worker_seconds("bob") == 0.25
    first.close()
    second.count("ann", requests=1)
    second.close()
    later = UsageLedger(path, now=lambda: NOON + 86_400)
    later.count("ann", requests=1)
    assert [(day, usage.requests) for day, usage in later.days("ann")["ann"].items()] == [
        (today(NOON + 86_400), 1),
        (today(NOON), 6),
    ]
    assert later.worker_seconds("bob") == 0
    later.close()


def test_sums_of_device_time_are_counted_once() -> None:
    ledger = UsageLedger(None, now=lambda: NOON)
    sums = {("ann", "cpu"): DeviceTime(1.0, 2.0, 3), ("ann", "gpu"): DeviceTime(0.0, 1.0, 1)}
    ledger.take_times(sums)
    ledger.take_times(sums)
    sums["ann", "cpu"].compute_s += 0.5
    ledger.take_times(sums)
    usage = ledger.days("ann")["ann"][today(NOON)]
    assert (usage.worker_seconds, usage.queue_seconds, usage.runs) == (3.5, 1.0, 4)
    ledger.close()


def test_old_days_go(tmp_path: Path) -> None:
    now = [NOON]
    ledger = UsageLedger(tmp_path / "usage.sqlite", keep_days=50, now=lambda: now[0])
    ledger.count("ann", requests=1)
    ledger.flush().result()
    now[0] += 86_400 * SHOWN_DAYS
    ledger.count("ann", requests=1)
    ledger.flush().result()
    assert list(ledger.days("ann")["ann"]) == [today(now[0])]

    def stored() -> int:
        with sqlite3.connect(tmp_path / "usage.sqlite") as database:
            return int(database.execute("SELECT count(*) FROM usage").fetchone()[0])

    assert stored() == 2
    now[0] += 86_400 * 20
    ledger.count("ann", requests=1)
    ledger.flush().result()
    assert stored() == 2
    ledger.close()


KILLED = """
import os, sys, threading, time
from pathlib import Path
from opbox_service.accounting.usage import UsageLedger
ledger = UsageLedger(Path(sys.argv[1]))
def die():
    time.sleep(0.3)
    os._exit(9)
number = 0
while True:
    for owner in range(200):
        ledger.count(f"owner{owner}", requests=1)
    ledger.flush().result()
    number += 1
    print(number, flush=True)
    if number == 1:
        threading.Thread(target=die).start()
"""


def test_a_crash_in_mid_write_leaves_whole_writes(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 9, ended.stderr
    written = len(ended.stdout.split())
    ledger = UsageLedger(path)
    counts = {sum(usage.requests for usage in days.values()) for days in ledger.days().values()}
    ledger.close()
    assert len(counts) == 1, "each write counts for every owner, or for none"
    assert counts <= {written, written + 1}


def test_what_is_no_ledger_is_said_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    path.write_text("not a database, but long enough to be looked at" * 30)
    with pytest.raises(
        NotReadyError, match=r"expected a usage ledger that can be read and written, got none .*: move the file"
    ):
        UsageLedger(path)
    assert path.read_text().startswith("not a database")


def test_rows_that_are_no_usage_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    ledger = UsageLedger(path, now=lambda: NOON)
    ledger.count("ann", requests=2)
    ledger.close()
    with sqlite3.connect(path) as database:
        for owner, figure in (("bob", "many"), ("eve", -1), ("pat", 9e999), (b"\xff", 1)):
            row = (today(NOON), owner, figure)
            database.execute("INSERT INTO usage (day, owner, requests) VALUES (?, ?, ?)", row)
    database.close()
    ledger = UsageLedger(path, now=lambda: NOON)
    ledger.count("bob", requests=1)
    assert {owner: days[today(NOON)].requests for owner, days in ledger.days().items()} == {"ann": 2, "bob": 1}
    ledger.close()


def test_a_ledger_that_cannot_be_read_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opbox_service.accounting.usage._READ", "SELECT missing FROM usage WHERE day >= ?")
    with pytest.raises(
        NotReadyError, match=r"expected a usage ledger that can be read and written, got none \(no such"
    ):
        UsageLedger(tmp_path / "usage.sqlite")


def test_a_write_that_fails_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    ledger = UsageLedger(path, now=lambda: NOON)
    ledger.count("ann", requests=1)
    ledger.flush().result()
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE usage RENAME TO away")
    ledger.count("ann", requests=1)
    ledger.flush().result()
    assert ledger.days("ann")["ann"][today(NOON)].requests == 2
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE away RENAME TO usage")
    ledger.flush().result()
    ledger.close()
    again = UsageLedger(path, now=lambda: NOON)
    assert again.days("ann")["ann"][today(NOON)].requests == 2
    again.close()


@pytest.mark.parametrize("part", ["_write_rows", "_read_again"])
@pytest.mark.parametrize("problem", [MemoryError(), sqlite3.OperationalError("disk I/O error")])
def test_no_figure_is_lost_or_counted_twice(
    part: str, problem: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "usage.sqlite"
    ledger = UsageLedger(path, now=lambda: NOON)

    def failing(*arguments: object) -> None:
        raise problem

    for number in (1, 2):
        ledger.count("ann", requests=1)
        with monkeypatch.context() as patch:
            patch.setattr(ledger, part, failing)
            ledger.flush().result()
        assert ledger.days("ann")["ann"][today(NOON)].requests == number
    ledger.flush().result()
    assert ledger.days("ann")["ann"][today(NOON)].requests == 2
    ledger.close()
    again = UsageLedger(path, now=lambda: NOON)
    assert again.days("ann")["ann"][today(NOON)].requests == 2
    again.close()


def test_figures_are_written_though_checkpoints_cannot_be_counted(tmp_path: Path) -> None:
    def failing(owner: str) -> int:
        raise ValueError(owner)

    path = tmp_path / "usage.sqlite"
    ledger = UsageLedger(path, storage=failing, now=lambda: NOON)
    ledger.count("ann", requests=1)
    ledger.flush().result()
    ledger.close()
    again = UsageLedger(path, now=lambda: NOON)
    assert again.days("ann")["ann"][today(NOON)].requests == 1
    again.close()


def test_the_books_go_on_after_a_problem(tmp_path: Path) -> None:
    books = Books(Settings(state_dir=tmp_path), Accounts(Settings()), tick_s=0.01)
    asked: list[int] = []

    async def life() -> None:
        ticked = asyncio.Event()

        def times() -> dict[tuple[str, str], DeviceTime]:
            asked.append(1)
            if len(asked) == 3:
                ticked.set()
            raise ValueError("of the pool")

        books.usage.count("ann", requests=1)
        books.start(times)
        await asyncio.wait_for(ticked.wait(), 30)
        await books.stop(times)

    asyncio.run(life())
    ledger = UsageLedger(tmp_path / "usage.sqlite")
    assert sum(usage.requests for usage in ledger.days("ann")["ann"].values()) == 1
    ledger.close()
    assert [entry["action"] for entry in audit_entries(tmp_path / "audit.log")] == ["server.started", "server.stopped"]


def test_a_thread_describes_many_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books(Settings(), Accounts(Settings()))
    owners = [f"owner{number}" for number in range(100)]
    loops: set[object] = set()

    def sessions_of(owner: str) -> int:
        loops.add(asyncio.get_running_loop())
        return len(owner)

    books.sessions_of = sessions_of

    async def life() -> None:
        books.start(dict)
        listed = await asyncio.to_thread(books.json_of, owners)
        assert list(listed) == owners
        assert listed["owner7"]["now"]["sessions"] == 6
        assert loops == {asyncio.get_running_loop()}
        await books.stop(dict)

    asyncio.run(life())


def test_counting_from_many_threads() -> None:
    ledger = UsageLedger(None, now=lambda: NOON)

    def count() -> None:
        for _ in range(500):
            ledger.count("ann", requests=1)
            ledger.flush()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.days("ann")["ann"][today(NOON)].requests == 2000
    ledger.close()
