"""Python's garbage collector waits while a graph is loaded or compiled.

Both make many objects that stay, and the collector looks at all that there are each time a quarter more has come. For a
graph of 10,000 nodes that is a third of the time (`benchmarks/bind.py`), and there is nothing to collect.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_paused"]

_lock = threading.Lock()
_blocks = 0
_enabled = False


@contextmanager
def collection_paused() -> Iterator[None]:
    """A block, or a decorated function, in which nothing is collected by itself; several may be at once, in threads.

    A program that has switched the collector off finds it off afterwards.
    """
    global _blocks, _enabled
    with _lock:
        if not _blocks:
            _enabled = gc.isenabled()
            gc.disable()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and _enabled:
                gc.enable()
