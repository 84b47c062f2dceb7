"""Memory quotas: bytes are counted for session, owner and device, and admitted before they are allocated."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from opbox_ops.backend import Backend
from opbox_protocol.errors import QuotaError

__all__ = ["Allocation", "Budget", "Ledger", "MeteredBackend", "machine_memory"]


GRAIN = 16 << 20
"""Bytes that a budget draws from its parent at a time, so that most allocations ask nobody else."""
SMALL = 1 << 16
"""Arrays up to this size are checked, and not counted before somebody keeps them."""


class Budget:
    """Bytes in use, of at most `limit`; within the budget of somebody larger where there is a parent.

    A session's budget has its owner's for a parent, and that one the device's: what all sessions together take is
    never more than there is, whatever each may have.

    Args:
        limit: bytes.
        parent: what it draws from.
        name: whose memory it is, for errors.

    Attributes:
        limit, used, peak: bytes.
        reserved: of `used`, what has been admitted and not yet been kept by an Allocation.
    """

    def __init__(self, limit: int, parent: Budget | None = None, name: str = "session memory") -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.reserved = 0
        self._parent = parent
        self._drawn = limit if parent is None else 0
        self._name = name
        self._lock = Lock()

    @property
    def room(self) -> int:
        """How many bytes more there may be, as things are."""
        own = self.limit - self.used
        return own if self._parent is None else min(own, self._drawn - self.used + self._parent.room)

    def check(self, nbytes: int) -> None:
        """QuotaError when `nbytes` more would be too many."""
        if self.used + nbytes > self.limit:
            raise QuotaError(
                f"{self._name}: expected at most {self.limit} bytes, got {self.used} in use and {nbytes} more: "
                "free arrays, or ask for a larger quota"
            )
        if self._parent is not None and self.used + nbytes > self._drawn:
            self._parent.check(self.used + nbytes - self._drawn)

    def take(self, nbytes: int) -> None:
        """Count `nbytes` more; QuotaError when they would be too many."""
        with self._lock:
            used = self.used + nbytes
            if used > self.limit or used > self._drawn:
                self._draw(nbytes)
            self.used = used
            if used > self.peak:
                self.peak = used

    def _draw(self, nbytes: int) -> None:
        """Draw from the parent what `nbytes` more need; QuotaError when they would be too many."""
        self.check(nbytes)
        if self._parent is None:
            return
        nbytes += self.used - self._drawn
        drawn = max(nbytes, min(GRAIN, self._parent.room))
        self._parent.take(drawn)
        self._drawn += drawn

    def give(self, nbytes: int) -> None:
        """Count `nbytes` less."""
        with self._lock:
            self.used -= nbytes
            spare = self._drawn - self.used
            if self._parent is not None and (spare > 2 * GRAIN or not self.used):
                self._parent.give(spare)
                self._drawn = self.used

    def close(self) -> None:
        """Give back all that is counted here: its memory is gone."""
        with self._lock:
            if self._parent is not None:
                self._parent.give(self._drawn)
                self._drawn = 0
            self.used = self.reserved = 0

    def reserve(self, nbytes: int) -> None:
        """Count what is about to be allocated, until it is kept or `settle` is called."""
        self.take(nbytes)
        self.reserved += nbytes

    def keep(self, nbytes: int) -> None:
        """Count an array that stays; what has been reserved for it is."""
        if not self.reserved:
            self.take(nbytes)
            return
        admitted = min(self.reserved, nbytes)
        self.reserved -= admitted
        if nbytes > admitted:
            self.take(nbytes - admitted)

    @contextlib.contextmanager
    def settling(self) -> Iterator[None]:
        """What the block reserves and does not keep is given back at its end."""
        before = self.reserved
        try:
            yield
        finally:
            self.settle(before)

    def settle(self, reserved: int = 0) -> None:
        """Give back what has been reserved beyond `reserved` and not been kept: temporaries that are gone."""
        if self.reserved > reserved:
            gone, self.reserved = self.reserved - reserved, reserved
            self.give(gone)


class Allocation:
    """Memory that arrays and executors share: counted once, until the last of its users drops it.

    Args:
        budget: where it is counted.
        nbytes: its size.
        counted: whether the budget has counted it already.

    Raises:
        QuotaError: the budget has no room for it.
    """

    __slots__ = ("_budget", "_nbytes", "_users")

    def __init__(self, budget: Budget, nbytes: int, *, counted: bool = False) -> None:
        if not counted:
            budget.keep(nbytes)
        self._budget = budget
        self._nbytes = nbytes
        self._users = 1

    def share(self) -> Allocation:
        """The same memory, with one user more."""
        self._users += 1
        return self

    def drop(self) -> None:
        """One user less; the last one gives the bytes back."""
        self._users -= 1
        if self._users == 0:
            self._budget.give(self._nbytes)


class MeteredBackend:
    """A backend whose allocations are checked against a budget first, so that no operator takes all memory.

    `zeros(shape=(10**6, 10**6))` is refused before memory is touched. What is kept is counted by an Allocation.
    """

    def __init__(self, backend: Backend, budget: Budget) -> None:
        self._backend = backend
        self._budget = budget
        self._empty = backend.empty
        self.unmetered = backend
        self.settle = budget.settle
        self.device_type = backend.device_type
        self.xp = backend.xp
        self.special = backend.special
        self.view = backend.view
        self.write = backend.write
        self.get = backend.get
        self.random = backend.random
        self.synchronize = backend.synchronize

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """See Backend.empty; QuotaError when the budget has no room."""
        budget, dtype = self._budget, np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > SMALL:
            budget.reserve(nbytes)
        elif budget.used + nbytes > budget.limit:
            budget.check(nbytes)
        return self._empty(shape, dtype)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """See Backend.put; QuotaError when the budget has no room."""
        self._admit(int(host.nbytes))
        return self._backend.put(host)

    def _admit(self, nbytes: int) -> None:
        if nbytes <= SMALL:
            self._budget.check(nbytes)
        else:
            self._budget.reserve(nbytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Ledger:
    """What owners have of a device's memory, of at most what there is.

    Args:
        device_bytes: that all may have together.
        owner_bytes: that one owner may have.
    """

    def __init__(self, device_bytes: int, owner_bytes: int) -> None:
        self._owner_bytes = owner_bytes
        self._device_bytes = device_bytes
        self._devices: dict[str, Budget] = {}
        self._owners: dict[tuple[str, str], Budget] = {}
        self._lock = Lock()

    def of(self, owner: str, device: str) -> Budget:
        """The owner's budget on a device."""
        with self._lock:
            budget = self._owners.get((owner, device))
            if budget is None:
                whole = self._devices.get(device)
                if whole is None:
                    whole = self._devices[device] = Budget(self._device_bytes, name="memory of all sessions")
                budget = self._owners[owner, device] = Budget(self._owner_bytes, whole, "memory of all your sessions")
            return budget


def machine_memory() -> int:
    """Bytes of memory that this machine, or the control group that the process is in, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            total = min(total, int(text))
    return total
