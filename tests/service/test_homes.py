"""Servers and commands where the home folder is missing, not writable, or another user's: they say so and go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from opbox_ops.backend.kernel_cache import kernel_folders
from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.rtc import building
from opbox_protocol.errors import DeniedFileError
from opbox_protocol.own_folders import check_own, make_own

STRANGER = 12_345
NOWHERE = "/proc/1/none"
"""A path below which nobody makes a folder, root neither."""
PLACES = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "OPBOX_RUNTIME_DIR", "OPBOX_CACHE_DIR")
UNKNOWN = ("unshare", "--user", "--map-user=4242", "--map-group=4242")
"""Runs a program as a user without a line in /etc/passwd."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


def can_be_unknown() -> bool:
    try:
        return subprocess.run([*UNKNOWN, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_namespaces = pytest.mark.skipif(not can_be_unknown(), reason="needs user namespaces, to be an unknown user")


def environment(**places: str) -> dict[str, str]:
    usual = {name: text for name, text in os.environ.items() if not name.startswith("OPBOX_") and name not in PLACES}
    return {**usual, **places}


@contextmanager
def server(variables: Mapping[str, str], *before: str) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """The URL and the token that a server prints, and its log when it has ended."""
    command = [*before, sys.executable, "-m", "opbox_service.serve", "--port", "0", "--isolation", "none"]
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(
        command, env=dict(variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            announced = [process.stdout.readline().split() for _ in range(3)]
            assert all(announced), process.stderr.read()
            yield announced[0][-1], announced[1][-1], lines
        finally:
            process.terminate()
            lines += map(json.loads, process.communicate()[1].splitlines())
    assert process.returncode == 0


def goes_on(variables: Mapping[str, str], *before: str) -> str:
    """Use a server, and look for its token as a client; the one sentence that its log warns with."""
    with server(variables, *before) as (url, token, log):
        answer = httpx.get(f"{url}/v1/ops", headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200
        command = [*before, sys.executable, "-m", "opbox.cli", "status"]
        done = subprocess.run(command, env={**variables, "OPBOX_URL": url}, capture_output=True, text=True, check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert "token: expected " in done.stderr
    assert "Traceback" not in json.dumps(log)
    (warning,) = (line["event"] for line in log if line["level"] != "info" and "token" in line["event"])
    return str(warning)


@pytest.mark.parametrize("name", ["HOME", "XDG_RUNTIME_DIR"])
@pytest.mark.parametrize("place", [NOWHERE, "/dev/null"])
def test_a_server_without_a_place_for_its_token_goes_on(name: str, place: str) -> None:
    warning = goes_on(environment(**{"HOME": "/", name: place}))
    assert warning.startswith(f"the token is printed and not stored: {place}/")
    assert "expected a place that can be written to, got " in warning
    assert warning.endswith(": set OPBOX_RUNTIME_DIR, or OPBOX_TOKEN for clients")


@needs_root
@pytest.mark.parametrize("name", ["HOME", "XDG_RUNTIME_DIR"])
def test_root_makes_no_folder_in_another_users_place(name: str, tmp_path: Path) -> None:
    os.chown(tmp_path, STRANGER, STRANGER)
    warning = goes_on(environment(**{"HOME": str(tmp_path), name: str(tmp_path)}))
    assert f"expected a place of this user's, got one of user {STRANGER}'s" in warning
    assert list(tmp_path.iterdir()) == []


@needs_namespaces
def test_a_user_of_whom_nothing_is_known_has_a_server() -> None:
    warning = goes_on(environment(), *UNKNOWN)
    assert "home folder: expected one of this user's, got none (HOME names it)" in warning


@needs_namespaces
def test_a_path_with_a_tilde_is_refused_where_there_is_no_home() -> None:
    command = [*UNKNOWN, sys.executable, "-m", "opbox_service.serve", "--state-dir", "~/state"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stderr == (
        "opbox serve: state_dir: expected a path without ~, as nothing says what this user's home folder is, got "
        "'~/state'\n"
    )


def test_a_named_folder_is_made(tmp_path: Path) -> None:
    with server(environment(HOME=NOWHERE, OPBOX_RUNTIME_DIR=str(tmp_path / "a" / "b"))) as (_, _, log):
        assert [path.suffix for path in (tmp_path / "a" / "b").iterdir()] == [".json"]
    assert not [line for line in log if "token" in line["event"]]


@pytest.fixture
def without_a_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*PLACES, "CUPY_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", NOWHERE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("without_a_home")
def test_compiled_kernels_are_in_the_temporary_folder(tmp_path: Path) -> None:
    own = tmp_path / f"opbox-{os.geteuid()}"
    assert c_compiler.cache_folder() == own / "kernels"
    assert kernel_folders() == [own / "cupy"]
    assert building._default_cache.__wrapped__().parent == tmp_path


@needs_root
@pytest.mark.usefixtures("without_a_home")
def test_roots_kernels_are_not_in_another_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = tmp_path / "ann"
    ann.mkdir()
    os.chown(ann, STRANGER, STRANGER)
    monkeypatch.setenv("HOME", str(ann))
    own = tmp_path / "opbox-0"
    assert c_compiler.cache_folder() == own / "kernels"
    assert kernel_folders() == [own / "cupy"]
    assert building._default_cache.__wrapped__().parent == tmp_path
    with pytest.raises(DeniedFileError, match=r"/ann/x/y: expected a place of this user's, got one of user 12345's"):
        make_own(ann / "x" / "y")
    check_own(ann / "x" / "y", named=True)
    assert list(ann.iterdir()) == []


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    make_own(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    make_own(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "file/below", "link/below"):
        with pytest.raises(DeniedFileError, match="expected a place that can be written to, got "):
            make_own(tmp_path / name)
