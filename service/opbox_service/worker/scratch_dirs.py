"""The private folder of each code process: created, measured, and removed with its content.

    opbox-code-PID-START-RANDOM/    the server's: others enter it, and neither list it nor put anything there
        files/                      the code process's own

The server has a lock on the outer folder for as long as it runs, by which others know it from a killed server's:
process ids say nothing where servers have PID namespaces of their own, as in containers.

The temporary folder is everybody's: who puts a link there, or a folder with such a name, is left alone. Nothing here
follows a link, not even one that takes a folder's place while this looks: folders are opened by their parent's
descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

import structlog

__all__ = ["make_dir", "remove", "remove_leftovers", "size_of", "started"]

PREFIX = "opbox-code-"
OWN = "files"
TOO_MUCH = 1 << 62
"""File count of a folder that cannot be counted."""
MAX_DEPTH = 128
"""Folders within one another that are counted; each is open meanwhile."""
MAX_NAMES = 5
"""Names of strangers' entries in a line of the log."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(rf"{PREFIX}(\d+)-(\d+)-\w+")

_log = structlog.get_logger("opbox.code")
_locks: dict[str, int] = {}
"""Descriptors of this server's folders, with a lock on each, by the paths of `make_dir`."""


def make_dir(user: int) -> str:
    """A private folder: a user's, or the server's own for user 0.

    Its name has the server's process id and when that started, by which servers of older versions know whose it is.
    Nobody guesses the rest.
    """
    outer, fd = _locked_dir()
    try:
        os.mkdir(OWN, 0o700, dir_fd=fd)
        if user:
            os.fchmod(fd, 0o711)
            os.chown(OWN, user, user, dir_fd=fd, follow_symlinks=False)
    except BaseException:
        os.close(fd)
        raise
    folder = os.path.join(outer, OWN)
    _locks[folder] = fd
    return folder


def _locked_dir() -> tuple[str, int]:
    """Make an outer folder, and lock it until its descriptor is closed."""
    pid = os.getpid()
    while True:
        outer = os.path.join(_base(), f"{PREFIX}{pid}-{started(pid)}-{secrets.token_hex(16)}")
        os.mkdir(outer, 0o700)
        # Until it is locked it looks like what a killed server left, and another server that starts may remove it.
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(outer, _FOLDER)
            try:
                if _lock(fd) and os.path.samestat(os.fstat(fd), os.lstat(outer)):
                    return outer, os.dup(fd)
            finally:
                os.close(fd)


def _lock(fd: int) -> bool:
    """Lock a folder; False where another server has. On a disk without locks none has."""
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def started(pid: int) -> int:
    """Return the start time of a process, in ticks since the machine's start; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def remove_leftovers() -> None:
    """Remove the folders of servers that were killed, and log in one line what only looks like that."""
    strangers = []
    base = os.open(_base(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(base):
            match = _NAME.fullmatch(name)
            # The folders of servers of older versions are not locked.
            if match is None or started(int(match[1])) == int(match[2]):
                continue
            try:
                if not _is_ours(os.stat(name, dir_fd=base, follow_symlinks=False)):
                    strangers.append(name)
                    continue
                fd = os.open(name, _FOLDER, dir_fd=base)
                try:
                    if _lock(fd):
                        _remove(base, name)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                pass  # its server has removed it, or another one
            except OSError as error:
                _log.error("a killed server's folder cannot be removed", folder=name, reason=str(error))
    finally:
        os.close(base)
    if strangers:
        _log.warning(
            "entries of the temporary folder are named like a server's folders and are not this user's: they stay",
            folder=_base(),
            count=len(strangers),
            names=sorted(strangers)[:MAX_NAMES],
        )


def _is_ours(status: os.stat_result) -> bool:
    """Return whether this is a folder of the server's user, to which nobody else writes."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def remove(folder: str) -> None:
    """Remove a folder of `make_dir` with all that is in it. The processes that wrote to it must have ended."""
    outer, _ = os.path.split(folder)
    base, name = os.path.split(outer)
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove(fd, name)
    finally:
        os.close(fd)
        locked = _locks.pop(folder, None)
        if locked is not None:
            os.close(locked)


def _remove(base: int, name: str) -> None:
    """Remove a folder with all that is in it, whatever the modes and however deep: nothing here recurses.

    What is deeper is moved up, one folder at a time.
    """
    with contextlib.suppress(FileNotFoundError):
        top = _opened(name, base)
        try:
            while folders := _emptied(top, top):
                for folder in folders:
                    inner = _opened(folder, top)
                    try:
                        _emptied(inner, top)
                    finally:
                        os.close(inner)
                    os.rmdir(folder, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=base)


def _emptied(folder: int, top: int) -> list[str]:
    """Remove the files of a folder, and move its folders to `top`; return their names there."""
    moved = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _unlock(entry.name, folder)  # only the owner of one that may be written to moves it
                moved.append(secrets.token_hex(8))
                os.rename(entry.name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return moved


def _opened(name: str, parent: int) -> int:
    _unlock(name, parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _unlock(name: str, parent: int) -> None:
    """Let the owner of a folder do everything in it; root needs no modes."""
    if os.geteuid() == 0:
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def size_of(folder: str, most: int) -> tuple[int, int]:
    """Return the bytes on the disk below a folder, and the number of files and folders, counted up to `most`."""
    size = count = 0
    levels: list[tuple[int, list[str]]] = []

    def enter(fd: int) -> None:
        nonlocal size, count
        names: list[str] = []
        levels.append((fd, names))
        with os.scandir(fd) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                if count > most:
                    return

    try:
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return 0, 0
    except OSError:  # code has put something else there
        return 0, TOO_MUCH
    try:
        enter(top)
        while levels and count <= most:
            fd, names = levels[-1]
            if not names:
                os.close(fd)
                levels.pop()
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                inner = os.open(names.pop(), _FOLDER, dir_fd=fd)
                if len(levels) >= MAX_DEPTH:
                    os.close(inner)
                    return size, TOO_MUCH
                enter(inner)
    finally:
        for fd, _ in levels:
            os.close(fd)
    return size, count


def _base() -> str:
    """Return the parent of the private folders: any user must be able to enter it."""
    usual = tempfile.gettempdir()
    through = all(path.stat().st_mode & 0o001 for path in (Path(usual), *Path(usual).parents))
    return usual if through else "/tmp"
