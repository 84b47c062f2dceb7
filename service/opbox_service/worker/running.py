"""What runs on the machine, and what the processes of one session hold together, as /proc tells it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Held", "Running", "held", "running"]

_FIELD = re.compile(rb"^(State|Uid|RssAnon|RssFile|RssShmem|VmSwap):\s+(\S+)", re.MULTILINE)
_PSS = re.compile(rb"^(Pss|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Running:
    """A process.

    Attributes:
        zombie: it has ended, and its parent does not know yet.
        own, shared: bytes of memory, the latter of what other processes can map.
        cpu: processor seconds, with those of its children that it has waited for.
    """

    pid: int
    user: int
    unix_session: int
    zombie: bool
    own: int
    shared: int
    cpu: float

    def belongs_to(self, pid: int, user: int) -> bool:
        """Whether it is process `pid` or was started by it, told by the user, or by the Unix session for user 0."""
        return self.user == user if user else pid > 0 and self.unix_session == pid


@dataclass(frozen=True, slots=True)
class Held:
    """What processes hold together.

    Attributes:
        memory: bytes, what several share counted once where that can be known.
        unlinked: bytes of files on the disk that have no name any more.
        cpu: processor seconds.
    """

    memory: int = 0
    unlinked: int = 0
    cpu: float = 0.0


def running() -> Iterator[Running]:
    """All processes that can be seen."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, KeyError):
                yield _read(int(name))


def _read(pid: int) -> Running:
    told = dict(_FIELD.findall(Path(f"/proc/{pid}/status").read_bytes()))
    own, shared = (sum(int(told.get(key, 0)) for key in keys) * 1024 for keys in (_OWN, (b"RssShmem",)))
    times = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:15]
    cpu = sum(map(int, times)) / _TICKS
    return Running(pid, int(told[b"Uid"]), os.getsid(pid), told[b"State"] == b"Z", own, shared, cpu)


_OWN = (b"RssAnon", b"RssFile", b"VmSwap")


def held(processes: Collection[Running], enough: int, device: int) -> Held:
    """What these hold.

    Args:
        enough: bytes of memory up to which it need not be known who shares what with whom, which takes long to tell.
        device: of their folder.
    """
    shared = sum(each.shared for each in processes)
    own = sum(each.own for each in processes)
    files, unlinked = _nameless((each.pid for each in processes), device)
    if own + max(shared, files) > enough and len(processes) > 1:
        with contextlib.suppress(OSError, KeyError):
            told = [_proportional(each.pid) for each in processes]
            own, shared = (sum(each) for each in zip(*told, strict=True))
    # What is mapped of a file in memory is told twice.
    return Held(own + max(shared, files), unlinked, sum(each.cpu for each in processes))


def _proportional(pid: int) -> tuple[int, int]:
    told = {key: int(value) * 1024 for key, value in _PSS.findall(Path(f"/proc/{pid}/smaps_rollup").read_bytes())}
    return told[b"Pss"] - told[b"Pss_Shmem"] + told[b"SwapPss"], told[b"Pss_Shmem"]


def _nameless(pids: Iterable[int], device: int) -> tuple[int, int]:
    """Bytes of files without a name that processes have open: those in memory, and those on a disk."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    told = entry.stat()
                    if stat.S_ISREG(told.st_mode) and not told.st_nlink:
                        sizes[told.st_dev, told.st_ino] = told.st_blocks * 512
    on_disk = sum(size for (where, _), size in sizes.items() if where == device)
    return sum(sizes.values()) - on_disk, on_disk
