"""The memory of a machine, or of the control group that the process is in: what there is, and what is in use."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["machine_memory", "memory_in_use"]

GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
"""Files with a control group's limit and its use, of both versions."""


def machine_memory(groups: Sequence[tuple[str, str]] = GROUPS) -> int:
    """Bytes of memory that this machine, or the control group that the process is in, has."""
    limits = [_number(limit) for limit, _ in groups]
    return min([_physical(), *(limit for limit in limits if limit is not None)])


def memory_in_use(groups: Sequence[tuple[str, str]] = GROUPS) -> int:
    """Bytes of it that programs have; 0 where the system does not say."""
    for limit, usage in groups:
        most, used = _number(limit), _number(usage)
        if most is not None and used is not None and most < _physical():
            return used
    try:
        available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if available is None else _physical() - 1024 * int(available[1])


def _physical() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: str) -> int | None:
    """The number in a file; None where there is no such file, or it holds a word."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
