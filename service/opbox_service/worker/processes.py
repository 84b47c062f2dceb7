"""The machine's processes, and what those of one session use together.

What sessions use is read from /proc and not by psutil: the memory that processes can share is kept apart from their
own, and several hundred processes are read twice a second.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = [
    "ProcessInfo",
    "Usage",
    "all_processes",
    "is_in_container",
    "resident_bytes",
    "set_niceness",
    "set_niceness_of_user",
    "usage_of",
]

_FIELD = re.compile(rb"^(State|Uid|RssAnon|RssFile|RssShmem|VmSwap|HugetlbPages):\s+(\S+)", re.MULTILINE)
_PSS = re.compile(rb"^(Pss|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_DELETED = re.compile(rb"^(\w+)-(\w+) \S+ \w+ (\w+):(\w+) (\d+) +(/.*) \(deleted\)$", re.MULTILINE)
"""A line of maps: a mapped file without a name."""
_TICKS = os.sysconf("SC_CLK_TCK")
NICEST = 19
_OWN = (b"RssAnon", b"RssFile", b"VmSwap", b"HugetlbPages")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
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
        """Return whether it is process `pid` or was started by it, by its user, or by its Unix session for user 0."""
        return self.user == user if user else pid > 0 and self.unix_session == pid


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory, nameless files and processor time of several processes together.

    Attributes:
        memory: bytes, what several share counted once where that can be known; sockets count as full.
        unlinked: bytes of files on the disk that have no name any more.
        cpu: processor seconds.
    """

    memory: int = 0
    unlinked: int = 0
    cpu: float = 0.0


def all_processes() -> Iterator[ProcessInfo]:
    """All processes that can be seen."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, KeyError):
                yield _read(int(name))


def is_in_container(pid: int) -> bool:
    """Return whether a process is in a PID namespace below this process's own, as those of a container are."""
    try:
        numbers = re.search(rb"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_bytes(), re.MULTILINE)
    except OSError:
        return False
    return numbers is not None and len(numbers[1].split()) > 1


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default of this one, shared pages included; 0 when it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def set_niceness(pid: int, steps: int) -> None:
    """Raise the niceness of a process's threads relative to this process, as far as the system allows.

    To be less nice than before takes a privilege: without it the process stays as nice as it is.
    """
    niceness = _nicer_by(steps)
    with contextlib.suppress(OSError):  # it has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, int(thread), niceness)
    with contextlib.suppress(OSError):  # where Unix sessions share the processors, the session's counts as well
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def set_niceness_of_user(user: int, steps: int) -> None:
    """Raise the niceness of all processes of a user, as `set_niceness` does for one."""
    with contextlib.suppress(OSError):  # they have just ended
        os.setpriority(os.PRIO_USER, user, _nicer_by(steps))


def _nicer_by(steps: int) -> int:
    return min(NICEST, os.getpriority(os.PRIO_PROCESS, 0) + steps)


def _read(pid: int) -> ProcessInfo:
    fields = dict(_FIELD.findall(Path(f"/proc/{pid}/status").read_bytes()))
    own, shared = (sum(int(fields.get(key, 0)) for key in keys) * 1024 for keys in (_OWN, (b"RssShmem",)))
    times = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:15]
    cpu = sum(map(int, times)) / _TICKS
    return ProcessInfo(pid, int(fields[b"Uid"]), os.getsid(pid), fields[b"State"] == b"Z", own, shared, cpu)


def usage_of(
    processes: Collection[ProcessInfo], enough: int, device: int, sent: Mapping[tuple[int, int], int] | None = None
) -> Usage:
    """Return the usage of these processes.

    Args:
        processes: of one session.
        enough: bytes of memory up to which it need not be known who shares what with whom, which takes long to read.
        device: of their folder.
        sent: files in memory that they have sent to this process, which has them still: bytes by device and inode.
    """
    shared = sum(process.shared for process in processes)
    own = sum(process.own for process in processes)
    files, unlinked, sockets = _nameless(processes, device, sent or {})
    if own + max(shared, files) > enough and len(processes) > 1:
        with contextlib.suppress(OSError, KeyError):
            parts = [_proportional(process.pid) for process in processes]
            own, shared = (sum(part) for part in zip(*parts, strict=True))
    # What is mapped of a file in memory is in both figures.
    memory = own + max(shared, files) + sockets * _bytes_of_a_socket()
    return Usage(memory, unlinked, sum(process.cpu for process in processes))


def _proportional(pid: int) -> tuple[int, int]:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    sizes = {key: int(value) * 1024 for key, value in _PSS.findall(rollup)}
    return sizes[b"Pss"] - sizes[b"Pss_Shmem"] + sizes[b"SwapPss"], sizes[b"Pss_Shmem"]


def _nameless(
    processes: Iterable[ProcessInfo], device: int, sent: Mapping[tuple[int, int], int]
) -> tuple[int, int, int]:
    """What processes hold or have sent that has no name: bytes of files in memory, and on a disk, number of sockets."""
    sizes = dict(sent)
    sockets: set[int] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
                    elif stat.S_ISSOCK(status.st_mode):
                        sockets.add(status.st_ino)
        with contextlib.suppress(OSError, ValueError):
            _add_mapped(process, device, sizes)
    on_disk = sum(size for (where, _), size in sizes.items() if where == device)
    return sum(sizes.values()) - on_disk, on_disk, len(sockets)


def _add_mapped(process: ProcessInfo, device: int, sizes: dict[tuple[int, int], int]) -> None:
    """Add files without a name that a process has mapped and not open: pages that it does not touch stay in them."""
    lengths: dict[tuple[int, int], int] = {}
    for first, last, major, minor, inode, path in _DELETED.findall(Path(f"/proc/{process.pid}/maps").read_bytes()):
        key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
        in_memory = path.startswith((b"/memfd:", b"/dev/zero", b"/dev/shm/"))
        if key in sizes or not (in_memory or key[0] == device):
            continue
        try:
            status = os.stat(f"/proc/{process.pid}/map_files/{first.decode()}-{last.decode()}")
        except OSError:  # only root may look; what is mapped is then taken for full
            lengths[key] = lengths.get(key, 0) + (int(last, 16) - int(first, 16)) * in_memory
        else:
            if in_memory or status.st_uid == process.user:  # not a library that has been replaced
                sizes[key] = status.st_blocks * 512
    for key, length in lengths.items():
        sizes[key] = max(sizes.get(key, 0), length)


@functools.cache
def _bytes_of_a_socket() -> int:
    """Bytes that wait in a socket at most: its buffer, which a process for code cannot enlarge."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text())
    except (OSError, ValueError):
        return 212_992
