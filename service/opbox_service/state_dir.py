"""Says at a server's start whether other users of the machine can change what its state directory has."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

__all__ = ["warn_of_others"]

MAX_NAMES = 5
"""Names in a line of the log."""

_log = structlog.get_logger("opbox.serve")


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
