"""Handles forks: a child keeps the engine's address and none of its parent's sessions.

`multiprocessing`, data loaders and gunicorn's prefork fork. The child opens a session of its own at its first call and
ends only that; the parent notices nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from weakref import WeakSet

from opbox_protocol.errors import MXNetError

__all__ = ["AfterFork", "at_end_of_child", "of_the_parent"]


class AfterFork:
    """Base of objects that a forked child must not use as they are: it makes them its own.

    Threads other than the one that forks are not in the child, and what they had locked stays locked there.
    """

    _all: WeakSet[AfterFork] = WeakSet()

    def __init__(self) -> None:
        AfterFork._all.add(self)

    def become_childs(self) -> None:
        """Called once in the child, before anything else uses the object there."""
        raise NotImplementedError


def of_the_parent() -> MXNetError:
    """Return the error for an array whose session is the parent's."""
    return MXNetError(
        f"this array: expected one that was made in this process ({os.getpid()}), got one of the process that it was "
        f"forked from ({os.getppid()}): read its values there before the fork (asnumpy), or make it here"
    )


def at_end_of_child(end: Callable[[], object]) -> None:
    """Call `end` before a child of `multiprocessing` ends, as such children run no `atexit` functions."""
    util = sys.modules.get("multiprocessing.util")
    if _is_child and util is not None:
        util.Finalize(None, end, exitpriority=0)


_is_child = False


def _in_child() -> None:
    global _is_child
    _is_child = True
    for item in list(AfterFork._all):
        item.become_childs()


os.register_at_fork(after_in_child=_in_child)
