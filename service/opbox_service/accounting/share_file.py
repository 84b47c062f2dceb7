"""ShareFile: this server's shares of its owners' quotas, where it is one of several servers (OPBOX_QUOTA_SHARES_FILE).

Who shares the quotas out replaces the file; a quota is checked against the file as it is then, so that a share is in
force as soon as the file is there. `{"owners": {"ann": {"sessions": 2}}, "others": {"sessions": 0}}`: ann may have two
sessions here, and owners who are not listed none. A quota that is not named is as without the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..logs import Logger

__all__ = ["QuotaShare", "ShareFile", "SharesOfOwners", "replace_file"]

LARGEST = 64 << 20
"""Maximum bytes of the file."""

_log = Logger("opbox.shares")


class QuotaShare(BaseModel):
    """What one owner may have on this server, in so far as other servers have the rest; None: as without the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    sessions: int | None = Field(default=None, ge=0)
    memory_bytes: int | None = Field(default=None, ge=0)
    worker_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class SharesOfOwners(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    owners: Mapping[str, QuotaShare] = {}
    others: QuotaShare = QuotaShare()


class ShareFile:
    """Reads the file when it has changed. While it is wrong, the shares of before stay, and the log says so.

    Args:
        path: of the file; None, or one that is not there yet, limits nothing.

    Example:
        >>> ShareFile(None).of("ann")
        QuotaShare(sessions=None, memory_bytes=None, worker_seconds=None)
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._stamp: tuple[int, ...] = ()
        self._shares = SharesOfOwners()

    def of(self, owner: str) -> QuotaShare:
        """An owner's share, as the file says now."""
        if self._path is not None:
            self._look(self._path)
        return self._shares.owners.get(owner, self._shares.others)

    def _look(self, path: Path) -> None:
        try:
            status = os.stat(path)
        except OSError:
            return  # it is not written yet, or about to be replaced
        stamp = status.st_mtime_ns, status.st_ino, status.st_size
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            if status.st_size > LARGEST:
                raise ValueError(f"expected at most {LARGEST} bytes, got {status.st_size}")
            self._shares = SharesOfOwners.model_validate(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            place = ".".join(map(str, first["loc"])) + ": " + first["msg"] if first is not None else str(error)
            _log.error("the shares of quotas of before stay", file=str(path), error=place)


def replace_file(path: Path, shares: SharesOfOwners) -> None:
    """Replace the file by these shares, at once: a reader sees those of before or these."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(shares.model_dump_json(exclude_none=True))
    new.replace(path)
