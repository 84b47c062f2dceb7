"""Memory quotas: a session's bytes are counted, and checked before they are allocated."""

from __future__ import annotations

import math
from threading import Lock
from typing import Any

import numpy as np

from opbox_ops.backend import Backend
from opbox_protocol.errors import QuotaError

__all__ = ["Allocation", "Budget", "MeteredBackend"]


class Budget:
    """Bytes in use, of at most `limit`.

    Attributes:
        limit, used, peak: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._lock = Lock()

    def check(self, nbytes: int) -> None:
        """QuotaError when `nbytes` more would be too many."""
        if self.used + nbytes > self.limit:
            raise QuotaError(
                f"session memory: expected at most {self.limit} bytes, got {self.used} in use and {nbytes} more: "
                "free arrays, or ask for a larger quota"
            )

    def take(self, nbytes: int) -> None:
        """Count `nbytes` more; QuotaError when they would be too many."""
        with self._lock:
            used = self.used + nbytes
            if used > self.limit:
                self.check(nbytes)
            self.used = used
            if used > self.peak:
                self.peak = used

    def give(self, nbytes: int) -> None:
        """Count `nbytes` less."""
        with self._lock:
            self.used -= nbytes


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
            budget.take(nbytes)
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
        if budget.used + nbytes > budget.limit:
            budget.check(nbytes)
        return self._empty(shape, dtype)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """See Backend.put; QuotaError when the budget has no room."""
        self._budget.check(host.nbytes)
        return self._backend.put(host)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
