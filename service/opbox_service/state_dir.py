"""The state directory: its folders, how they reach the disk, and whether other users of the machine can change it."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import structlog

from opbox_protocol.errors import NotReadyError

__all__ = ["StateFolder", "sync_folder", "warn_of_others", "write_whole"]

MAX_NAMES = 5
"""Names in a line of the log."""

_log = structlog.get_logger("opbox.serve")


class StateFolder:
    """A folder of the state directory; without one a temporary folder, which goes with the process.

    Args:
        state_dir: the state directory, or None.
        name: of the folder, and what it has, for errors.
    """

    def __init__(self, state_dir: Path | None, name: str) -> None:
        self._state_dir = state_dir
        self._name = name
        self._path: Path | None = None
        self._lock = threading.Lock()

    @property
    def stays(self) -> bool:
        """True if it outlives the process."""
        return self._state_dir is not None

    @property
    def is_empty(self) -> bool:
        """True if nothing can be in it."""
        return self._path is None and self._state_dir is None

    @property
    def path(self) -> Path:
        """The folder, made when it is needed first.

        Raises:
            NotReadyError: it cannot be made.
        """
        with self._lock:
            if self._path is None:
                try:
                    if self._state_dir is None:
                        path = Path(tempfile.mkdtemp(prefix=f"opbox-{self._name}-"))
                        weakref.finalize(self, _remove, path, os.getpid())
                    else:
                        path = self._state_dir / self._name
                        path.mkdir(mode=0o700, parents=True, exist_ok=True)
                except OSError as error:
                    place = self._state_dir or "a temporary folder"
                    raise NotReadyError(f"{self._name}: cannot make {place}: {error.strerror}") from None
                self._path = path
            return self._path


def _remove(folder: Path, process: int) -> None:
    """Remove a temporary folder at the end of the process that made it, not of one that it forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def warn_of_others(folder: Path) -> None:
    """Log a warning where others can write to the directory, or where it or an entry of it belongs to another user.

    The server goes on: the directory is its administrator's choice.
    """
    status = folder.stat()
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        _log.warning(
            "every user of the machine can replace what the state directory has: chmod o-w it", path=str(folder)
        )
    trusted = {os.geteuid(), 0}
    foreign = [entry.name for entry in os.scandir(folder) if entry.stat(follow_symlinks=False).st_uid not in trusted]
    if status.st_uid not in trusted:
        foreign.append(".")
    if foreign:
        _log.warning(
            "the state directory, or an entry of it, belongs to another user than the server's, who can replace it",
            path=str(folder),
            names=sorted(foreign)[:MAX_NAMES],
            user=os.geteuid(),
        )


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file and flush it to disk, so that its name has the whole of it or what was there before.

    Args:
        path: of the file, in a folder that is there.
        write: writes the content; what it raises is passed on.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
