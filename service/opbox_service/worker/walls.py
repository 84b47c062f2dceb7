"""The walls around code of sessions that hold on this machine's kernel, in words: for the log, and for who asks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from ..settings import Settings
from . import landlock, seccomp

__all__ = ["Walls", "walls_of"]

_SYS_ADMIN = 1 << 21
LANDLOCK_OF_TCP = 4


class Walls(NamedTuple):
    """What confines code of sessions.

    Attributes:
        line: all of it, in a line.
        missing: a sentence for each wall that is not there, and for what is in reach therefore.
    """

    line: str
    missing: tuple[str, ...]


def walls_of(settings: Settings) -> Walls:
    """Return the walls with these settings, on this kernel and with this process's rights."""
    version, root = landlock.abi(), os.geteuid() == 0
    calls = settings.code_seccomp and seccomp.available()
    missing = []
    if not version:
        whose = "other users' readable files" if root and settings.code_user else "the server's files"
        missing.append(f"this kernel has no Landlock: code of sessions can read {whose}, and all processes' arguments")
    if not calls:
        why = "OPBOX_CODE_SECCOMP is off" if not settings.code_seccomp else "this kernel has no seccomp"
        missing.append(
            f"{why}: code of sessions can reach sockets that let everybody in, watch others' folders, hold memory "
            "that nobody counts, and use every part of the kernel"
        )
    empty = root and _capabilities() & _SYS_ADMIN
    if settings.code_network:
        network = "the server's network"
    elif empty or calls:
        network = "no network"
    elif version >= LANDLOCK_OF_TCP:
        network = "no TCP"
        missing.append("code of sessions can use the network but for TCP")
    else:
        network = "the server's network"
        missing.append("code of sessions can use the network")
    user = "a user id of its own" if root and settings.code_user else "the server's user id"
    names = [f"Landlock {version}" if version else "no Landlock", "seccomp" if calls else "no seccomp"]
    return Walls(f"code of sessions runs with {user}, {', '.join(names)}, {network}", tuple(missing))


def _capabilities() -> int:
    match = re.search(r"^CapEff:\t(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(match[1], 16) if match else 0
