"""StoredObjects: files of owners in an object store that several servers share, by fsspec."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, BinaryIO

from opbox_protocol.errors import BadRequestError, NotReadyError

from .owner_files import folder_name
from .sealed_files import write_sealed

__all__ = ["StoredObjects"]

BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}
"""Stores whose objects are in buckets, and in no folders."""


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
        with _as_os_errors():
            folder = f"{self._root}/{folder_name(owner)}"
            self._store.invalidate_cache(folder)
            try:
                rows = self._store.ls(folder, detail=True)
            except FileNotFoundError:
                return []
            files = [row for row in rows if row["type"] == "file"]
            return [(row["name"].rpartition("/")[2], int(row["size"] or 0), _changed(row)) for row in files]

    def write(self, owner: str, name: str, write: Callable[[BinaryIO], None]) -> None:
        """See OwnerFiles."""
        buffer = io.BytesIO()
        write(buffer)
        with _as_os_errors():
            path, protocols = self._path(owner, name), self._store.protocol
            try:
                self._store.pipe_file(path, buffer.getvalue())
            except FileNotFoundError:  # in a store that has folders; nobody meant a bucket to be made
                if BUCKETS.intersection([protocols] if isinstance(protocols, str) else protocols):
                    raise
                self._store.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._store.pipe_file(path, buffer.getvalue())

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


def _changed(row: dict[str, Any]) -> float:
    """When an object was written, in seconds since 1970."""
    for key in ("LastModified", "last_modified", "mtime", "created", "updated"):
        value = row.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
