"""Freed: calls a function when an object is collected, even during an interrupt."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Freed"]


class Freed:
    """Base of objects that call a function when they are collected.

    Python calls it as it is. A method written in Python in its place could be interrupted (Ctrl-C) before it has done
    anything, and what is raised there is dropped.
    """

    __slots__ = ("__del__",)
    __del__: Callable[[], object]
