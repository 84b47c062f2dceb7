"""Memory quotas: bytes are counted for session, owner and device, and admitted before they are allocated."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any

import numpy as np

from opbox_ops.backend import Backend
from opbox_protocol.errors import GoneError, QuotaError

from .memory_shares import HOST
from .owner_terms import LARGER_QUOTA

__all__ = ["NO_LIMIT", "Allocation", "Budget", "Ledger", "MeteredBackend"]


FULL_DEVICE = (
    "free arrays, try again when others have freed theirs, or ask the server's administrator for more "
    "(OPBOX_MAX_DEVICE_BYTES)"
)
"""What an error advises when the whole device is full, so that a larger quota would not help."""
GRAIN = 16 << 20
"""Bytes that a budget takes from its parent at a time, so that most allocations need no parent."""
NO_LIMIT: tuple[int, Mapping[str, int]] = (0, {})
"""The quotas of an owner without limits of their own."""
SMALL = 1 << 16
"""Arrays up to this size are checked on allocation, and counted only when they are kept."""


class Budget:
    """Counts bytes in use, up to `limit`. A budget with a parent takes its bytes from the parent.

    A session's budget has its owner's for a parent, and that one the device's: what all sessions together take is
    never more than there is, whatever each may have.

    Args:
        limit: bytes.
        parent: what it draws from.
        name: whose memory it is, for errors.
        remedy: what its owner can do when it is full, for errors.

    Attributes:
        limit, used, peak: bytes.
        idle: of `used`, what is given up as soon as somebody wants it.
        reserved: of `used`, what has been admitted and not yet been kept by an Allocation.
    """

    def __init__(
        self,
        limit: int,
        parent: Budget | None = None,
        name: str = "session memory",
        remedy: str = f"free arrays, or {LARGER_QUOTA}",
    ) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self.idle = self._resting = 0
        self.reserved = 0
        self.give_up: Callable[[], object] = parent.give_up if parent is not None else lambda: None
        self._parent = parent
        self._drawn = limit if parent is None else 0
        self._closed = False
        self._name = name
        self._remedy = remedy
        self._lock = Lock()

    @property
    def available(self) -> int:
        """Bytes that may still be reserved now, once idle ones are given up."""
        own = self.limit - self.used + self.idle
        return own if self._parent is None else min(own, self._drawn - self.used + self._parent.available)

    @property
    def _free(self) -> int:
        """Bytes that may be reserved without giving up idle ones."""
        own = self.limit - self.used
        return own if self._parent is None else min(own, self._drawn - self.used + self._parent._free)

    def check(self, nbytes: int) -> None:
        """Raise QuotaError if `nbytes` more would exceed the limit, idle bytes given up."""
        try:
            self._check(nbytes)
        except QuotaError:
            self.give_up()
            self._check(nbytes)

    def _check(self, nbytes: int) -> None:
        if self.used + nbytes > self.limit:
            raise QuotaError(
                f"{self._name}: expected at most {self.limit} bytes, got {self.used} in use and {nbytes} more: "
                f"{self._remedy}"
            )
        if self._parent is not None and self.used + nbytes > self._drawn:
            self._parent._check(self.used + nbytes - self._drawn)

    def take(self, nbytes: int) -> None:
        """Add `nbytes`; raise QuotaError if they exceed the limit.

        Raises:
            QuotaError: they would be too many, even when nothing is idle.
            GoneError: the budget has been closed.
        """
        with self._lock:
            # What nearly every array of a call comes to, without a call of its own.
            used = self.used + nbytes
            if used <= self._drawn and used <= self.limit and not self._closed:
                self.used = used
                if used > self.peak:
                    self.peak = used
                return
        try:
            self._take(nbytes)
        except QuotaError:
            self.give_up()  # not by who has the lock of a parent, which this gives to
            self._take(nbytes)

    def _take(self, nbytes: int) -> None:
        with self._lock:
            if self._closed:
                raise GoneError(f"{self._name}: expected a session to count {nbytes} bytes in, got one that has ended")
            used = self.used + nbytes
            if used > self.limit or used > self._drawn:
                self._draw(nbytes)
            self.used = used
            if used > self.peak:
                self.peak = used

    def _draw(self, nbytes: int) -> None:
        """Draw from the parent what `nbytes` more need; QuotaError when they would be too many."""
        self._check(nbytes)
        if self._parent is None:
            return
        nbytes += self.used - self._drawn
        drawn = max(nbytes, min(GRAIN, self._parent._free))
        self._parent._take(drawn)
        self._drawn += drawn

    def give(self, nbytes: int) -> None:
        """Subtract `nbytes`; a closed budget counts nothing."""
        with self._lock:
            if self._closed:
                return
            self.used -= nbytes
            spare = self._drawn - self.used
            if self._parent is not None and (spare > 2 * GRAIN or not self.used):
                self._parent.give(spare)
                self._drawn = self.used

    def rest(self) -> None:
        """Count what is in use here as idle, until `wake` or `close`."""
        self.settle()
        budget = self
        while budget._parent is not None:
            # What is drawn and not used is neither idle nor anybody's room.
            budget._give_spare(budget._parent)
            budget = budget._parent
        self._mark_idle(self.used - self._resting)

    def _give_spare(self, parent: Budget) -> None:
        """Give back to the parent what has been drawn and is not used."""
        with self._lock:
            if self._drawn != self.used:
                parent.give(self._drawn - self.used)
                self._drawn = self.used

    def wake(self, parent: Budget, limit: int) -> None:
        """Count what is idle here as in use again, drawn from `parent`, with another limit.

        Raises:
            QuotaError: that one has no room for it. Nothing has changed then.
        """
        before, nbytes = self._parent, self._drawn
        assert before is not None
        self.limit = limit
        self._check(0)
        if parent is not before:
            parent.take(nbytes)
        self._mark_idle(-self._resting)
        if parent is not before:
            self._parent = parent
            before.give(nbytes)

    def _mark_idle(self, nbytes: int) -> None:
        self._resting += nbytes
        above = self._parent
        while above is not None:
            with above._lock:
                above.idle += nbytes
            above = above._parent

    def close(self) -> None:
        """Give back all that is counted here: its memory is gone."""
        self._mark_idle(-self._resting)
        with self._lock:
            if self._parent is not None:
                self._parent.give(self._drawn)
                self._drawn = 0
            self.used = self.reserved = 0
            self._closed = True

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
        """Give back, at the block's end, the bytes that the block has reserved and not kept."""
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
    """A reference-counted allocation: counted once, until its last user drops it.

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
        """Share this allocation (reference count + 1)."""
        self._users += 1
        return self

    def drop(self) -> None:
        """Drop one reference; the last one frees the bytes."""
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
        self._empty, self._zeros = backend.empty, backend.zeros
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
        self.scope = backend.scope
        self.give_back = backend.give_back
        self.close = backend.close
        self.capture = backend.capture

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """See Backend.empty; QuotaError when the budget has no room."""
        budget, dtype = self._budget, np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > SMALL:
            budget.reserve(nbytes)
        elif budget.used + nbytes > budget.limit:
            budget.check(nbytes)
        return self._empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """See Backend.zeros; QuotaError when the budget has no room."""
        dtype = np.dtype(dtype)
        self._admit(math.prod(shape) * dtype.itemsize)
        return self._zeros(shape, dtype)

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
    """Budgets of devices and of their owners: what all have of a device is at most what there is.

    Args:
        device_bytes: that all may have together of the machine's memory.
        owner_bytes: that one owner may have of each device; 0: as all together.
        bytes_of: what all may have together of another device; None: as much as of the machine's memory.

    Attributes:
        give_up: lets go of all that is idle.
    """

    def __init__(self, device_bytes: int, owner_bytes: int = 0, bytes_of: Callable[[str], int] | None = None) -> None:
        self._owner_bytes = owner_bytes
        self._bytes_of = bytes_of or (lambda device: device_bytes)
        self._wholes = {HOST: device_bytes}
        self.give_up: Callable[[], object] = lambda: None
        self._devices: dict[str, Budget] = {}
        self._owners: dict[tuple[str, str], Budget] = {}
        self._limits: dict[str, tuple[int, Mapping[str, int]]] = {}
        self._bounds: dict[str, int] = {}
        self._lock = Lock()

    @property
    def devices(self) -> list[str]:
        """The devices for which a budget was asked."""
        with self._lock:
            return list(self._devices)

    def whole(self, device: str) -> int:
        """Return the bytes that all owners together may use on a device."""
        nbytes = self._wholes.get(device)
        if nbytes is None:
            nbytes = self._wholes[device] = self._bytes_of(device)
        return nbytes

    def of(self, owner: str, device: str) -> Budget:
        """The owner's budget on a device."""
        budget = self._owners.get((owner, device))
        if budget is not None:
            return budget
        with self._lock:
            budget = self._owners.get((owner, device))
            if budget is None:
                whole = self._devices.get(device)
                if whole is None:
                    limit = self._bounds.get(device, self.whole(device))
                    whole = self._devices[device] = Budget(limit, name="memory of all sessions", remedy=FULL_DEVICE)
                    whole.give_up = lambda: self.give_up()
                limit = self._limit_of(owner, device)
                budget = self._owners[owner, device] = Budget(limit, whole, "memory of all your sessions")
            return budget

    def limit(self, owner: str, nbytes: int, elsewhere: Mapping[str, int]) -> None:
        """Set an owner's limit on each device (0: as for others), minus what the owner uses elsewhere."""
        if self._limits.get(owner, NO_LIMIT) == (nbytes, elsewhere):
            return
        with self._lock:
            self._limits[owner] = nbytes, elsewhere
            for (name, device), budget in self._owners.items():
                if name == owner:
                    budget.limit = self._limit_of(owner, device)

    def limit_unknown(self, owner: str, nbytes: int) -> None:
        """Set the limit of an owner of whom there was no call yet (0: as for others); a known one stays."""
        if nbytes and owner not in self._limits:
            self.limit(owner, nbytes, {})

    def bound(self, device: str, nbytes: int) -> None:
        """Set the limit of all owners together on a device (0: all its memory)."""
        whole = self.whole(device)
        limit = min(nbytes, whole) if nbytes else whole
        if self._bounds.get(device, whole) == limit:
            return
        with self._lock:
            self._bounds[device] = limit
            if device in self._devices:
                self._devices[device].limit = limit

    def _limit_of(self, owner: str, device: str) -> int:
        nbytes, elsewhere = self._limits.get(owner, NO_LIMIT)
        return max(0, nbytes - elsewhere.get(device, 0)) if nbytes else self._owner_bytes or self.whole(device)
