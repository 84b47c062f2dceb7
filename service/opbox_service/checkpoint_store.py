"""Checkpoints on disk: files of owners in the state directory, written whole or not at all, within quotas."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias, TypeVar

import numpy as np

from opbox_protocol.errors import NotFoundError, NotReadyError, StorageError, UnsupportedError

from .accounting.accounts import Accounts
from .owner_locks import OwnerLocks
from .owner_terms import LARGER_QUOTA
from .sealed_files import pieces_of
from .settings import Settings
from .state_dir import sync_folder

__all__ = [
    "CHECKPOINT_NAME",
    "Buffer",
    "CheckpointStore",
    "FileCheckpoints",
    "OwnersCheckpoints",
    "check_available",
    "store_of",
]

CHECKPOINT_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ENDING = ".checkpoint"
Buffer: TypeAlias = "bytes | memoryview"
S = TypeVar("S")


class CheckpointStore(Protocol):
    """Interface of a checkpoint store: the state directory, or the process that writes to it."""

    def save(self, owner: str, name: str, parts: Sequence[Buffer]) -> None:
        """Write a checkpoint, replacing one of the same name; it is on disk when this returns.

        Raises:
            StorageError: the owner has too many, or too many bytes of them; or the disk is full.
        """

    def load(self, owner: str, name: str) -> Buffer:
        """A checkpoint's bytes; NotFoundError when the owner has none of this name."""


def check_available(store: S | None) -> S:
    """Return the store; raise UnsupportedError without one."""
    if store is None:
        raise UnsupportedError(
            "checkpoint: expected a server with a directory for them, got one without: set OPBOX_STATE_DIR"
        )
    return store


def store_of(settings: Settings, accounts: Accounts | None = None) -> FileCheckpoints | None:
    """The store in the settings' state directory, with the quotas of accounts; None where they name none."""
    return None if settings.state_dir is None else FileCheckpoints(settings, accounts or Accounts(settings))


class OwnersCheckpoints:
    """The checkpoints of one owner in a store.

    Args:
        store: of all.
        owner: whose.
    """

    def __init__(self, store: CheckpointStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    def save(self, name: str, parts: Sequence[Buffer]) -> None:
        """See CheckpointStore."""
        self._store.save(self._owner, name, parts)

    def load(self, name: str) -> Buffer:
        """See CheckpointStore."""
        return self._store.load(self._owner, name)


class FileCheckpoints:
    """A CheckpointStore of files. Several servers may share the directory, as at a rolling restart.

    Args:
        settings: the state directory.
        accounts: the quotas.

    Raises:
        NotReadyError: the directory cannot be made.
    """

    def __init__(self, settings: Settings, accounts: Accounts) -> None:
        assert settings.state_dir is not None
        self._accounts = accounts
        self._root = settings.state_dir / "checkpoints"
        self._locks = OwnerLocks()
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise NotReadyError(f"state_dir: cannot make {self._root}: {error.strerror}") from None

    def save(self, owner: str, name: str, parts: Sequence[Buffer]) -> None:
        """See CheckpointStore."""

        def write(file: BinaryIO) -> None:
            for part in parts:
                file.write(part)

        self._save(owner, name, sum(len(part) for part in parts), write)

    def save_file(self, owner: str, name: str, fd: int, size: int, go_on: Callable[[], None] = lambda: None) -> None:
        """As `save`, from a file of another process's.

        Args:
            owner, name: see `save`.
            fd: of the file.
            size: how many of its bytes to save.
            go_on: called often; raises an exception to stop.
        """

        def write(file: BinaryIO) -> None:
            for piece in pieces_of(fd, 0, size, go_on):
                file.write(piece)

        self._save(owner, name, size, write)

    def _save(self, owner: str, name: str, size: int, write: Callable[[BinaryIO], None]) -> None:
        folder = self._folder(owner)
        target = folder / (_checked(name) + ENDING)
        with self._locks.of(owner):
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                self._check_quota(owner, folder, target, name, size)
                draft = folder / f".{name}.{secrets.token_hex(4)}"
                try:
                    with draft.open("xb") as file:
                        write(file)
                        file.flush()
                        os.fsync(file.fileno())
                    draft.replace(target)
                    sync_folder(folder)
                except BaseException:
                    draft.unlink(missing_ok=True)
                    raise
            except OSError as error:
                raise StorageError(
                    f"checkpoint {name!r}: cannot be written ({error.strerror}): the last one stays"
                ) from None

    def used(self, owner: str) -> int:
        """Bytes of an owner's checkpoints."""
        return sum(size for _, size, _ in self.listed(owner))

    def _check_quota(self, owner: str, folder: Path, target: Path, name: str, size: int) -> None:
        others = [path for path in folder.iterdir() if path.suffix == ENDING and path != target]
        account = self._accounts.of(owner)
        most, most_bytes = account.checkpoints, account.checkpoint_bytes
        if not most:
            raise StorageError(
                f"checkpoint {name!r}: expected none, as your quota is 0, got one: save the session's arrays with the "
                f"client (mx.nd.save), or {LARGER_QUOTA}"
            )
        if len(others) >= most:
            raise StorageError(
                f"checkpoint {name!r}: expected at most {most} of an owner, got one more: delete one "
                "(DELETE /v1/checkpoints/{name})"
            )
        used = sum(path.stat().st_size for path in others)
        if used + size > most_bytes:
            raise StorageError(
                f"checkpoint {name!r}: expected at most {most_bytes} bytes of an owner's, got {used} and {size} more: "
                "delete one (DELETE /v1/checkpoints/{name}), or save fewer arrays"
            )

    def load(self, owner: str, name: str) -> Buffer:
        """See CheckpointStore."""
        with open(self.open(owner, name), "rb") as file:
            return np.fromfile(file, np.uint8).data

    def open(self, owner: str, name: str) -> int:
        """A descriptor of a checkpoint's file, for reading; NotFoundError when there is none."""
        try:
            return os.open(self._folder(owner) / (_checked(name) + ENDING), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise _absent(name) from None

    def listed(self, owner: str) -> list[tuple[str, int, float]]:
        """The owner's checkpoints: name, bytes, and when it was saved, in seconds since 1970; by name."""
        rows = []
        with contextlib.suppress(FileNotFoundError):
            for path in self._folder(owner).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    if path.suffix == ENDING:
                        rows.append((path.name.removesuffix(ENDING), status.st_size, status.st_mtime))
        return sorted(rows)

    def delete(self, owner: str, name: str) -> None:
        """Remove a checkpoint; NotFoundError when there is none."""
        try:
            (self._folder(owner) / (_checked(name) + ENDING)).unlink()
        except OSError:
            raise _absent(name) from None

    def _folder(self, owner: str) -> Path:
        # An owner's name may be any text.
        return self._root / hashlib.sha256(owner.encode()).hexdigest()[:32]


def _checked(name: str) -> str:
    """The name, which becomes a file's; NotFoundError for one that no checkpoint can have."""
    if not re.fullmatch(CHECKPOINT_NAME, name):
        raise _absent(name)
    return name


def _absent(name: str) -> NotFoundError:
    return NotFoundError(f"checkpoint {name[:64]!r}: expected one of yours (GET /v1/checkpoints), got an unknown name")
