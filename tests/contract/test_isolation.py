"""Sessions that bring code: what their code may do, and how it ends."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
import opbox_ops
import opbox_protocol
import opbox_service
from opbox_service.worker import landlock, seccomp
from tests.contract import mischief
from tests.contract.isolation import (
    KEPT_OUT,
    OWN_USER,
    SECRET,
    X,
    is_well,
    own_folders,
    run,
    server,
    settings,
    step,
    tells_the_line,
)
from tests.contract.live import Live
from tests.contract.test_workers import wait_for

__all__ = ["server"]

needs_seccomp = pytest.mark.skipif(not seccomp.available(), reason="needs a kernel with seccomp")

# -- code that ends its process -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "status", "type", "words", "cause"),
    [
        ("segfault", 422, "UserCodeError", "killed by SIGSEGV) at mischief.py:", "SIGSEGV"),
        ("segfault_in_a_thread", 422, "UserCodeError", "killed by SIGSEGV) at mischief.py:", "SIGSEGV"),
        ("native_stack", 422, "UserCodeError", "killed by SIGSEGV)", "SIGSEGV"),
        ("leave", 422, "UserCodeError", "exit status 3", "exit"),
        ("leave_well", 422, "UserCodeError", "exit status 0", "exit"),
        ("loop", 504, "DeadlineError", "took longer than 3 s for one command at mischief.py:", "deadline"),
        ("loop_with_the_lock", 504, "DeadlineError", "took longer than 3 s", "deadline"),
        ("sleep", 504, "DeadlineError", "took longer than 3 s", "deadline"),
        ("connection", 422, "UserCodeError", "wrote on the connection", "protocol"),
    ],
)
def test_code_that_ends_its_process(server: Live, what: str, status: int, type: str, words: str, cause: str) -> None:
    deaths = server.metric(f'opbox_code_deaths_total{{cause="{cause}"}}')
    bystander = server.session("bob")
    assert bystander.run(*step("nothing"), x=X).status == 200
    session, answer = run(server, what)
    assert (answer.status, answer.header["type"]) == (status, type), answer.header
    assert words in answer.error
    assert "make a new session" in answer.error
    if "mischief.py" in words:
        assert tells_the_line(answer, what), answer.header
    again = session.run({"do": "describe", "id": 1})
    assert (again.status, again.header["type"]) == (410, "GoneError")
    assert words in again.error
    assert session.delete().status == 410
    assert server.call("GET", session.path, owner="bob").status == 404
    assert server.metric(f'opbox_code_deaths_total{{cause="{cause}"}}') == deaths + 1
    is_well(server)
    untouched = bystander.run({"do": "fetch", "id": 2, "as": "y"})
    np.testing.assert_array_equal(untouched.tensors["y"], X + 1)
    bystander.delete()


@pytest.mark.parametrize("what", ["segfault", "segfault_in_a_thread", "loop"])
def test_the_line_is_told_where_the_packages_are_out_of_reach_of_the_code(tmp_path: Path, what: str) -> None:
    """As in a clone below root's home: the process opens them by descriptors, and frames carry those names."""
    for package in (opbox_protocol, mx, opbox_ops, opbox_service):
        (folder,) = package.__path__
        shutil.copytree(folder, tmp_path / "opbox" / package.__name__, ignore=shutil.ignore_patterns("__pycache__"))
    tmp_path.chmod(0o700)
    # What else is on the path has the packages of others, where those are not installed.
    path = os.pathsep.join(filter(None, (str(tmp_path / "opbox"), os.environ.get("PYTHONPATH"))))
    server = Live("process", tmp_path, **settings(PYTHONPATH=path))
    try:
        _, answer = run(server, what)
        assert tells_the_line(answer, what), answer.header
    finally:
        assert server.stop() == 0


def test_a_batch_that_nobody_waited_for_is_told_of_next(server: Live) -> None:
    session = server.session("py")
    assert session.run(*step("leave"), wait=False, x=X).status == 202
    wait_for(lambda: session.run({"do": "describe", "id": 1}).status != 200)
    answer = session.run({"do": "describe", "id": 1})
    assert answer.status == 410
    assert "exit status 3" in answer.error


def test_memory_that_others_share_is_counted(start: Callable[..., Live]) -> None:
    server = start("process", **settings(OPBOX_CODE_DEADLINE_S="120"))
    session, answer = run(server, "shared_memory")
    assert (answer.status, answer.header["type"]) == (422, "UserCodeError")
    assert "held more than 1073741824 bytes" in answer.error
    assert session.run({"do": "describe", "id": 1}).status == 410


# -- code that fails, in a process that goes on ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("memory", "Unable to allocate"),
        ("fork_bomb", "Resource temporarily unavailable"),
        ("threads", "can't start new thread"),
        ("stack", "maximum recursion depth"),
        ("files", "Too many open files"),
        ("large_file", "File too large"),
        ("importing", "No module named 'no_such_package'"),
        ("raising", "index 7 is out of bounds"),
        ("write_to_input", "writes to an input"),
    ],
)
def test_code_that_fails(server: Live, what: str, words: str) -> None:
    session, answer = run(server, what)
    assert answer.status in (422, 429), answer.header
    assert words in answer.error or words in answer.header["detail"].get("traceback", "")
    if answer.status == 422:
        assert f"in {what}" in answer.header["detail"]["traceback"]
        assert "mischief.py" in answer.header["detail"]["traceback"]
    untouched = session.run({"do": "fetch", "id": 1, "as": "x"})
    np.testing.assert_array_equal(untouched.tensors["x"], X)
    assert session.delete().status == 200
    is_well(server)


def test_what_it_forks_ends_with_its_session(server: Live) -> None:
    session, answer = run(server, "fork_and_stay")
    assert answer.status == 200
    user = owner_of(server.code_workers()[0]) if OWN_USER else None
    assert user is None or user != 0
    before = processes_of_code(server)
    assert session.delete().status == 200
    wait_for(lambda: not (processes_of_code(server) & before) - set(server.code_workers()))


def owner_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Uid:")).split()[1])


def processes_of_code(server: Live) -> set[int]:
    """All processes that run under a user of the server's code processes."""
    if not OWN_USER:
        return set()
    users = {owner_of(pid) for pid in server.code_workers()}
    ids = set()
    for folder in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):
            if owner_of(int(folder[6:])) in users:
                ids.add(int(folder[6:]))
    return ids


# -- what it sees ---------------------------------------------------------------------------------------------------


def report(server: Live, what: str, value: object = "") -> str:
    """What the operator raised."""
    session, answer = run(server, what, value)
    assert answer.status == 422, answer.header
    session.delete()
    return answer.error


def test_the_environment_has_no_secrets(server: Live) -> None:
    text = report(server, "environment")
    assert "PATH=" in text
    assert SECRET not in text
    assert "OPBOX_" not in text
    assert "secret" not in text


@KEPT_OUT
def test_code_reads_the_servers_kernels_and_compiles_none(server: Live) -> None:
    text = report(server, "kernels")
    assert f"ValueError: {os.geteuid()} False None" in text, text


@KEPT_OUT
def test_what_is_not_its_own_is_out_of_reach(server: Live, tmp_path: Path) -> None:
    other = server.session("bob")
    shown = other.run(*step("folder"), x=X)
    folder = shown.error.partition("folder ")[2].split()[0]
    assert os.path.dirname(folder) in own_folders(server)
    mine = Path(folder, "mine.txt")
    assert mine.read_text() == "private"
    for what, value in (
        ("read", mine),
        ("read", f"/proc/{server.process.pid}/environ"),
        ("environment_of", server.process.pid),
        ("environment_of", other_worker(server)),
        ("write", Path(folder, "yours.txt")),
        ("write", tmp_path / "new.txt"),
        ("write", mischief.__file__),
        ("write", "/dev/shm/opbox-test"),
    ):
        assert "Permission denied" in report(server, what, value), (what, value)
    assert other.delete().status == 200
    wait_for(lambda: not os.path.exists(folder))


def other_worker(server: Live) -> int:
    return server.workers()[0]


@pytest.mark.skipif(not OWN_USER and landlock.abi() < 6, reason="needs root, or a kernel that keeps signals in")
def test_it_cannot_signal_the_server(server: Live) -> None:
    for pid in (server.process.pid, other_worker(server)):
        assert "Operation not permitted" in report(server, "kill", pid)


@pytest.mark.skipif(not OWN_USER and landlock.abi() < 4, reason="needs root, or a kernel that keeps TCP in")
def test_it_has_no_network(server: Live) -> None:
    text = report(server, "connect", server.url.removeprefix("http://"))
    assert any(words in text for words in ("Permission denied", "Network is unreachable", "Connection refused"))


@needs_seccomp
def test_no_system_call_leads_out_of_it(server: Live) -> None:
    """Not to sockets that let everybody in, nor to what else the kernel shares among processes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "socket")
        with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            for end, name in ((stream, path), (datagrams, f"{path}.datagrams")):
                end.bind(name)
                os.chmod(name, 0o777)
            stream.listen()
            text = report(server, "reach", f"{path} {server.url.rpartition(':')[2]}")
    assert "reached []" in text


@needs_seccomp
def test_memory_cannot_be_in_flight(server: Live) -> None:
    assert "Operation not permitted" in report(server, "memory_in_flight")


def test_its_descriptors_are_its_own(server: Live) -> None:
    text = report(server, "descriptors")
    assert str(server.folder) not in text.replace(server.log.name, "")
    assert text.count("socket:") == 1


@pytest.mark.skipif(not OWN_USER, reason="needs root")
def test_each_process_has_a_user_of_its_own(server: Live) -> None:
    sessions = [server.session("py", code=True) for _ in range(2)]
    # A spare that is only starting is still root; what runs code has taken on its user before it reads any.
    wait_for(lambda: all(owner_of(pid) != 0 for pid in server.code_workers()))
    users = [owner_of(pid) for pid in server.code_workers()]
    assert len(users) >= len(sessions)
    assert len(set(users)) == len(users)
    for session in sessions:
        session.delete()
