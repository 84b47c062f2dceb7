"""User ids for code: one server's alone, whatever other users of the machine claim; and state directories of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from opbox_protocol.errors import NotReadyError
from opbox_service.state_dir import warn_of_others
from opbox_service.worker.orphans import USERS, User, end_leftovers
from tests.service.test_scratch_dirs import OWN_PIDS, needs_namespaces

FIRST = 81_000
"""Ids from here on are no server's of this machine."""
STRANGER = 12_345
SQUATTER = """
import os, socket, sys
first, number, user = map(int, sys.argv[1:])
os.setuid(user)
claims = []
for id in range(first, first + number):
    claims.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    claims[-1].bind(f"\\0opbox-user-{id}")
print("claimed", flush=True)
sys.stdin.read()
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")


@needs_root
def test_names_that_a_stranger_claims_keep_no_server_from_its_users() -> None:
    arguments = [str(FIRST), str(USERS), str(STRANGER)]
    squatter = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", SQUATTER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    )
    assert squatter.stdout is not None
    assert squatter.stdout.readline() == b"claimed\n"
    try:
        users = [User(FIRST) for _ in range(3)]
        assert len({user.id for user in users}) == 3
        for user in users:
            user.release()
    finally:
        squatter.communicate()


@needs_root
def test_an_id_is_free_again_when_it_is_released() -> None:
    """All are taken in turn, so that one that is taken meanwhile is left out."""
    base = FIRST + 2 * USERS
    first = User(base)
    others = [User(base) for _ in range(USERS - 1)]
    assert len({first.id, *(user.id for user in others)}) == USERS
    first.release()
    again = User(base)
    assert again.id == first.id
    for user in (again, *others):
        user.release()


CONTAINED = """
import os, sys, time
os.setuid(int(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


@needs_namespaces
def test_users_of_code_in_containers_are_left_alone() -> None:
    """A server there has claimed them where nobody sees it: in a /run and a network of its own."""
    base = FIRST + 4 * USERS
    command = [*OWN_PIDS, sys.executable, "-I", "-S", "-c", CONTAINED, str(base + 7)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as contained:
        assert contained.stdout is not None
        assert contained.stdout.readline() == b"\n"
        end_leftovers(base)
        users = [User(base) for _ in range(USERS - 1)]
        assert base + 7 not in {user.id for user in users}
        with pytest.raises(NotReadyError):
            User(base)
        for user in users:
            user.release()
        assert contained.poll() is None
        contained.communicate()
        assert contained.returncode == 0


def test_a_state_directory_of_ones_own_is_no_news(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with capture_logs() as logs:
        warn_of_others(tmp_path)
    assert logs == []


def test_a_state_directory_that_everybody_writes_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with capture_logs() as logs:
        warn_of_others(tmp_path)
    assert ["chmod o-w" in line["event"] for line in logs] == [True]


@needs_root
def test_an_entry_of_another_user_in_the_state_directory(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    os.chown(tmp_path / "checkpoints", STRANGER, STRANGER)
    with capture_logs() as logs:
        warn_of_others(tmp_path)
    assert [line["names"] for line in logs] == [["checkpoints"]]
