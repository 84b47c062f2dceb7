"""Stores a server's generated token where a client of the same user on the same machine reads it.

One file a server, named by its port, in a folder that only the user may enter; the file says who may read it too. A
token is given out for loopback addresses alone, while the server that wrote it still runs: it has a lock on the file.
Process ids say nothing of a server in another container.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

from opbox_protocol.errors import DeniedFileError
from opbox_protocol.own_folders import home, make_own

from . import address
from .base import MXNetError

__all__ = ["folder", "make_folder", "path_for", "read", "remove", "write"]

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_ANY = {"0.0.0.0", "::"}
_written: dict[Path, int] = {}
"""Descriptors of the files that this process has written, with its locks."""


def folder() -> Path:
    """The folder of the tokens: OPBOX_RUNTIME_DIR, or `opbox` in the user's runtime or state folder.

    Raises:
        FileError: the user has no home folder.
    """
    configured = os.environ.get("OPBOX_RUNTIME_DIR")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home() / ".local" / "state") / "opbox"


def make_folder() -> Path:
    """The folder, made if need be.

    Raises:
        FileError: it cannot be made, or a variable names another user's place.
    """
    place = folder().absolute()
    make_own(place, named=bool(os.environ.get("OPBOX_RUNTIME_DIR")))
    return place


def path_for(url: str) -> Path | None:
    """The file for a server's URL; None when it is not on this machine."""
    try:
        parts = address.split(url)
    except MXNetError:
        return None
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    return folder() / f"server-{port}.json" if host in _LOOPBACK | _ANY else None


def write(url: str, token: str) -> Path | None:
    """Leave a token for `url`, readable by this user alone (0600); the file, or None for a URL elsewhere.

    Raises:
        FileError: the folder cannot be written to, or is another user's.
    """
    path = path_for(url)
    if path is None:
        return None
    make_folder()
    fresh = path.with_suffix(f".{secrets.token_hex(8)}")
    fd = -1
    try:
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        entry = {"url": url, "token": token, "pid": os.getpid(), "locked": _lock(fd)}
        os.write(fd, json.dumps(entry).encode())
        fresh.replace(path)
        _close(path)
        _written[path] = fd
    except OSError as error:
        if fd >= 0:
            os.close(fd)
            fresh.unlink(missing_ok=True)
        raise DeniedFileError(f"{path}: expected a file that can be written, got none ({error.strerror})") from None
    return path


def read(url: str) -> str | None:
    """The token that a running server of this user left for `url`, or None."""
    try:
        path = path_for(url)
        if path is None or address.split(url).hostname in _ANY:
            return None
        with path.open() as file:
            status = os.fstat(file.fileno())
            if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077):
                return None
            entry = json.load(file)
            token, pid = entry["token"], entry["pid"]
            # Servers of older versions have no lock.
            runs = not _lock(file.fileno()) if entry.get("locked") else type(pid) is int and _runs(pid)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return token if isinstance(token, str) and runs else None


def remove(url: str) -> None:
    """Take back what this process left for `url`, unless another server has written there since."""
    with contextlib.suppress(OSError):
        path = path_for(url)
        if path in _written:
            try:
                if os.path.samestat(os.fstat(_written[path]), path.stat()):
                    path.unlink()
            finally:
                _close(path)


def _close(path: Path) -> None:
    fd = _written.pop(path, None)
    if fd is not None:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Lock a file until its descriptor is closed; False where that cannot be: its server has, or there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError):
        return False
    return True


def _runs(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
