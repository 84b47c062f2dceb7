"""Freed: an object that lets go of something when it is gone, which no interrupt keeps it from."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Freed"]


class Freed:
    """Base of objects that call a function when they are gone: what they set as `__del__`.

    Python calls it as it is. A method written in Python in its place could be interrupted (Ctrl-C) before it has done
    anything, and what is raised there is dropped.
    """

    __slots__ = ("__del__",)
    __del__: Callable[[], object]
