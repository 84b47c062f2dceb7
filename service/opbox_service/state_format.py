"""The format of a state directory, and who uses the directory now.

`version.json` says which format the state has and which opbox wrote it. A server refuses state that is newer than it
knows, and upgrades older state in place. Servers share a lock on the directory for as long as they use it; who
upgrades or replaces its state has the lock alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import structlog

from opbox_protocol.errors import NotReadyError

from .state_dir import sync_folder, write_whole
from .state_swap import has_leftovers, interrupted, remove_leftovers, undo_swap

__all__ = ["FORMAT", "VERSION_FILE", "StateLock", "StateVersion", "open_state", "own_version"]

FORMAT = 1
"""What this version reads and writes."""
VERSION_FILE = "version.json"
LOCK_FILE = ".lock"
BUSY_S = 10.0
"""Seconds to wait for another server's upgrade, or for other servers before an upgrade."""
UPGRADES: Mapping[int, Callable[[Path], None]] = {0: lambda folder: None}
"""How a directory gets from each format to the next. An upgrade that stopped midway is begun again.

0 is state from before there was a version file: it is of format 1, without saying so.
"""

_log = structlog.get_logger("opbox.serve")


@dataclass(frozen=True, slots=True)
class StateVersion:
    """What a version file says.

    Attributes:
        format: of the state.
        opbox: the version of opbox that wrote it; empty where none has said.
    """

    format: int
    opbox: str = ""

    def check(self, place: str, newest: int = FORMAT) -> None:
        """Raise NotReadyError where a format is newer than the newest known; `place` names what has it."""
        if self.format > newest:
            raise NotReadyError(
                f"{place}: expected state of format {newest} or older, got format {self.format}, which opbox "
                f"{self.opbox} wrote (this is opbox {version('opbox-service')}): use that version or a later one, or "
                "a backup of before the upgrade"
            )

    @classmethod
    def parse(cls, text: bytes, place: str) -> StateVersion:
        """What a version file says; NotReadyError where it is none."""
        try:
            document = json.loads(text)
            number, opbox = document["format"], document["opbox"]
            if type(number) is not int or number < 1 or not isinstance(opbox, str):
                raise ValueError("wrong values")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise NotReadyError(
                f'{place}: expected {{"format": {FORMAT}, "opbox": "VERSION"}}, got {text[:80]!r}: restore the '
                "directory from a backup; or remove the file, if no opbox newer than this one has used the directory"
            ) from None
        return cls(number, opbox[:40])

    @classmethod
    def of(cls, folder: Path) -> StateVersion:
        """The version of a state directory; format 0 where it has no version file.

        Raises:
            NotReadyError: the file is damaged.
        """
        path = folder / VERSION_FILE
        try:
            return cls.parse(path.read_bytes(), f"state_dir: {path}")
        except FileNotFoundError:
            return cls(0)

    def bytes(self) -> bytes:
        """As the file has it."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def write(self, folder: Path) -> None:
        """Write the version file, whole or not at all."""
        write_whole(folder / VERSION_FILE, lambda file: file.write(self.bytes()))


def own_version() -> StateVersion:
    """What this version writes."""
    return StateVersion(FORMAT, version("opbox-service"))


class StateLock:
    """The lock of a state directory, which nobody has at first. It ends with the object, and with the process.

    Args:
        folder: the directory, which is there.
    """

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.geteuid() == 0:  # the server's user must be able to open what root's backup has made
            status = folder.stat()
            os.fchown(self._fd, status.st_uid, status.st_gid)
        self._close = weakref.finalize(self, os.close, self._fd)

    def share(self) -> bool:
        """Take it beside others; False where one has it alone."""
        return self._take(fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Take it alone; False where others have it, and then this one has it no longer."""
        return self._take(fcntl.LOCK_EX)

    def release(self) -> None:
        """Give it back; it may be taken again."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give it back for good."""
        self._close()

    def _take(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True


def open_state(
    folder: Path, *, upgrades: Mapping[int, Callable[[Path], None]] = UPGRADES, busy_s: float = BUSY_S
) -> StateLock:
    """Make a state directory where there is none, upgrade what is older, and return its lock, which others may share.

    Args:
        folder: the directory.
        upgrades: how state gets from each format to the next.
        busy_s: seconds to wait for others.

    Raises:
        NotReadyError: the state is newer than this version knows; it is being replaced; it needs an upgrade while
            others use it; or the directory cannot be written to.

    Example:
        >>> lock = open_state(Path("/var/lib/opbox"))
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = StateLock(folder)
    except OSError as error:
        raise NotReadyError(f"state_dir: cannot make {folder}: {error.strerror}") from None
    try:
        _open(folder, lock, upgrades, time.monotonic() + busy_s)
    except OSError as error:
        lock.close()
        raise NotReadyError(
            f"state_dir: {folder}: expected a directory that can be written to, got none ({error.strerror}): name "
            "another directory"
        ) from None
    except NotReadyError:
        lock.close()
        raise
    return lock


def _open(folder: Path, lock: StateLock, upgrades: Mapping[int, Callable[[Path], None]], until: float) -> None:
    """Have the lock beside others, over state of the newest format."""
    newest = max(upgrades) + 1
    swept = False
    while True:
        shared = lock.share()
        if shared:
            present = StateVersion.of(folder)
            present.check(f"state_dir: {folder}", newest)
            if present.format == newest and not interrupted(folder):
                if swept or not has_leftovers(folder):
                    return
                swept = True  # where others use the directory, who opens it next does this
                if lock.alone():
                    remove_leftovers(folder)
                continue
            if lock.alone():
                _mend(folder, upgrades)
                continue
        if time.monotonic() >= until:
            raise NotReadyError(
                f"state_dir: {folder}: expected state of format {newest}, got format {present.format} while other "
                "servers use it: stop them, so that this one can upgrade it"
                if shared
                else f"state_dir: {folder}: expected a directory that servers can use, got one that is being upgraded "
                "or restored: try again when that has ended"
            )
        time.sleep(random.uniform(0.01, 0.05))  # two that want it alone must not go on taking it from each other


def _mend(folder: Path, upgrades: Mapping[int, Callable[[Path], None]]) -> None:
    """Undo a restore that stopped midway, and upgrade what is older. The lock is this process's alone."""
    if undo_swap(folder):
        _log.warning("a restore of the state directory did not end: the state is that of before it", path=str(folder))
    present = StateVersion.of(folder)
    newest = max(upgrades) + 1
    present.check(f"state_dir: {folder}", newest)
    if present.format == 0 and not any(not name.startswith(".") for name in os.listdir(folder)):
        StateVersion(newest, version("opbox-service")).write(folder)
        return
    for number in range(present.format, newest):
        upgrades[number](folder)
        StateVersion(number + 1, version("opbox-service")).write(folder)
        _log.info("the state directory was upgraded", path=str(folder), before=number, format=number + 1)
    with contextlib.suppress(OSError):
        sync_folder(folder)
