"""Replacing what a state directory has by other state: all of it, or nothing if that stops midway.

Who calls this has the directory's lock alone (`state_format`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from .state_dir import sync_folder

__all__ = ["has_leftovers", "incoming_folder", "interrupted", "remove_leftovers", "swap_in", "undo_swap"]

LEAVING, LEFT = ".leaving", ".left"
"""Folders for the old state: while its entries go there, and when all have."""
INCOMING, OLD = ".incoming-", ".old-"
"""Begin the names of folders of new state that is not there yet, and of old state that is gone."""


def incoming_folder(folder: Path) -> Path:
    """Make a folder for new state, on the same disk."""
    path = folder / f"{INCOMING}{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    return path


def swap_in(folder: Path, incoming: Path) -> None:
    """Put the entries of a folder in place of the state, which goes.

    Args:
        folder: the state directory.
        incoming: the folder with the new state, made by `incoming_folder`. It goes too.

    Raises:
        OSError: the system refuses; then the old state is there again.
    """
    try:
        (folder / LEAVING).mkdir(mode=0o700)
        _move(folder, folder / LEAVING)
        (folder / LEAVING).rename(folder / LEFT)
        sync_folder(folder)
        _move(incoming, folder)
        sync_folder(folder)
        (folder / LEFT).rename(folder / f"{OLD}{secrets.token_hex(8)}")  # from here on the new state is there
    except BaseException:
        undo_swap(folder)
        raise
    sync_folder(folder)
    remove_leftovers(folder)


def interrupted(folder: Path) -> bool:
    """Return whether a swap stopped midway."""
    return (folder / LEAVING).exists() or (folder / LEFT).exists()


def has_leftovers(folder: Path) -> bool:
    """Return whether there is new state that never came, or old state that is gone. Unreadable folders have none."""
    with contextlib.suppress(OSError):
        return any(name.startswith((INCOMING, OLD)) for name in os.listdir(folder))
    return False


def undo_swap(folder: Path) -> bool:
    """Put the old state back where a swap stopped midway; return whether one did. It may stop midway itself."""
    if not interrupted(folder):
        return False
    if (folder / LEFT).exists():
        _move(folder, incoming_folder(folder))
        (folder / LEFT).rename(folder / LEAVING)
        sync_folder(folder)
    _move(folder / LEAVING, folder)
    sync_folder(folder)
    (folder / LEAVING).rmdir()
    remove_leftovers(folder)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove new state that never came, and old state that is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith((INCOMING, OLD)):
                shutil.rmtree(folder / name, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Move every entry of the state from a folder to another; those that begin with a dot are none."""
    for name in sorted(os.listdir(source)):
        if not name.startswith("."):
            (source / name).rename(target / name)
