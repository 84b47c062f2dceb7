"""What a code process has to itself, and how nothing of it stays behind: its user, its folder, what it started."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from opbox_ops.errors import NotReadyError

__all__ = ["User", "end_all_of", "make_folder", "remove", "remove_leftovers"]

PREFIX = "opbox-code-"
USERS = 1000
"""User ids to choose from."""


class User:
    """A user id that is this worker's alone, among all servers of the machine, until `release`.

    The claim is an abstract socket's name, which goes with the server, however that ends.

    Args:
        first: where to begin looking.

    Raises:
        NotReadyError: all are taken.
    """

    def __init__(self, first: int) -> None:
        for self.id in range(first, first + USERS):
            self._claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                self._claim.bind(f"\0opbox-user-{self.id}")
            except OSError:
                self._claim.close()
            else:
                return
        raise NotReadyError(f"user ids: expected a free one from {first} to {first + USERS}, got none: try again later")

    def release(self) -> None:
        """Give it back; nothing of that user runs any more."""
        self._claim.close()


def make_folder(user: User | None) -> str:
    """A private folder, which is the user's."""
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_base())
    if user is not None:
        os.chown(folder, user.id, user.id)
    return folder


def end_all_of(pid: int, user: int) -> None:
    """End what a process that has ended leaves running: all of its user, or of its Unix session for user 0."""
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for _ in range(50):
        left = _left_by(pid, user)
        if not left:
            return
        for each in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.01)


def remove_leftovers() -> None:
    """Remove the folders of servers that were killed."""
    for folder in glob.glob(os.path.join(_base(), f"{PREFIX}*-*")):
        pid = os.path.basename(folder).removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            remove(folder)


def remove(folder: str) -> None:
    """A folder with all that is in it, whatever its modes are."""

    def again(function: Callable[[str], object], path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
            function(path)

    shutil.rmtree(folder, onerror=again)
    if os.path.isdir(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _base() -> str:
    """Where private folders are made: any user must get through to it."""
    usual = tempfile.gettempdir()
    through = all(path.stat().st_mode & 0o001 for path in (Path(usual), *Path(usual).parents))
    return usual if through else "/tmp"


def _left_by(pid: int, user: int) -> list[int]:
    """Processes of a user that is one session's alone, or of its Unix session."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        each = int(folder.rpartition("/")[2])
        try:
            if user:
                told = Path(folder, "status").read_text()
                mine = f"\nUid:\t{user}\t" in told and "\nState:\tZ" not in told
            else:
                mine = os.getsid(each) == pid
        except OSError:
            continue
        if mine and each != os.getpid():
            found.append(each)
    return found
