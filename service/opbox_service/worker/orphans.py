"""Identifies the processes of a session's code by their user, and kills those that outlive it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from opbox_protocol.errors import NotReadyError

from .processes import all_processes, is_in_container

__all__ = ["User", "adopt_strays", "end_all_of", "end_leftovers", "end_strays", "forget_orphans"]

USERS = 500
"""Number of user ids for code; as many above them serve to kill a user's processes."""
LOCKS = "/run/opbox-users"
"""Folder of the files that claim user ids, by a lock on each."""
_END_ALL = "import os, sys; user, other = map(int, sys.argv[1:]); os.setresuid(other, user, other); os.kill(-1, 9)"
_PR_SET_CHILD_SUBREAPER = 36
_turns = itertools.count(int.from_bytes(os.urandom(2), "little"))


class User:
    """A user id that is this worker's alone, among all servers of the machine, until `release`.

    The claim is a lock on a file that only root reaches, which goes with the server, however that ends. Ids are used in
    turn, so that what one leaves in the system's own places is long forgotten when another gets it.

    Args:
        first: of the ids.

    Raises:
        NotReadyError: all are taken.
    """

    def __init__(self, first: int) -> None:
        elsewhere = _users_in_containers(first)
        for _ in range(USERS):
            self.id = first + next(_turns) % USERS
            claim = _claim(self.id) if self.id not in elsewhere else None
            if claim is not None:
                self._claim = claim
                return
        raise NotReadyError(f"user ids: expected a free one from {first} to {first + USERS}, got none: try again later")

    def release(self) -> None:
        """Release the user id; no process of that user runs any more."""
        self._claim.close()


def _claim(user: int) -> contextlib.ExitStack | None:
    """Claim a user id until this is closed; None where another server has it.

    Servers of other versions, and those that cannot write to /run, know each other by an abstract socket's name. Any
    user of the machine can have one: it counts where processes of that id run, too.
    """
    claim = contextlib.ExitStack()
    try:
        locked = _lock(user, claim)
    except BlockingIOError:
        claim.close()
        return None
    name = claim.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        name.bind(f"\0opbox-user-{user}")
    except OSError:
        if not locked or any(process.user == user for process in all_processes()):
            claim.close()
            return None
    return claim


def _lock(user: int, claim: contextlib.ExitStack) -> bool:
    """Lock the file of a user id; BlockingIOError where another server has. Return False where there is no place."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(LOCKS, 0o700)
        folder = os.open(LOCKS, os.O_RDONLY | os.O_DIRECTORY | flags)
    except OSError:
        return False
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return False
        file = os.open(str(user), os.O_RDWR | os.O_CREAT | flags, 0o600, dir_fd=folder)
    except OSError:
        return False
    finally:
        os.close(folder)
    claim.callback(os.close, file)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def end_all_of(pid: int, user: int) -> bool:
    """End what a process that has ended leaves running: all of its user, or of its Unix session for user 0.

    Whether nothing is left.
    """
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for _ in range(50):
        if user:
            _end_user(user)
        left = [process.pid for process in all_processes() if not process.zombie and process.belongs_to(pid, user)]
        if not left:
            return True
        for survivor in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(survivor, signal.SIGKILL)
        time.sleep(0.01)
    return False


def _end_user(user: int) -> None:
    """End all processes of a user at one moment: one that forks and exits again and again is in no list.

    Who does it has a real user id of its own, so that none of them can end it first.
    """
    with contextlib.suppress(OSError):
        script = [_END_ALL, str(user), str(user + USERS)]
        subprocess.run([sys.executable, "-I", "-S", "-c", *script], cwd="/", check=False)


def end_leftovers(first: int) -> None:
    """End what servers that were killed have left of their users; `first` is that of the ids."""
    users = {process.user for process in all_processes() if first <= process.user < first + USERS}
    for user in users - _users_in_containers(first):
        claim = _claim(user)
        if claim is not None:
            with claim:
                end_all_of(0, user)


def _users_in_containers(first: int) -> set[int]:
    """User ids for code that processes in containers have: those are of servers whose claims nobody sees out here."""
    return {
        process.user
        for process in all_processes()
        if first <= process.user < first + USERS and is_in_container(process.pid)
    }


def adopt_strays() -> None:
    """Become the parent of what descends from this process and has lost its own: for a program that only serves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def end_strays(known: set[int], *, kill: bool) -> int:
    """See off what has become this process's child without being started by it, as in a container without an init.

    Args:
        known: processes that it has started.
        kill: end those that run, too: where code has the server's user id, and left its Unix session, nothing else
            tells whose they were.

    Returns:
        How many there were.
    """
    strays = 0
    for pid in _children() - known:
        with contextlib.suppress(OSError):
            # A child of the server's own has its Unix session; what is not confined comes from elsewhere.
            if os.getsid(pid) == os.getsid(0) or "\nNoNewPrivs:\t1" not in Path(f"/proc/{pid}/status").read_text():
                continue
            strays += 1
            if kill:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
    return strays


def forget_orphans() -> None:
    """Take note of the end of processes whose parents, workers of this server, ended first: compilers, for example.

    What this process has started itself is in its Unix session, or leads one.
    """
    for pid in _children():
        with contextlib.suppress(OSError):
            if os.getsid(pid) not in (pid, os.getsid(0)):
                os.waitpid(pid, os.WNOHANG)


def _children() -> set[int]:
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.scandir("/proc/self/task"):
            children.update(map(int, Path(task.path, "children").read_text().split()))
    return children
