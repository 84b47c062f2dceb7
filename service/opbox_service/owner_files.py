"""Files of owners in one place, each written whole or not at all: a folder, which several servers may have."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol

from opbox_protocol.errors import NotReadyError

from .state_dir import sync_folder, write_whole

__all__ = ["FolderFiles", "OwnerFiles", "folder_name"]


class OwnerFiles(Protocol):
    """Interface of a place for owners' files. Every method raises OSError for what the system refuses."""

    def listed(self, owner: str) -> list[tuple[str, int, float]]:
        """Name, bytes and time of the last change (seconds since 1970) of an owner's files, but unfinished ones."""

    def write(self, owner: str, name: str, write: Callable[[BinaryIO], None]) -> None:
        """Write a file in place of one that has its name; it stays when this returns."""

    def copy(self, owner: str, name: str, new: str) -> None:
        """Give a file's content another name; FileExistsError where that is taken, by another server too."""

    def remove(self, owner: str, name: str) -> None:
        """Remove a file, if it is there."""

    def open(self, owner: str, name: str) -> int:
        """A descriptor for reading; FileNotFoundError where there is no such file."""


class FolderFiles:
    """OwnerFiles in a folder of this machine, or of a network's file system.

    Args:
        root: the folder.

    Raises:
        NotReadyError: it cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise NotReadyError(f"state_dir: cannot make {root}: {error.strerror}") from None

    def listed(self, owner: str) -> list[tuple[str, int, float]]:
        """See OwnerFiles."""
        rows = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._root / folder_name(owner)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if not entry.name.startswith("."):
                        rows.append((entry.name, entry.stat().st_size, entry.stat().st_mtime))
        return rows

    def write(self, owner: str, name: str, write: Callable[[BinaryIO], None]) -> None:
        """See OwnerFiles."""
        folder = self._root / folder_name(owner)
        folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(folder / name, write)

    def copy(self, owner: str, name: str, new: str) -> None:
        """See OwnerFiles."""
        folder = self._root / folder_name(owner)
        os.link(folder / name, folder / new)
        sync_folder(folder)

    def remove(self, owner: str, name: str) -> None:
        """See OwnerFiles."""
        (self._root / folder_name(owner) / name).unlink(missing_ok=True)

    def open(self, owner: str, name: str) -> int:
        """See OwnerFiles."""
        return os.open(self._root / folder_name(owner) / name, os.O_RDONLY | os.O_CLOEXEC)


def folder_name(owner: str) -> str:
    """The folder of an owner's files. An owner's name may be any text."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]
