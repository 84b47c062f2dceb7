"""Where a server leaves its token for clients of the same user."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opbox import token_store
from tests.service.test_scratch_dirs import OWN_PIDS, needs_namespaces

URL = "http://127.0.0.1:8123"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def test_a_token_is_found_by_url(folder: Path) -> None:
    path = token_store.write(URL, "secret")
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert token_store.read("http://localhost:8123/") == "secret"
    assert token_store.read("http://127.0.0.1:8124") is None
    token_store.write(URL, "newer")
    assert token_store.read(URL) == "newer"
    token_store.remove(URL)
    assert token_store.read(URL) is None
    assert list(folder.iterdir()) == []


def test_a_server_on_every_address_is_found_on_this_one() -> None:
    token_store.write("http://0.0.0.0:8123", "secret")
    assert token_store.read(URL) == "secret"


def test_other_machines_get_nothing() -> None:
    assert token_store.write("http://gpubox:8123", "secret") is None
    token_store.write(URL, "secret")
    assert token_store.read("http://gpubox:8123") is None
    assert token_store.read("http://127.0.0.1.example.org:8123") is None
    assert token_store.read("http://127.0.0.1:port") is None


def test_a_file_that_others_may_read_is_not_trusted() -> None:
    path = token_store.write(URL, "secret")
    assert path is not None
    path.chmod(0o644)
    assert token_store.read(URL) is None


PROGRAM = """
import sys
from opbox import token_store
token_store.write(sys.argv[1], "of another server")
print(flush=True)
sys.stdin.readline() and token_store.remove(sys.argv[1])
"""


@contextmanager
def server(*before: str) -> Iterator[subprocess.Popen[str]]:
    """Another program that has written its token for the same URL."""
    command = [*before, sys.executable, "-c", PROGRAM, URL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        yield process


def test_a_server_that_has_ended_leaves_nothing_to_find() -> None:
    with server() as process:
        assert token_store.read(URL) == "of another server"
        process.kill()
        process.wait()
        assert token_store.read(URL) is None


@needs_namespaces
def test_a_server_with_process_ids_of_its_own_is_found_while_it_runs(folder: Path) -> None:
    """Its id is of no process here, or of another one."""
    with server(*OWN_PIDS) as process:
        assert token_store.read(URL) == "of another server"
        process.communicate()
    assert len(list(folder.iterdir())) == 1
    assert token_store.read(URL) is None


@needs_namespaces
def test_a_server_takes_back_its_own_token_alone(folder: Path) -> None:
    """In containers with networks of their own, servers have the same port, and may have the same process id."""
    with server(*OWN_PIDS) as first, server(*OWN_PIDS) as second:
        first.communicate("end\n")
        assert token_store.read(URL) == "of another server"
        second.communicate("end\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("pid", "token"), [("own", "x"), (0, None), (1 << 30, None), ("1", None)])
def test_a_server_of_an_older_version_is_known_by_its_process_id(folder: Path, pid: object, token: str | None) -> None:
    folder.mkdir()
    (folder / "server-8123.json").write_text(
        json.dumps({"url": URL, "token": "x", "pid": os.getpid() if pid == "own" else pid})
    )
    (folder / "server-8123.json").chmod(0o600)
    assert token_store.read(URL) == token


@pytest.mark.parametrize("text", ["", "[]", '{"token": 1, "pid": 1}', '{"token": "x", "pid": "1"}'])
def test_a_damaged_file_is_none(text: str) -> None:
    path = token_store.write(URL, "secret")
    assert path is not None
    path.write_text(text)
    assert token_store.read(URL) is None
