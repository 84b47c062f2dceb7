"""Datasets on disk: blocks of rows by their hash, and named datasets made of them; of owners, within quotas.

A block is a file whose name is the SHA-256 of its bytes. It is kept for as long as somebody uses it, and for a time to
live after that; a named dataset keeps its blocks until it is deleted. Without a state directory the files are in a
temporary folder, which goes with the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from opbox_protocol.errors import BadRequestError, MXNetError, NotFoundError, StorageError

from .accounting.accounts import Accounts
from .dataset_documents import BLOCK_NAME, DatasetDocument, check_blocks
from .owner_locks import OwnerLocks
from .owner_terms import LARGER_QUOTA
from .sealed_files import pieces_of
from .settings import Settings
from .state_dir import StateFolder
from .validation import validate

__all__ = [
    "BLOCK_NAME",
    "DATASET_NAME",
    "DatasetArray",
    "DatasetRow",
    "DatasetStore",
    "FileDatasets",
    "NamedDataset",
    "OwnersDatasets",
    "absent",
    "datasets_of",
]

DATASET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MAX_NAMED = 1000
"""Maximum number of named datasets of an owner."""
MEAN_BLOCK_BYTES, SPARE_BLOCKS = 1 << 16, 1000
"""An owner may have one block for so many bytes of the quota, but at least so many: small files fill a disk too."""
MAX_KEPT = 4096
"""Maximum number of blocks that one request keeps; more are left out."""
EXPIRY_S = 60.0
"""Maximum seconds between two looks for blocks that nobody used for longer than their time to live."""
DRAFT_S = 3600.0
"""Age in seconds from which an unfinished file is a crashed server's."""
Buffer: TypeAlias = "bytes | memoryview"


@dataclass(frozen=True, slots=True)
class DatasetArray:
    """An array of a named dataset.

    Attributes:
        shape, dtype: of the whole array, whose first axis are its rows.
        block_rows: rows of a block; the last block has the rest.
        blocks: names of the blocks, in order.
    """

    shape: Sequence[int]
    dtype: str
    block_rows: int
    blocks: Sequence[str]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        nbytes = np.dtype(self.dtype).itemsize
        for length in self.shape:
            nbytes *= length
        return nbytes


@dataclass(frozen=True, slots=True)
class NamedDataset:
    """A named dataset: arrays by name, and whether other owners may read it."""

    arrays: Mapping[str, DatasetArray]
    published: bool = False
    owner: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is written to disk and sent to workers."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> NamedDataset:
        """The dataset that `to_json` wrote; BadRequestError for a document that it did not."""
        read = validate(DatasetDocument, document)
        check_blocks(read.arrays)
        arrays = {
            name: DatasetArray(array.shape, array.dtype, array.block_rows, array.blocks)
            for name, array in read.arrays.items()
        }
        return cls(arrays, read.published, read.owner)


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A dataset as it is listed.

    Attributes:
        name, owner: its name, and whose it is.
        saved: when, in seconds since 1970.
        dataset: its arrays.
    """

    name: str
    owner: str
    saved: float
    dataset: NamedDataset = field(repr=False)


class DatasetStore(Protocol):
    """Interface of a store of datasets: the state directory, or the process that has it."""

    def missing(self, owner: str, blocks: Sequence[str]) -> list[int]:
        """Positions in `blocks` of those that the owner's store lacks; the others count as used now."""

    def keep(self, owner: str, blocks: Sequence[Buffer]) -> None:
        """Save blocks under their hashes, now or soon. What the quota has no space for is left out."""

    def put(self, owner: str, block: str, data: Buffer) -> None:
        """Save a block; it is there when this returns.

        Raises:
            BadRequestError: the bytes have another hash.
            StorageError: the owner's quota, or the disk, is full.
        """

    def load(self, owner: str, block: str) -> Buffer:
        """A block's bytes; NotFoundError if the owner's store lacks it."""

    def find(self, owner: str, reference: str) -> NamedDataset:
        """The dataset "name" of the owner's, or a published one, "owner/name"; NotFoundError if there is none."""

    def save(self, owner: str, name: str, dataset: NamedDataset) -> None:
        """Save a dataset under a name, in place of one that has it.

        Raises:
            NotFoundError: a block is not in the owner's store.
            StorageError: the owner has too many, or the disk is full.
        """


def datasets_of(settings: Settings, accounts: Accounts | None = None) -> FileDatasets:
    """The store in the settings' state directory or in a temporary folder, with the quotas of accounts."""
    return FileDatasets(settings, accounts or Accounts(settings))


class OwnersDatasets:
    """The datasets of one owner in a store.

    Args:
        store: of all.
        owner: whose.
    """

    def __init__(self, store: DatasetStore, owner: str) -> None:
        self._store = store
        self._owner = owner

    def missing(self, blocks: Sequence[str]) -> list[int]:
        """See DatasetStore."""
        return self._store.missing(self._owner, blocks)

    def keep(self, blocks: Sequence[Buffer]) -> None:
        """See DatasetStore."""
        self._store.keep(self._owner, blocks)

    def load(self, block: str, of: str | None = None) -> Buffer:
        """See DatasetStore; `of` is the owner of a published dataset."""
        return self._store.load(of or self._owner, block)

    def find(self, reference: str) -> NamedDataset:
        """See DatasetStore."""
        return self._store.find(self._owner, reference)


class FileDatasets:
    """A DatasetStore of files. Several servers may share the directory, as at a rolling restart.

    Args:
        settings: the state directory, and the time to live of blocks.
        accounts: the quotas.
    """

    def __init__(self, settings: Settings, accounts: Accounts) -> None:
        self._accounts = accounts
        self._ttl_s = settings.dataset_ttl_s
        self._folders = StateFolder(settings.store_dir, "datasets")
        self._lock = threading.RLock()
        self._locks = OwnerLocks()
        self._looked = 0.0

    # -- blocks ---------------------------------------------------------------------------------------------------

    def missing(self, owner: str, blocks: Sequence[str]) -> list[int]:
        """See DatasetStore."""
        self._expire()
        folder = self._folder(owner) / "blocks"
        absent = []
        for position, block in enumerate(blocks):
            try:
                os.utime(folder / _checked_block(block))
            except OSError:
                absent.append(position)
        return absent

    def keep(self, owner: str, blocks: Sequence[Buffer]) -> None:
        """See DatasetStore."""
        for data in blocks:
            self._keep(owner, len(data), partial(iter, [data]))

    def keep_file(
        self, owner: str, fd: int, size: int, block_size: int, go_on: Callable[[], None] = lambda: None
    ) -> None:
        """As `keep`, from a file of another process's.

        Args:
            owner: see `keep`.
            fd: of the file.
            size: bytes of it, block behind block.
            block_size: bytes of a block; the last may have fewer.
            go_on: called often; raises an exception to stop.
        """
        for begin in range(0, size, block_size)[:MAX_KEPT]:
            end = min(begin + block_size, size)
            self._keep(owner, end - begin, partial(pieces_of, fd, begin, end, go_on))

    def _keep(self, owner: str, size: int, read: Callable[[], Iterable[Buffer]]) -> None:
        with contextlib.suppress(StorageError):
            self._put(owner, _digest(read()), size, read)

    def put(self, owner: str, block: str, data: Buffer) -> None:
        """See DatasetStore."""
        self._put_checked(owner, block, len(data), partial(iter, [data]))

    def put_file(self, owner: str, block: str, fd: int, size: int, go_on: Callable[[], None] = lambda: None) -> None:
        """As `put`, from the first `size` bytes of a file of another process's; `go_on` as of `keep_file`."""
        self._put_checked(owner, block, size, partial(pieces_of, fd, 0, size, go_on))

    def _put_checked(self, owner: str, block: str, size: int, read: Callable[[], Iterable[Buffer]]) -> None:
        _checked_block(block)
        if _digest(read()) != block:
            raise BadRequestError(
                f"block {block[:12]}…: expected bytes whose SHA-256 is the block's name, got {size} others"
            )
        self._put(owner, block, size, read)

    def _put(self, owner: str, block: str, size: int, read: Callable[[], Iterable[Buffer]]) -> None:
        if not self.missing(owner, [block]):
            return
        folder = self._folder(owner) / "blocks"
        try:
            with self._locks.of(owner):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._make_space(owner, folder, size)
            _write(folder, block, read(), sync=self._folders.stays)
        except OSError as error:
            raise StorageError(f"block {block[:12]}…: cannot be written ({error.strerror})") from None

    def load(self, owner: str, block: str) -> Buffer:
        """See DatasetStore."""
        with open(self.open(owner, block), "rb") as file:
            return np.fromfile(file, np.uint8).data

    def open(self, owner: str, block: str) -> int:
        """A descriptor of a block's file, for reading; NotFoundError when there is none. It counts as used now."""
        path = self._folder(owner) / "blocks" / _checked_block(block)
        try:
            os.utime(path)
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise NotFoundError(
                f"block {block[:12]}…: expected one in your store, got an unknown or expired one: send it again"
            ) from None

    def used(self, owner: str) -> int:
        """Bytes of an owner's blocks, those of named datasets included."""
        if self._folders.is_empty:
            return 0
        return sum(size for _, size, _ in _files(self._folder(owner) / "blocks"))

    def _make_space(self, owner: str, folder: Path, size: int) -> None:
        """Remove blocks of no named dataset, the longest unused first, until the quota has space for `size` bytes."""
        quota = self._accounts.of(owner).dataset_bytes
        if not quota:
            raise StorageError(f"datasets: expected none, as your quota is 0 bytes, got a block: {LARGER_QUOTA}")
        files = _files(folder)
        excess = sum(nbytes for _, nbytes, _ in files) + size - quota
        too_many = len(files) + 1 - max(SPARE_BLOCKS, quota // MEAN_BLOCK_BYTES)
        if excess <= 0 and too_many <= 0:
            return
        pinned = self._pinned(owner)
        free = sorted((used, name, nbytes) for name, nbytes, used in files if name not in pinned)
        if excess > sum(nbytes for _, _, nbytes in free) or too_many > len(free):
            raise StorageError(
                f"datasets: expected at most {quota} bytes of an owner's, got {size} more beside the named ones: "
                "delete one (DELETE /v1/datasets/{name}), or " + LARGER_QUOTA
            )
        for _, name, nbytes in free:
            if excess <= 0 and too_many <= 0:
                break
            (folder / name).unlink(missing_ok=True)
            excess -= nbytes
            too_many -= 1

    def _expire(self) -> None:
        """Remove what nobody used for its time to live, once in a while."""
        now = time.time()
        with self._lock:
            if now - self._looked < min(EXPIRY_S, self._ttl_s / 100):
                return
            self._looked = now
            with contextlib.suppress(OSError):
                for folder in self._folders.path.iterdir():
                    self._expire_in(folder, now)

    def _expire_in(self, folder: Path, now: float) -> None:
        pinned: set[str] | None = None
        for name, _, used in _files(folder / "blocks"):
            if now - used < (DRAFT_S if name.startswith(".") else self._ttl_s):
                continue
            pinned = self._pinned_in(folder) if pinned is None else pinned
            if name not in pinned:
                (folder / "blocks" / name).unlink(missing_ok=True)

    # -- named datasets -------------------------------------------------------------------------------------------

    def save(self, owner: str, name: str, dataset: NamedDataset) -> None:
        """See DatasetStore."""
        folder = self._folder(owner) / "named"
        with self._locks.of(owner):
            for array_name, array in dataset.arrays.items():
                absent = self.missing(owner, array.blocks)
                if absent:
                    raise NotFoundError(
                        f"dataset {name!r}: array {array_name[:64]!r}: expected its blocks in your store, got "
                        f"{len(absent)} of {len(array.blocks)} missing: send them first (PUT /v1/blocks/{{sha256}})"
                    )
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                names = {file for file, _, _ in _files(folder)}
                if f"{name}.json" not in names and len(names) >= MAX_NAMED:
                    raise StorageError(
                        f"dataset {name!r}: expected at most {MAX_NAMED} of an owner, got one more: delete one "
                        "(DELETE /v1/datasets/{name})"
                    )
                document = {**dataset.to_json(), "owner": owner}
                _write(folder, f"{_checked_name(name)}.json", [json.dumps(document).encode()])
            except OSError as error:
                raise StorageError(f"dataset {name!r}: cannot be written ({error.strerror})") from None

    def find(self, owner: str, reference: str) -> NamedDataset:
        """See DatasetStore."""
        other, _, name = reference.rpartition("/")
        with contextlib.suppress(OSError, ValueError, MXNetError):
            dataset = _read(self._folder(other or owner) / "named" / f"{_checked_name(name)}.json")
            if not other or other == owner or dataset.published:
                return replace(dataset, owner=other or owner)
        raise absent(reference)

    def listed(self, owner: str) -> list[DatasetRow]:
        """The owner's datasets and those that others have published, the owner's first, by name."""
        rows = []
        with contextlib.suppress(OSError):
            for folder in self._folders.path.iterdir():
                for file, _, saved in _files(folder / "named"):
                    with contextlib.suppress(OSError, ValueError, MXNetError):
                        dataset = _read(folder / "named" / file)
                        if dataset.owner == owner or dataset.published:
                            rows.append(DatasetRow(file.removesuffix(".json"), dataset.owner, saved, dataset))
        return sorted(rows, key=lambda row: (row.owner != owner, row.owner, row.name))

    def delete(self, owner: str, name: str) -> None:
        """Remove a dataset's name; its blocks stay for their time to live. NotFoundError when there is none."""
        try:
            (self._folder(owner) / "named" / f"{_checked_name(name)}.json").unlink()
        except OSError:
            raise absent(name) from None

    def _pinned(self, owner: str) -> set[str]:
        return self._pinned_in(self._folder(owner))

    @staticmethod
    def _pinned_in(folder: Path) -> set[str]:
        """Names of the blocks that named datasets in an owner's folder have."""
        pinned: set[str] = set()
        for file, _, _ in _files(folder / "named"):
            with contextlib.suppress(OSError, ValueError, MXNetError):
                for array in _read(folder / "named" / file).arrays.values():
                    pinned.update(array.blocks)
        return pinned

    def _folder(self, owner: str) -> Path:
        # An owner's name may be any text.
        return self._folders.path / hashlib.sha256(owner.encode()).hexdigest()[:32]


def _files(folder: Path) -> list[tuple[str, int, float]]:
    """Name, bytes and time of the last use of the files in a folder; none where there is no folder."""
    rows = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                rows.append((entry.name, status.st_size, status.st_mtime))
    return rows


def _digest(pieces: Iterable[Buffer]) -> str:
    """The SHA-256 of bytes that come in pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _write(folder: Path, name: str, pieces: Iterable[Buffer], *, sync: bool = True) -> None:
    """Write a file whole or not at all, with `sync` also if the machine stops meanwhile."""
    draft = folder / f".{name}.{secrets.token_hex(4)}"
    try:
        with draft.open("xb") as file:
            for piece in pieces:
                file.write(piece)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(folder / name)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _read(path: Path) -> NamedDataset:
    """The dataset in a file; ValueError or BadRequestError when there is another thing in it."""
    try:
        return NamedDataset.from_json(json.loads(path.read_bytes()))
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None


def _checked_block(block: str) -> str:
    if not re.fullmatch(BLOCK_NAME, block):
        raise BadRequestError(f"block {block[:80]!r}: expected the SHA-256 of its bytes, 64 digits of 0-9 and a-f")
    return block


def _checked_name(name: str) -> str:
    """The name, which becomes a file's; NotFoundError for one that no dataset can have."""
    if not re.fullmatch(DATASET_NAME, name):
        raise absent(name)
    return name


def absent(name: str) -> NotFoundError:
    """The error for a name that no dataset of the owner's has."""
    return NotFoundError(
        f"dataset {name[:200]!r}: expected one of yours, or a published one as owner/name (GET /v1/datasets), got an "
        "unknown name"
    )
