"""The system's files that a confined process reads: of /proc and /sys those of itself and of the hardware.

/proc shows every user the arguments and the state of all processes, and /sys the control groups. So a confined process
sees neither folder as a whole.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator

__all__ = ["readable", "writable"]

_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc")
_OF_PROC = (
    *("self", "sys", "cpuinfo", "meminfo", "stat", "uptime", "loadavg", "version", "filesystems"),
    # CUDA looks for its driver in these.
    *("devices", "modules", "driver"),
)
_OF_SYS = (
    *("block", "bus", "class", "dev", "devices", "kernel/mm", "module"),
    # The limits of its own control group, by which operators know how much memory there is.
    *("fs/cgroup/memory.max", "fs/cgroup/memory.current", "fs/cgroup/cpu.max"),
    *("fs/cgroup/memory/memory.limit_in_bytes", "fs/cgroup/memory/memory.usage_in_bytes"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def readable() -> list[str]:
    """Files and folders of the system that this process, which is to be confined, reads."""
    return [*_FOLDERS, *(f"/sys/{name}" for name in _OF_SYS), *_pinned(f"/proc/{name}" for name in _OF_PROC)]


def writable(*, gpu: bool) -> list[str]:
    """Files and folders of the system that it writes to.

    Args:
        gpu: whether CUDA is to start: it ends with error 304 where it may not name the process's own threads.
    """
    return [*_DEVICES, *((*glob.glob("/dev/nvidia*"), *_pinned(["/proc/self/task"])) if gpu else ())]


def _pinned(paths: Iterable[str]) -> Iterator[str]:
    """Names of files of /proc that go on to mean the same inodes, by which Landlock knows files.

    The kernel forgets an inode of /proc that nobody uses, and makes another one later. So the descriptors stay open.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            yield f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC)}"
