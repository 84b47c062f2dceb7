"""The private folder of each code process: created, measured, and removed with its content."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import tempfile
from pathlib import Path

__all__ = ["make_dir", "remove", "remove_leftovers", "size_of", "started"]

PREFIX = "opbox-code-"
TOO_MUCH = 1 << 62
"""File count of a folder that cannot be read."""


def make_dir(user: int) -> str:
    """A private folder: a user's, or the server's own for user 0.

    Its name has the server's process id and when that started: in a container every server has the same id.
    """
    pid = os.getpid()
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{pid}-{started(pid)}-", dir=_base())
    if user:
        os.chown(folder, user, user)
    return folder


def started(pid: int) -> int:
    """Return the start time of a process, in ticks since the machine's start; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def remove_leftovers() -> None:
    """Remove the folders of servers that were killed."""
    for folder in glob.glob(os.path.join(_base(), f"{PREFIX}*-*-*")):
        pid, start = os.path.basename(folder).removeprefix(PREFIX).split("-")[:2]
        if pid.isdigit() and start.isdigit() and started(int(pid)) != int(start):
            remove(folder)


def remove(folder: str) -> None:
    """A folder with all that is in it, whatever the modes and however deep: nothing here recurses or holds files open.

    What lies deeper is moved up, one folder at a time. The processes that wrote to it must have ended.
    """
    with contextlib.suppress(FileNotFoundError):
        while left := _emptied(folder, folder):
            for path in left:
                _emptied(path, folder)
                os.rmdir(path)
        os.rmdir(folder)


def _emptied(folder: str, top: str) -> list[str]:
    """Remove the files of a folder, and move its folders to `top`; where those are now."""
    modes = os.geteuid() != 0  # root needs none
    if modes:
        os.chmod(folder, 0o700)
    moved = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                if modes:
                    os.chmod(entry.path, 0o700)  # only the owner of one that may be written to moves it
                moved.append(os.path.join(top, secrets.token_hex(8)))
                os.rename(entry.path, moved[-1])
            else:
                os.unlink(entry.path)
    return moved


def size_of(folder: str, most: int) -> tuple[int, int]:
    """Return the bytes on the disk below a folder, and the number of files and folders, counted up to `most`."""
    size, count, folders = 0, 0, [folder]
    while folders and count <= most:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    with contextlib.suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except OSError:
            return size, TOO_MUCH  # deeper than a path may be long
    return size, count


def _base() -> str:
    """Return the parent of the private folders: any user must be able to enter it."""
    usual = tempfile.gettempdir()
    through = all(path.stat().st_mode & 0o001 for path in (Path(usual), *Path(usual).parents))
    return usual if through else "/tmp"
