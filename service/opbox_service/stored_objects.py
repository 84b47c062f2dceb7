"""StoredObjects: files of owners in an object store that several servers share, by fsspec."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from opbox_protocol.errors import BadRequestError, NotReadyError

from .owner_files import folder_name
from .sealed_files import write_sealed

__all__ = ["ObjectRow", "StoredObjects"]

BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}
"""Stores whose objects are in buckets, and in no folders."""


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """What a listing says of an object.

    Attributes:
        name: without its folder.
        size: bytes.
        changed: when it was written, in seconds since 1970.
        stamp: another text whenever it has been written anew.
    """

    name: str
    size: int
    changed: float
    stamp: str


class StoredObjects:
    """OwnerFiles in an object store. An object is there when it is whole, and replaced whole.

    Args:
        url: of the folder of them, such as "s3://bucket/opbox/checkpoints".

    Raises:
        BadRequestError: fsspec, or its package for such a store, is not installed.
        NotReadyError: the store cannot be had.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs

            # Servers change the store beside each other: no listing may be an old one.
            self._store, self._root = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise BadRequestError(
                f"OPBOX_STORE_URL: expected a store for which fsspec and its package are installed, got {url!r} "
                f"({error}): pip install 'opbox-service[cluster]', and s3fs for s3, gcsfs for gs, adlfs for abfs"
            ) from None
        except Exception as error:
            raise NotReadyError(f"OPBOX_STORE_URL: {url}: cannot be had: {error}") from None

    def listed(self, owner: str) -> list[tuple[str, int, float]]:
        """See OwnerFiles."""
        return [(row.name, row.size, row.changed) for row in self.rows(owner)]

    def write(self, owner: str, name: str, write: Callable[[BinaryIO], None]) -> None:
        """See OwnerFiles."""
        buffer = io.BytesIO()
        write(buffer)
        with _as_os_errors():
            self._pipe(self._path(owner, name), buffer.getvalue(), "overwrite")

    def copy(self, owner: str, name: str, new: str) -> None:
        """See OwnerFiles."""
        with _as_os_errors():
            content = self._store.cat_file(self._path(owner, name))
            self._store.pipe_file(self._path(owner, new), content, mode="create")

    def remove(self, owner: str, name: str) -> None:
        """See OwnerFiles."""
        with _as_os_errors(), contextlib.suppress(FileNotFoundError):
            self._store.rm_file(self._path(owner, name))

    def open(self, owner: str, name: str) -> int:
        """See OwnerFiles; the file is in memory."""
        with _as_os_errors():
            fd = write_sealed("opbox-object", [self._store.cat_file(self._path(owner, name))])
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def create(self, owner: str, name: str, content: bytes) -> None:
        """Write a new object; FileExistsError where there is one of this name, by another server too."""
        with _as_os_errors():
            self._pipe(self._path(owner, name), content, "create")

    def read(self, owner: str, name: str) -> bytes:
        """An object's bytes; FileNotFoundError where there is no such object."""
        return self.read_in(folder_name(owner), name)

    def mark(self, name: str, content: bytes) -> None:
        """Write an object of no owner's."""
        with _as_os_errors():
            self._pipe(f"{self._root}/{name}", content, "overwrite")

    def is_marked(self, name: str) -> bool:
        """Return whether there is such an object of no owner's."""
        with _as_os_errors():
            self._store.invalidate_cache(self._root)
            return bool(self._store.exists(f"{self._root}/{name}"))

    def read_in(self, folder: str, name: str) -> bytes:
        """As `read`, from a folder that `walk` names."""
        with _as_os_errors():
            content: bytes = self._store.cat_file(f"{self._root}/{folder}/{name}")
            return content

    def walk(self) -> Iterator[tuple[str, ObjectRow]]:
        """The folder's name and the row of every owner's objects, by one listing; "" for objects in no folder."""
        with _as_os_errors():
            self._store.invalidate_cache()
            rows = self._store.find(self._root, detail=True)
        for path, row in rows.items():
            folder, _, name = path.removeprefix(self._root).removeprefix("/").rpartition("/")
            if "/" not in folder:
                yield folder, _row(name, row)

    def rows(self, owner: str) -> list[ObjectRow]:
        """The rows of an owner's objects."""
        with _as_os_errors():
            folder = f"{self._root}/{folder_name(owner)}"
            self._store.invalidate_cache(folder)
            try:
                rows = self._store.ls(folder, detail=True)
            except FileNotFoundError:
                return []
            return [_row(row["name"].rpartition("/")[2], row) for row in rows if row["type"] == "file"]

    def _pipe(self, path: str, content: bytes, mode: str) -> None:
        protocols = self._store.protocol
        try:
            self._store.pipe_file(path, content, mode=mode)
        except FileNotFoundError:  # in a store that has folders; nobody meant a bucket to be made
            if BUCKETS.intersection([protocols] if isinstance(protocols, str) else protocols):
                raise
            self._store.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._store.pipe_file(path, content, mode=mode)

    def _path(self, owner: str, name: str) -> str:
        return f"{self._root}/{folder_name(owner)}/{name}"


@contextlib.contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise OSError for whatever a store's package raises."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(0, f"the store answered: {error}") from error


def _row(name: str, row: Mapping[str, Any]) -> ObjectRow:
    size, changed = int(row["size"] or 0), _changed(row)
    return ObjectRow(name, size, changed, f"{size} {changed!r} {row.get('ETag') or row.get('etag') or ''}")


def _changed(row: Mapping[str, Any]) -> float:
    """When an object was written, in seconds since 1970."""
    for key in ("LastModified", "last_modified", "mtime", "created", "updated"):
        value = row.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
