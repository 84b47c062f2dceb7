"""Locks of owners' files: while one owner's files are written, no other owner waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from weakref import WeakValueDictionary

__all__ = ["OwnerLocks"]


class _OwnerLock:
    """A lock that goes when nobody has it or waits for it."""

    def __init__(self) -> None:
        self.lock = RLock()


class OwnerLocks:
    """A lock for each owner. A thread that has an owner's lock may take it again.

    Example:
        >>> with locks.of("ann"):
        ...     write_files()
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, _OwnerLock] = WeakValueDictionary()
        self._lock = Lock()

    @contextmanager
    def of(self, owner: str) -> Iterator[None]:
        """Have the owner's lock meanwhile."""
        with self._lock:
            entry = self._locks.get(owner)
            if entry is None:
                entry = self._locks[owner] = _OwnerLock()
        with entry.lock:
            yield
