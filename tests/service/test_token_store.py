"""Where a server leaves its token for clients of the same user."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from opbox import token_store

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


def test_a_server_that_has_ended_leaves_nothing_to_find() -> None:
    path = token_store.write(URL, "secret")
    assert path is not None
    child = os.fork() if hasattr(os, "fork") else 0
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": child}))
    assert token_store.read(URL) is None


@pytest.mark.parametrize("text", ["", "[]", '{"token": 1, "pid": 1}', '{"token": "x", "pid": "1"}'])
def test_a_damaged_file_is_none(text: str) -> None:
    path = token_store.write(URL, "secret")
    assert path is not None
    path.write_text(text)
    assert token_store.read(URL) is None
