"""Private folders in a temporary folder that strangers write to: links and folders of theirs are left alone."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from opbox_service.worker import scratch_dirs
from opbox_service.worker.scratch_dirs import TOO_MUCH, make_dir, remove, remove_leftovers, size_of, started

STRANGER = 12_345
LONG_AGO = 1 << 40
"""A start time that no process has."""
MANY = """
import os, sys, tempfile
from opbox_service.worker.scratch_dirs import make_dir, remove, remove_leftovers
tempfile.tempdir = sys.argv[1]
count = 0
for _ in range(300):
    folder = make_dir(0)
    remove_leftovers()
    count += os.path.isdir(folder)
    remove(folder)
print(count)
"""
OWN_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def can_unshare_pids() -> bool:
    try:
        return subprocess.run([*OWN_PIDS, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder as everybody has it, which any user enters."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o1777)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def leftover(temporary: Path, number: int = 1) -> Path:
    """A folder as a killed server leaves it."""
    folder = temporary / f"{scratch_dirs.PREFIX}{number}-{LONG_AGO}-{'0' * 32}"
    (folder / "files" / "below").mkdir(parents=True, mode=0o755)
    (folder / "files" / "below" / "file").write_text("x")
    folder.chmod(0o711)
    return folder


def test_a_folder_is_the_processs_alone(temporary: Path) -> None:
    user = STRANGER if os.geteuid() == 0 else 0
    folder = Path(make_dir(user))
    outer, own = os.lstat(folder.parent), os.lstat(folder)
    assert (outer.st_uid, stat.S_IMODE(outer.st_mode)) == (os.geteuid(), 0o711 if user else 0o700)
    assert (own.st_uid, stat.S_IMODE(own.st_mode)) == (user or os.geteuid(), 0o700)
    assert folder.parent.name.startswith(f"opbox-code-{os.getpid()}-{started(os.getpid())}-")
    assert folder.parent.name != Path(make_dir(user)).parent.name
    remove(str(folder))
    assert not folder.parent.exists()


def test_a_folder_goes_however_deep_it_is(tmp_path: Path) -> None:
    top = tmp_path / "outer" / "files"
    top.mkdir(parents=True)
    (top / "file").write_text("x")
    (top / "link").symlink_to(tmp_path)
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.chmod(here, 0)
    os.close(here)
    assert size_of(str(top), 10_000)[1] == TOO_MUCH
    remove(str(top))
    assert os.listdir(tmp_path) == []


def test_what_killed_servers_leave_is_removed_and_running_ones_keep_theirs(temporary: Path) -> None:
    folder, running = leftover(temporary), make_dir(0)
    with capture_logs() as logs:
        remove_leftovers()
    assert not folder.exists()
    assert os.path.isdir(running)
    assert logs == []


NEIGHBOUR = """
import sys, tempfile
from opbox_service.worker.scratch_dirs import make_dir, remove, remove_leftovers
tempfile.tempdir = sys.argv[1]
remove_leftovers()
folder = make_dir(0)
print(folder, flush=True)
if sys.stdin.readline():
    remove(folder)
"""
needs_namespaces = pytest.mark.skipif(not can_unshare_pids(), reason="needs root, to have PID namespaces")


@needs_namespaces
def test_servers_in_pid_namespaces_of_their_own_keep_each_others_folders(temporary: Path) -> None:
    """As in two containers of one user: each has process ids that mean nothing to the other."""
    command = [*OWN_PIDS, sys.executable, "-c", NEIGHBOUR, str(temporary)]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(4)
        ]
        folders = [Path(server.stdout.readline().strip()) for server in servers]  # type: ignore[union-attr]
        mine = Path(make_dir(0))
        remove_leftovers()
        assert all(folder.is_dir() for folder in (*folders, mine))
        servers[0].communicate("end\n")
        servers[1].communicate()  # which leaves its folder, as one that is killed
        assert [folder.is_dir() for folder in folders] == [False, True, True, True]
        remove_leftovers()
        assert [folder.is_dir() for folder in folders] == [False, False, True, True]
        for server in servers[2:]:
            server.communicate("end\n")
    remove(str(mine))
    assert list(temporary.iterdir()) == []


@needs_namespaces
def test_many_that_start_at_once_have_their_folders(temporary: Path) -> None:
    """Others remove what looks like a killed server's meanwhile: a folder that is not locked yet does."""
    command = [*OWN_PIDS, sys.executable, "-c", MANY, str(temporary)]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [program.communicate()[0] for program in programs] == ["300\n"] * 3


def test_links_of_strangers_lead_nowhere(temporary: Path, tmp_path: Path) -> None:
    """A link that is named like a killed server's folder, and links within such a folder."""
    precious = tmp_path / "precious"
    (precious / "files").mkdir(parents=True)
    (precious / "files" / "diary").write_text("x")
    links = [temporary / f"{scratch_dirs.PREFIX}{number}-{LONG_AGO}-{'f' * 32}" for number in range(7)]
    for link in links:
        link.symlink_to(precious)
    folder = leftover(temporary)
    (folder / "files" / "link").symlink_to(precious)
    (folder / "link").symlink_to(precious)
    with capture_logs() as logs:
        remove_leftovers()
    assert all(link.is_symlink() for link in links)
    assert (precious / "files" / "diary").read_text() == "x"
    assert not folder.exists()
    assert [(line["log_level"], line["count"], len(line["names"])) for line in logs] == [("warning", 7, 5)]


@needs_root
def test_folders_of_strangers_stay(temporary: Path) -> None:
    folders = [leftover(temporary, number) for number in (1, 2, 3)]
    os.chown(folders[0], STRANGER, STRANGER)
    folders[1].chmod(0o777)
    with capture_logs() as logs:
        remove_leftovers()
    assert [folder.exists() for folder in folders] == [True, True, False]
    assert (folders[0] / "files" / "below" / "file").exists()
    assert [line["count"] for line in logs] == [2]


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    """As code of the server's own user can replace it where the kernel has no Landlock."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "diary").write_text("x" * 100_000)
    folder = Path(make_dir(0))
    folder.rmdir()
    folder.symlink_to(precious)
    assert size_of(str(folder), 100) == (0, TOO_MUCH)
    remove(str(folder))
    assert (precious / "diary").exists()
    assert not folder.parent.exists()


def test_sizes_count_what_is_there_and_no_links(tmp_path: Path) -> None:
    top = tmp_path / "outer" / "files"
    (top / "folder").mkdir(parents=True)
    (top / "folder" / "file").write_bytes(b"x" * 100_000)
    (top / "link").symlink_to("/usr")
    size, count = size_of(str(top), 10_000)
    assert count == 3
    assert 100_000 <= size < 200_000
    assert size_of(str(top), 1)[1] == 2
    assert size_of(str(tmp_path / "gone"), 1) == (0, 0)
