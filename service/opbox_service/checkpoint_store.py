"""Checkpoints on disk: files of owners in a folder, written whole or not at all, within quotas.

checkpoints/
  0f3c…/                    an owner, by the hash of the name
    run.checkpoint          a checkpoint
    long@3.checkpoint       one that a third session has gone on from

Several servers may have the folder. A session that goes on from a checkpoint gives it the next generation, in one step
of the file system: the session before it, whose server may only have been out of reach, cannot save it any more.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol, TypeAlias, TypeVar

import numpy as np

from opbox_protocol.errors import ConflictError, NotFoundError, NotReadyError, StorageError, UnsupportedError

from .accounting.accounts import Accounts
from .owner_files import FolderFiles, OwnerFiles
from .owner_locks import OwnerLocks
from .owner_terms import LARGER_QUOTA
from .sealed_files import pieces_of
from .settings import Settings
from .stored_objects import StoredObjects

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
TRIES = 100
"""How often to look for a checkpoint again that other servers take at the same time."""
FILE_NAME = re.compile(rf"({CHECKPOINT_NAME})(?:@([1-9]\d{{0,15}}))?\.checkpoint")
Buffer: TypeAlias = "bytes | memoryview"
S = TypeVar("S")


class CheckpointStore(Protocol):
    """Interface of a checkpoint store: a folder, or the process that writes to it."""

    def save(self, owner: str, name: str, parts: Sequence[Buffer], generation: int | None = None) -> int:
        """Write a checkpoint, replacing one of the same name; it is on disk when this returns.

        Args:
            owner, name: whose it is, and its name.
            parts: its bytes.
            generation: as which the session saved it before, or took it; None the first time.

        Returns:
            Its generation.

        Raises:
            ConflictError: another session goes on from it.
            StorageError: the owner has too many, or too many bytes of them; or the disk is full.
        """

    def load(self, owner: str, name: str) -> Buffer:
        """A checkpoint's bytes; NotFoundError when the owner has none of this name."""

    def take(self, owner: str, name: str) -> tuple[Buffer, int]:
        """As `load`, to go on from it: whoever saved it before cannot any more. The bytes, and its generation now."""


def check_available(store: S | None) -> S:
    """Return the store; raise UnsupportedError without one."""
    if store is None:
        raise UnsupportedError(
            "checkpoint: expected a server with a directory for them, got one without: set OPBOX_STATE_DIR, "
            "or OPBOX_STORE_URL in a cluster"
        )
    return store


def store_of(settings: Settings, accounts: Accounts | None = None) -> FileCheckpoints | None:
    """The store in the settings' state directory, with the quotas of accounts; None where they name none."""
    return None if not settings.keeps_checkpoints else FileCheckpoints(settings, accounts or Accounts(settings))


class OwnersCheckpoints:
    """The checkpoints of one owner in a store.

    Args:
        store: of all.
        owner: whose.
    """

    def __init__(self, store: CheckpointStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    def save(self, name: str, parts: Sequence[Buffer], generation: int | None = None) -> int:
        """See CheckpointStore."""
        return self._store.save(self._owner, name, parts, generation)

    def load(self, name: str) -> Buffer:
        """See CheckpointStore."""
        return self._store.load(self._owner, name)

    def take(self, name: str) -> tuple[Buffer, int]:
        """See CheckpointStore."""
        return self._store.take(self._owner, name)


class FileCheckpoints:
    """A CheckpointStore of files. Several servers may share them, as at a rolling restart or in a cluster.

    Args:
        settings: where they are.
        accounts: the quotas.

    Raises:
        NotReadyError: the place for them cannot be made.
        BadRequestError: there is no package for such a store.
    """

    def __init__(self, settings: Settings, accounts: Accounts) -> None:
        self._accounts = accounts
        self._locks = OwnerLocks()
        self._files: OwnerFiles
        if settings.objects_url is not None:
            self._files = StoredObjects(f"{settings.objects_url}/checkpoints")
        else:
            assert settings.store_dir is not None
            self._files = FolderFiles(settings.store_dir / "checkpoints")

    def save(self, owner: str, name: str, parts: Sequence[Buffer], generation: int | None = None) -> int:
        """See CheckpointStore."""

        def write(file: BinaryIO) -> None:
            for part in parts:
                file.write(part)

        return self._save(owner, name, sum(len(part) for part in parts), write, generation)

    def save_file(
        self,
        owner: str,
        name: str,
        fd: int,
        size: int,
        go_on: Callable[[], None] = lambda: None,
        generation: int | None = None,
    ) -> int:
        """As `save`, from a file of another process's.

        Args:
            owner, name, generation: see `save`.
            fd: of the file.
            size: how many of its bytes to save.
            go_on: called often; raises an exception to stop.
        """

        def write(file: BinaryIO) -> None:
            for piece in pieces_of(fd, 0, size, go_on):
                file.write(piece)

        return self._save(owner, name, size, write, generation)

    def _save(self, owner: str, name: str, size: int, write: Callable[[BinaryIO], None], generation: int | None) -> int:
        name = _checked(name)
        with self._locks.of(owner):
            try:
                newest = max(self._generations(owner, name), default=generation or 0)
                generation = newest if generation is None else generation
                _check_newest(name, generation, newest)
                self._check_quota(owner, name, size)
                self._files.write(owner, _file_name(name, generation), write)
                # Another server's session may have gone on from it meanwhile.
                there = self._generations(owner, name)
                for older in there:
                    if older < max(there):
                        self._files.remove(owner, _file_name(name, older))
                _check_newest(name, generation, max(there, default=generation))
            except OSError as error:
                raise StorageError(
                    f"checkpoint {name!r}: cannot be written ({error.strerror or error}): the last one stays"
                ) from None
        return generation

    def used(self, owner: str) -> int:
        """Bytes of an owner's checkpoints."""
        return sum(size for _, size, _ in self.listed(owner))

    def _check_quota(self, owner: str, name: str, size: int) -> None:
        others = [nbytes for other, nbytes, _ in self.listed(owner) if other != name]
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
        used = sum(others)
        if used + size > most_bytes:
            raise StorageError(
                f"checkpoint {name!r}: expected at most {most_bytes} bytes of an owner's, got {used} and {size} more: "
                "delete one (DELETE /v1/checkpoints/{name}), or save fewer arrays"
            )

    def load(self, owner: str, name: str) -> Buffer:
        """See CheckpointStore."""
        with open(self.open(owner, name), "rb") as file:
            return np.fromfile(file, np.uint8).data

    def take(self, owner: str, name: str) -> tuple[Buffer, int]:
        """See CheckpointStore."""
        fd, generation = self.open_to_go_on(owner, name)
        with open(fd, "rb") as file:
            return np.fromfile(file, np.uint8).data, generation

    def open(self, owner: str, name: str) -> int:
        """A descriptor of a checkpoint's file, for reading; NotFoundError when there is none."""
        return self._opened(owner, name, takes=False)[0]

    def open_to_go_on(self, owner: str, name: str) -> tuple[int, int]:
        """As `open`, in the place of whoever saved it before: the descriptor, and the checkpoint's generation now."""
        return self._opened(owner, name, takes=True)

    def _opened(self, owner: str, name: str, *, takes: bool) -> tuple[int, int]:
        name = _checked(name)
        for _ in range(TRIES):
            generation = max(self._generations(owner, name), default=None)
            if generation is None:
                break
            # Other servers may do the same meanwhile: one of them alone makes a generation, and the rest look again.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                file = _file_name(name, generation)
                if takes:
                    generation += 1
                    before, file = file, _file_name(name, generation)
                    self._files.copy(owner, before, file)
                    self._files.remove(owner, before)
                return self._files.open(owner, file), generation
        raise _absent(name)

    def listed(self, owner: str) -> list[tuple[str, int, float]]:
        """The owner's checkpoints: name, bytes, and when it was saved, in seconds since 1970; by name."""
        rows: dict[str, tuple[int, int, float]] = {}
        for file, size, saved in self._rows(owner):
            parts = FILE_NAME.fullmatch(file)
            if parts is not None:
                row = int(parts[2] or 0), size, saved
                rows[parts[1]] = max(row, rows.get(parts[1], row))
        return sorted((name, size, saved) for name, (_, size, saved) in rows.items())

    def delete(self, owner: str, name: str) -> None:
        """Remove a checkpoint; NotFoundError when there is none."""
        generations = self._generations(owner, _checked(name))
        if not generations:
            raise _absent(name)
        for generation in generations:
            self._files.remove(owner, _file_name(name, generation))

    def _generations(self, owner: str, name: str) -> list[int]:
        """The generations of a checkpoint that are there: one, or for a moment two."""
        files = [FILE_NAME.fullmatch(file) for file, _, _ in self._rows(owner)]
        return [int(parts[2] or 0) for parts in files if parts is not None and parts[1] == name]

    def _rows(self, owner: str) -> list[tuple[str, int, float]]:
        try:
            return self._files.listed(owner)
        except OSError as error:
            raise NotReadyError(f"checkpoints: cannot be read ({error.strerror or error}): try again later") from None


def _file_name(name: str, generation: int) -> str:
    """The file of a checkpoint's generation; the first has no number."""
    return name + (f"@{generation}" if generation else "") + ENDING


def _check_newest(name: str, generation: int, newest: int) -> None:
    """Raise ConflictError where another session goes on from the checkpoint."""
    if newest > generation:
        raise ConflictError(
            f"checkpoint {name!r}: expected this session to be the last that goes on from it, got one that restored it "
            "later, perhaps on another server: end this program, or save under another name"
        )


def _checked(name: str) -> str:
    """The name, which becomes a file's; NotFoundError for one that no checkpoint can have."""
    if not re.fullmatch(CHECKPOINT_NAME, name):
        raise _absent(name)
    return name


def _absent(name: str) -> NotFoundError:
    return NotFoundError(f"checkpoint {name[:64]!r}: expected one of yours (GET /v1/checkpoints), got an unknown name")
