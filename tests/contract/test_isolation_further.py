"""Code that goes on when its command is answered, holds or says too much, and leaves things; servers of all kinds."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
import opbox_ops
import opbox_protocol
import opbox_service
from tests.contract.isolation import OWN_USER, is_well, own_folders, run, settings, tells_the_line, train
from tests.contract.live import Live
from tests.contract.test_workers import wait_for

LIMITS = {
    "OPBOX_CODE_DEADLINE_S": "5",
    "OPBOX_CODE_CPU_S": "8",
    "OPBOX_CODE_DISK_BYTES": str(200 << 20),
    "OPBOX_CODE_FILES": "3000",
    "OPBOX_CODE_FILE_BYTES": str(64 << 20),
}
ENDED = '"event": "a code process ended"'
PROCESSOR_S = 250
"""Seconds within which code has had 8 of a processor, on one that ten busy programs share; pytest waits for 300."""
needs_users = pytest.mark.skipif(not OWN_USER, reason="needs root")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("process", tmp_path_factory.mktemp("isolation"), **settings(**LIMITS))
    yield live
    assert live.stop() == 0


def log_of(server: Live) -> str:
    return Path(server.log.name).read_text()


def has_ended(server: Live, session: str) -> bool:
    """Whether the log says that this session's process ended, and not that of a test before."""
    return any(ENDED in line and session in line for line in log_of(server).splitlines())


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("keyboard_interrupt", "forward: KeyboardInterrupt"),
        ("generator_exit", "forward: GeneratorExit"),
        ("base_exception", "forward: BaseException: the root of all"),
        ("system_exit", "forward: SystemExit: bye"),
        ("unspeakable", "its message cannot be had: RuntimeError in its __str__"),
        ("long_winded", "(52428800 characters)"),
        ("raise_in_init", "constructor: KeyboardInterrupt"),
        ("raise_in_infer_shape", "infer_shape: GeneratorExit"),
        ("read_the_log", "Illegal seek"),
    ],
)
def test_exceptions_of_every_kind_are_told(server: Live, what: str, words: str) -> None:
    session, answer = run(server, what)
    assert (answer.status, answer.header["type"]) == (422, "UserCodeError"), answer.header
    assert words in answer.error
    assert "mischief.py:" in answer.error
    assert len(answer.error) < 20_000
    assert session.run({"do": "fetch", "id": 1, "as": "x"}).status == 200
    session.delete()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("memory_of_children", "held more than 1073741824 bytes of memory"),
        ("memory_without_a_name", "held more than 1073741824 bytes of memory"),
        ("memory_out_of_sight", "held more than 1073741824 bytes of memory"),
        ("memory_in_sockets", "held more than 1073741824 bytes of memory"),
        ("many_files", "made more than 3000 files"),
        ("many_bytes", "held more than 209715200 bytes of files"),
        ("deleted_bytes", "held more than 209715200 bytes of files"),
        ("deep_folders", "folders too deep to count"),
        ("loop_in_list_arguments", "took longer than 5 s for one command"),
        ("close_descriptors", "let nothing else run for 5 s"),
    ],
)
def test_what_it_holds_together_is_bounded(start: Callable[..., Live], what: str, words: str) -> None:
    if what in ("memory_without_a_name", "memory_out_of_sight", "memory_in_sockets", "deleted_bytes") and not OWN_USER:
        pytest.skip("needs root to see what another process has open")
    waits = what in ("loop_in_list_arguments", "close_descriptors")
    server = start("process", **settings(**{**LIMITS, "OPBOX_CODE_DEADLINE_S": "5" if waits else "60"}))
    session, answer = run(server, what)
    assert answer.status in (422, 504), answer.header
    assert words in answer.error
    assert words in session.run({"do": "describe", "id": 1}).error
    is_well(server)
    wait_for(lambda: len(own_folders(server)) <= 1)


def test_what_children_share_with_their_parent_is_counted_once(start: Callable[..., Live]) -> None:
    if not OWN_USER:
        pytest.skip("needs root to see what processes share")
    server = start("process", **settings(**{**LIMITS, "OPBOX_CODE_DEADLINE_S": "60"}))  # 480 MB take their time
    session, answer = run(server, "children_that_share")
    assert answer.status == 200, answer.header
    session.delete()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("spin_later", "used more than 8 processor seconds"),
        ("spin_in_a_child", "used more than 8 processor seconds"),
        ("hold_the_lock_later", "let nothing else run for 5 s"),
        ("stop_later", "let nothing else run for 5 s"),
        ("segfault_later", "killed by SIGSEGV"),
    ],
)
def test_what_goes_on_after_a_command_is_ended(server: Live, what: str, words: str) -> None:
    session, answer = run(server, what)
    assert answer.status == 200, answer.header
    wait_for(lambda: has_ended(server, session.id), PROCESSOR_S)
    answer = session.run({"do": "describe", "id": 1})
    assert answer.status == 410
    assert words in answer.error
    is_well(server)


@pytest.mark.parametrize("kind", ["failed", "ready", "drop", "no such kind"])
def test_messages_that_nobody_asked_for(server: Live, kind: str) -> None:
    _, answer = run(server, "messages", kind)
    assert "wrote on the connection" in answer.error
    assert tells_the_line(answer, "messages")
    assert len(log_of(server)) < 10 << 20
    is_well(server)


# -- what it prints -------------------------------------------------------------------------------------------------


def test_what_it_prints_is_a_line_of_the_log(server: Live) -> None:
    session, answer = run(server, "print_a_line")
    assert answer.status == 200
    wait_for(lambda: "a line of its own" in log_of(server))
    (line,) = [line for line in log_of(server).splitlines() if "a line of its own" in line]
    assert line.startswith("{")
    assert r"a line of its own\"}" in line
    assert f'"session": "{session.id}"' in line
    session.delete()


def test_printing_without_an_end_fills_no_log(server: Live) -> None:
    before = len(log_of(server))
    _, answer = run(server, "print_for_ever")
    assert answer.status == 504
    wait_for(lambda: "came too fast to be logged" in log_of(server))
    assert len(log_of(server)) - before < 1 << 20


# -- what stays behind ----------------------------------------------------------------------------------------------


@needs_users
def test_no_process_outlives_its_session(server: Live) -> None:
    for what in ("fork_and_exit_for_ever", "fork_and_stay"):
        session, answer = run(server, what)
        assert answer.status == 200
        known, gone = users(server), set[int]()
        session.delete()
        # From one look: what forks and exits for ever may be missing in it, and be there again in the next.
        wait_for(lambda known=known, gone=gone: gone.update(known - users(server)) or gone)  # type: ignore[misc]  # a default is no type
        (user,) = gone
        wait_for(lambda user=user: not ids_of(user))  # type: ignore[misc]  # a default is no type
    # Not even one that has ended and that nobody asks for, for it counts as one.
    wait_for(lambda: "Z" not in states_below(server))


def users(server: Live) -> set[int]:
    uids = set()
    for pid in server.code_workers():
        with contextlib.suppress(OSError):
            uids.add(os.stat(f"/proc/{pid}").st_uid)
    return uids - {0}


def ids_of(user: int) -> list[str]:
    """Processes of a user, looked for often: one that is in no list once may be in the next."""
    folders = []
    for _ in range(50):
        for folder in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError):
                if os.stat(folder).st_uid == user and "\nState:\tZ" not in Path(folder, "status").read_text():
                    folders.append(folder)
    return folders


def states_below(server: Live) -> list[str]:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    states = []
    for pid in children:
        with contextlib.suppress(OSError):
            states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    return states


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder that any user enters and writes to, for one test's servers alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@needs_users
def test_a_killed_servers_daemons_go_with_the_next_start(start: Callable[..., Live], temporary: Path) -> None:
    """So do its folders. A link that somebody has put beside them leads nowhere, and the log says so once."""
    server = start("process", **settings(TMPDIR=str(temporary)))
    run(server, "fork_and_stay")
    known, folders = users(server), list(temporary.glob("opbox-code-*"))
    server.process.kill()
    server.process.wait()
    assert any(ids_of(user) for user in known)
    (temporary / "precious").mkdir()
    (temporary / "precious" / "diary").write_text("dear diary")
    link = temporary / f"opbox-code-{server.process.pid}-1-link"
    link.symlink_to(temporary / "precious")
    server = start("process", **settings(TMPDIR=str(temporary)))
    assert not any(ids_of(user) for user in known)
    assert folders
    assert not any(folder.exists() for folder in folders)
    assert link.is_symlink()
    assert (temporary / "precious" / "diary").exists()
    assert len([line for line in log_of(server).splitlines() if link.name in line]) == 1


def test_two_servers_take_different_users_and_folders(start: Callable[..., Live]) -> None:
    servers = [start("process", **settings(OPBOX_CODE_SPARES="3")) for _ in range(2)]
    for server in servers:
        is_well(server)
    assert not users(servers[0]) & users(servers[1])
    assert not set(own_folders(servers[0])) & set(own_folders(servers[1]))


def test_many_sessions_leave_nothing(server: Live) -> None:
    def count() -> int:
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    is_well(server)
    wait_for(lambda: len(own_folders(server)) <= 1)
    before = count()
    for _ in range(3):
        sessions = [run(server, "nothing")[0] for _ in range(5)]
        for session in sessions:
            session.delete()
    wait_for(lambda: len(own_folders(server)) <= 1 and len(server.code_workers()) <= 1)
    wait_for(lambda: count() <= before + 2)


# -- servers of all kinds -------------------------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A copy of the packages."""
    for package in (opbox_protocol, mx, opbox_ops, opbox_service):
        (folder,) = package.__path__
        shutil.copytree(folder, tmp_path / "packages" / package.__name__, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "packages"


@needs_users
@pytest.mark.parametrize("file", ["buffers.py", "worker/process.py"])
def test_packages_that_code_may_not_read_are_told_of_at_the_start(packages: Path, file: str) -> None:
    unread = packages / "opbox_service" / file
    for folder in (packages, *packages.rglob("*")):
        folder.chmod(folder.stat().st_mode | (0o055 if folder.is_dir() else 0o044))
    unread.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", "opbox_service.serve", "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("opbox serve: ")]
    assert f"may not read {unread}: make" in line
    assert "chmod -R o+rX" in line
    assert "Traceback" not in done.stderr


@needs_users
def test_code_that_stays_root_has_no_powers(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_USER="0"))
    session, _ = run(server, "nothing")
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in server.code_workers()]
    assert any("CapEff:\t0000000000000000" in status for status in statuses)  # a spare may be about to lose them
    session.delete()


# -- nobody else notices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", ["ann", "bob"])
def test_another_session_trains_on_whatever_is_done(start: Callable[..., Live], owner: str) -> None:
    """Bit for bit, while code does what none of the tests above lets it do; see test_isolation for the rest."""
    server = start("process", **settings(**LIMITS, OPBOX_CODE_SPARES="0"))
    undisturbed = train(server.session(owner, code=owner == "bob"), 20)
    done = threading.Event()
    weights: list[list[np.ndarray]] = []
    training = threading.Thread(
        target=lambda: weights.append(train(server.session(owner, code=owner == "bob"), 20, done.is_set))
    )
    training.start()
    try:
        for what in (
            "keyboard_interrupt",
            "memory_of_children",
            "memory_without_a_name",
            "many_files",
            "many_bytes",
            "print_for_ever",
            "messages",
            "spin_later",
            "fork_and_exit_for_ever",
            "stop_later",
            "close_descriptors",
        ):
            session, answer = run(server, what, "drop")
            assert answer.status in (200, 422, 504), (what, answer.header)
            session.delete()
    finally:
        done.set()
        training.join(60)
    (disturbed,) = weights
    assert len(disturbed) >= len(undisturbed)
    for before, after in zip(undisturbed, disturbed, strict=False):
        np.testing.assert_array_equal(before, after)
    assert server.metric("opbox_worker_restarts_total") == 0
