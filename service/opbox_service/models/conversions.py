"""Conversions of ONNX files: few at a time, one of an owner, each within memory that counts as its owner's.

The API process lets them begin in order (`ConversionQueue`), so that one that waits keeps no thread and no turn of a
worker. A worker that was replaced converts again what is asked for; it refuses what is one too many (`Conversions`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from weakref import WeakValueDictionary

from opbox_protocol.errors import NotReadyError

from ..quota import Budget

__all__ = ["MAX_CONVERSIONS", "ConversionQueue", "Conversions", "conversion_bytes"]

MAX_CONVERSIONS = 2
"""Number of conversions at a time. Each takes a turn of the worker's, which are three at the least."""
BASE_BYTES = 512 << 20
"""Memory that a conversion may take whatever its file: Python and the operators take 170 MB, constants the rest."""
FACTOR = 10
"""Bytes of memory for each byte of the file: 7.3 were measured, of files of 100 and 400 MB."""


def conversion_bytes(file_bytes: int, limit: int) -> int:
    """Return the memory that the conversion of a file, and of those with its arrays, may take, at most `limit`."""
    return min(limit, BASE_BYTES + FACTOR * file_bytes)


class ConversionQueue:
    """Lets conversions begin in the order in which they came. For one event loop.

    Args:
        limit: number of conversions at a time.
    """

    def __init__(self, limit: int = MAX_CONVERSIONS) -> None:
        self._free = asyncio.Semaphore(limit)
        self._owners: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, owner: str, wait_s: float | None) -> AsyncIterator[None]:
        """Wait until a file of the owner's may be converted, and let others begin at the block's end.

        Args:
            owner: whose model it is.
            wait_s: seconds to wait at most; None: without end.

        Raises:
            NotReadyError: it did not come to that in time.
        """
        lock = self._owners.setdefault(owner, asyncio.Lock())
        try:
            async with asyncio.timeout(wait_s):
                await lock.acquire()
                try:
                    await self._free.acquire()
                except BaseException:
                    lock.release()
                    raise
        except TimeoutError:
            raise NotReadyError(
                f"conversion of an ONNX file: expected to begin within {wait_s:g} s, got others that take longer (one "
                f"of an owner runs at a time, and {MAX_CONVERSIONS} of all): try again later"
            ) from None
        try:
            yield
        finally:
            self._free.release()
            lock.release()


class Conversions:
    """The conversions that run in this process. Safe to call from many threads.

    Args:
        limit: number of conversions at a time.
    """

    def __init__(self, limit: int = MAX_CONVERSIONS) -> None:
        self._limit = limit
        self._owners: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def running(self, owner: str, memory: Budget, nbytes: int) -> Iterator[None]:
        """Count a conversion as its owner's, memory included, until the block's end.

        Args:
            owner: whose model it is.
            memory: the owner's, of this machine.
            nbytes: that the conversion may take.

        Raises:
            NotReadyError: the owner has one that runs, or there are too many.
            QuotaError: the owner has too little memory left.
        """
        with self._lock:
            if owner in self._owners or len(self._owners) >= self._limit:
                raise NotReadyError(
                    f"conversion of an ONNX file: expected one of an owner and {self._limit} of all at a time, got one "
                    "more: try again when one has ended"
                )
            self._owners.add(owner)
        try:
            memory.take(nbytes)
            try:
                yield
            finally:
                memory.give(nbytes)
        finally:
            with self._lock:
                self._owners.remove(owner)
