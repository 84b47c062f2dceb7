"""Landlock: a process gives up files, TCP and signals to others, with all that it starts; no privilege needed.

restrict(read=["/usr", "/etc"], write=["/tmp/mine"])

Linux 5.13 and later; the rights are numbered as in <linux/landlock.h>. What an older kernel does not know is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable

__all__ = ["abi", "restrict"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights by Landlock version."""
_TCP = 0b11
_SCOPES = 0b11
"""Scope bits that block abstract sockets and signals to processes outside."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("tcp", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


def _call(number: int, *args: object) -> int:
    result = int(_libc.syscall(number, *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_libc = ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The version of the kernel's Landlock; 0 where there is none."""
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def restrict(read: Iterable[str], write: Iterable[str], *, network: bool = False) -> bool:
    """Keep this thread, and all that comes of it, to these files and folders; False where there is no Landlock.

    The process must have given up gaining privileges (PR_SET_NO_NEW_PRIVS) or be privileged.

    Args:
        read: what may be read and executed; what does not exist is passed over.
        write: what may be changed too.
        network: whether TCP stays.
    """
    version = abi()
    if not version:
        return False
    handled = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    ruleset = _Ruleset(handled, _TCP if version >= 4 and not network else 0, _SCOPES if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _call(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in ((read, _READ), (write, handled)):
            for path in paths:
                _allow(rules, path, rights & handled)
        _call(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)
    return True


def _allow(rules: int, path: str, rights: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                rights &= _OF_FILES
            rule = _Beneath(rights, fd)
            _call(_ADD, ctypes.c_int(rules), ctypes.c_int(_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
        finally:
            os.close(fd)
