"""Controls Python's garbage collector: it waits while a graph is built, and scans long-lived objects once.

Writing, loading or compiling a graph makes many objects that stay, and the collector looks at all that there are each
time a quarter more has come. For a graph of 10,000 nodes that is a third of the time (`benchmarks/bind.py`), and there
is nothing to collect. In a server it is worse: a whole collection keeps the interpreter's lock, so that everybody waits
for it, and takes as long as there are objects: 0.2 s when only the operators are loaded. There (`begin_tending`) what
stays is set aside ("frozen": it goes when nothing refers to it any more), and whole collections are rare.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["begin_tending", "collect", "collection_paused", "tend"]

MANY = 50_000
"""Number of new objects from which on a block freezes them at its end."""
OLD = 32
"""Number of young collections before one of all objects that are not frozen; each has left at most 7,000 of them."""
TOO_MANY_OLD = 4 * OLD
"""Number from which on that would take too long: 0.1 s and more. They are frozen without a look."""
THRESHOLDS = 700, 10
"""New objects before a collection of the new ones, and such collections before one of all young objects. A Python's own
numbers differ by its version."""
YOUNG = THRESHOLDS[0] * THRESHOLDS[1]
"""Number of objects that a collection of young objects leaves at most."""
GROWN = 4_000_000
"""Number of frozen objects from which on they are searched for cycles."""
MAX_SEARCHED_OFTEN = 500_000
"""Number of frozen objects up to which a search takes 0.1 s. More are searched when they have doubled: what graphs and
plans are made of refers to nothing that refers back, and goes without a search."""
ITS_OWN = 5_000
"""Objects that a Python may set aside itself at its start: 3.12.1 has 375 of them. More are those of the program."""

_lock = threading.Lock()
_blocks = 0
_enabled = False
_tended = False
_set_aside = 0
_searched = 0
"""Number of frozen objects that the last search has left."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Switches automatic collection off in a block or a decorated function, also in several threads at once.

    A program that has switched the collector off finds it off afterwards.
    """
    global _blocks, _enabled, _set_aside
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
                young = gc.get_count()[0]
                if young > MANY and (_tended or gc.get_freeze_count() < ITS_OWN):
                    _set_aside += young
                    gc.freeze()  # or the next collection, which is due at once, would look at all of them
                    if not _tended:
                        _let_age()
                gc.enable()


def _let_age() -> None:
    """In a user's own process: treat frozen objects as old, and rarely scan all of them."""
    global _set_aside
    gc.unfreeze()
    if _set_aside > GROWN:
        _set_aside = 0
        gc.collect()


def begin_tending() -> None:
    """For a server that is ready: set aside all that there is; by themselves only young objects are collected now.

    Not for a process that is the user's own, whose objects are not ours to set aside.
    """
    global _tended
    _tended = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS, 1 << 30)


def collect() -> None:
    """Collect now, unless a graph is being made: all its objects would be looked at, and none of them could go."""
    if not _blocks and gc.get_count()[2] < TOO_MANY_OLD:
        gc.collect()


def tend(*, idle: bool = True) -> None:
    """About once in a second: collect what has become old, and set the rest aside; seldom, look through all of it.

    Args:
        idle: nobody waits for this process; without it nothing is done that may take longer than some ten milliseconds.
    """
    global _set_aside, _searched
    if _blocks:
        return
    old, search = gc.get_count()[2], False
    if idle and _set_aside > GROWN:
        _set_aside = 0
        frozen = gc.get_freeze_count()
        search = frozen > (_searched + MANY if frozen < MAX_SEARCHED_OFTEN else 2 * max(_searched, GROWN))
    if search:
        gc.unfreeze()
    elif old < OLD:
        return
    if search or idle or old < TOO_MANY_OLD:
        gc.collect()
    else:
        _set_aside += YOUNG * old
    gc.freeze()
    if search:
        _searched = gc.get_freeze_count()
