"""The books without a server: what a tokens' file may say, the usage ledger's file, the audit log's files."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from opbox_protocol.errors import BadRequestError, NotReadyError, QuotaError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.audit import AuditLog
from opbox_service.accounting.books import Books
from opbox_service.accounting.usage import SHOWN_DAYS, UsageLedger, seconds_to_tomorrow, today
from opbox_service.api.identity import LOOK_S, Tokens
from opbox_service.api.token_files import read_tokens
from opbox_service.device_time import DeviceTime
from opbox_service.quota import Ledger
from opbox_service.settings import OwnerTerms, Settings, Token

SECRET = "a-secret-token"
ANN: dict[str, Any] = {"name": "ann", "token": SECRET}
NOON = 1_900_000_000.0 - 1_900_000_000.0 % 86_400 + 43_200


def write(folder: Path, document: object) -> Path:
    path = folder / "tokens.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


# -- the file ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"tokens": [], "owners": {"ann": {"weight": 0}}}, "owners.ann: weight: expected more than 0.0, got 0"),
        ({"tokens": [], "owners": {"ann": {"weight": 1001}}}, "owners.ann: weight: expected 1000.0 or less, got 1001"),
        ({"tokens": [], "owners": {"ann": {"urgency": 8}}}, "owners.ann: urgency: expected 7 or less, got 8"),
        ({"tokens": [], "owners": {"ann": {"sessions": -1}}}, "owners.ann: sessions: expected 0 or more, got -1"),
        ({"tokens": [], "owners": {"ann": {"sessions": True}}}, "owners.ann: sessions: expected an integer, got True"),
        ({"tokens": [], "owners": {"ann": {"session_bytes": 1}}}, "session_bytes: expected 65536 or more, got 1"),
        ({"tokens": [], "owners": {"ann": {"memory_bytes": "8G"}}}, "memory_bytes: expected an integer, got '8G'"),
        ({"tokens": [], "owners": {"ann": {"worker_seconds": -1}}}, "worker_seconds: expected 0.0 or more, got -1"),
        ({"tokens": [], "owners": {"ann": {"worker_seconds": []}}}, "worker_seconds: expected a number, got []"),
        ({"tokens": [], "owners": {"ann": {"in_flight": 0}}}, "owners.ann: in_flight: expected 1 or more, got 0"),
        ({"tokens": [], "owners": {"ann": {"buffer_bytes": 5}}}, "buffer_bytes: expected 65536 or more, got 5"),
        ({"tokens": [], "owners": {"ann": {"checkpoints": -2}}}, "checkpoints: expected 0 or more, got -2"),
        (
            {"tokens": [], "owners": {"ann": {"checkpoint_bytes": 1.5}}},
            "checkpoint_bytes: expected an integer, got 1.5",
        ),
        ({"tokens": [], "owners": {"ann": {"sesions": 1}}}, "owners.ann: unknown field 'sesions': expected weight, "),
        ({"tokens": [], "owners": {"ann": 3}}, "owners.ann: expected an object, got 3"),
        ({"tokens": [], "owners": []}, "owners: expected an object, got []"),
        ({"tokens": [], "owners": {"": {}}}, "owners: expected names of 1 to 128 characters, got another"),
        ({"tokens": [], "owner": {}}, "unknown field 'owner': expected tokens, owners"),
        ({"owners": {}}, "tokens: expected a value"),
        (
            {"tokens": [{**ANN, "scope": "run"}]},
            "tokens.0: unknown field: expected name, token, scopes, weight, expires",
        ),
        ([{**ANN, "scopes": ["all"]}], "tokens.0.scopes.0: expected one of 'run'"),
        ([{"name": "ann", "token": "short"}], "tokens.0.token: expected 8 or more characters"),
        ('[], "owners": {}', "expected a JSON list of tokens, got malformed JSON"),
        ("", "expected a JSON list of tokens, got malformed JSON"),
    ],
)
def test_wrong_files(document: object, sentence: str, tmp_path: Path) -> None:
    path = write(tmp_path, document)
    with pytest.raises(BadRequestError) as refusal:
        read_tokens(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert sentence in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "short" not in str(refusal.value)


def tokens_of(path: Path, **settings: Any) -> tuple[Tokens, Accounts, list[tuple[int, str]]]:
    whole = Settings(tokens_file=path, **settings)
    accounts, reads = Accounts(whole), list[tuple[int, str]]()
    return Tokens(whole, accounts, lambda tokens, wrong: reads.append((tokens, wrong))), accounts, reads


def test_terms_of_owners_are_read_again_with_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [ANN])
    tokens, accounts, reads = tokens_of(path, token=SecretStr("the-one-token"), max_sessions=5)
    assert accounts.of("ann") is accounts.usual
    monkeypatch.setattr("opbox_service.api.identity.LOOK_S", -LOOK_S)
    header = b"Bearer " + SECRET.encode()

    path.write_text(json.dumps({"tokens": [ANN], "owners": {"ann": {"sessions": 2, "weight": 3}, "default": {}}}))
    assert tokens.identify(header).owner == "ann"
    assert (accounts.of("ann").sessions, accounts.of("ann").weight, accounts.of("ann").in_flight) == (2, 3, 128)
    assert (accounts.of("bob").sessions, accounts.of("default").sessions) == (5, 5)
    assert reads == [(2, "")]

    for owners, sentence in (
        ({"anne": {"sessions": 3}}, "owners.anne: expected the name of a token (ann, default), got one that none has"),
        ({"ann": {"weight": 0}}, "weight: expected more than 0.0"),
    ):
        path.write_text(json.dumps({"tokens": [ANN], "owners": owners}))
        assert tokens.identify(header).owner == "ann"
        assert accounts.of("ann").sessions == 2, "the terms of before stay"
        assert sentence in reads[-1][1]

    path.write_text(json.dumps({"tokens": [{**ANN, "weight": 2}], "owners": {"ann": {"weight": 2}}}))
    tokens.identify(header)
    assert "expected one weight, got one here and one at a token" in reads[-1][1]

    path.write_text(json.dumps([ANN]))
    tokens.identify(header)
    assert accounts.of("ann") is accounts.usual


def test_terms_of_nobody_stop_a_server_at_its_start(tmp_path: Path) -> None:
    path = write(tmp_path, {"tokens": [ANN], "owners": {"anna": {}}})
    with pytest.raises(BadRequestError, match="got one that none has"):
        tokens_of(path)


# -- the ledger -------------------------------------------------------------------------------------------------


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


def test_the_books_go_on_after_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opbox_service.accounting.books.TICK_S", 0.01)
    books = Books(Settings(state_dir=tmp_path), Accounts(Settings()))
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
    assert [entry["action"] for entry in entries(tmp_path / "audit.log")] == ["server.started", "server.stopped"]


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


# -- the audit log ----------------------------------------------------------------------------------------------


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


def test_a_server_that_keeps_the_lock_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opbox_service.accounting.audit.LOCKED_S", 0.05)
    path = tmp_path / "audit.log"
    audit, lost = AuditLog(path), AuditLog(path)
    lock = os.open(tmp_path / ".audit.log.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    audit.note("test", "ann", number=1)
    lost.note("test", "ann", number=0)
    lost.close()
    with pytest.raises(NotReadyError, match=r"got none \(another server has had it locked for 0.05 s\)"):
        AuditLog(path)
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


# -- quotas -----------------------------------------------------------------------------------------------------


def test_worker_seconds_of_a_day() -> None:
    settings = Settings(max_owner_seconds=2, tokens=(Token(name="ann", token=SecretStr(SECRET)),))
    accounts = Accounts(settings)
    accounts.replace({"bob": OwnerTerms(worker_seconds=5)})
    books = Books(settings, accounts)
    for owner in ("ann", "bob"):
        books.usage.count(owner, worker_seconds=3.0)
    books.check_time("bob")
    with pytest.raises(QuotaError, match="worker seconds: expected at most 2 of an owner in a day, got 3") as refusal:
        books.check_time("ann")
    assert 0 < refusal.value.detail["retry_after_s"] <= 86_401
    assert seconds_to_tomorrow(NOON) == 43_200
    books.usage.close()


def test_memory_of_an_owner_is_that_of_all_workers() -> None:
    settings = Settings()
    accounts = Accounts(settings)
    accounts.replace({"ann": OwnerTerms(memory_bytes=1 << 20, sessions=4)})
    books = Books(settings, accounts)
    one, two = object(), object()
    books.take_memory(one, [("ann", "cpu", 700_000), ("bob", "cpu", 5)])
    assert books.quota("bob", two) is None
    quota = books.quota("ann", two)
    assert quota is not None
    assert (quota.sessions, quota.memory_bytes, quota.elsewhere) == (4, 1 << 20, {"cpu": 700_000})
    ledger = Ledger(1 << 30, 1 << 30)
    budget = ledger.of("ann", "cpu")
    ledger.limit("ann", quota.memory_bytes, quota.elsewhere)
    assert budget.limit == (1 << 20) - 700_000
    with pytest.raises(QuotaError, match="memory of all your sessions"):
        budget.take(400_000)
    books.forget(one)
    quota = books.quota("ann", two)
    assert quota is not None
    ledger.limit("ann", quota.memory_bytes, quota.elsewhere)
    budget.take(400_000)
    ledger.limit("ann", 0, {})
    assert budget.limit == 1 << 30
    books.usage.close()
