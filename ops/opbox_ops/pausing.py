"""Long work inside one operator: between its pieces the engine stops the call, or lets other calls go first.

How long a step takes may follow from values and parameters, as the samples of a region or the places of a window do,
and not from sizes that have been admitted. A compute that works in pieces calls `pause` before each: there its call
may end with an error, or wait. Arrays are what they are then; nobody else sees them before the step has ended.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["pause", "set_pause"]


def _go_on() -> None:
    """Where no engine has said what is to happen."""


_at_pause: Callable[[], None] = _go_on


def set_pause(at_pause: Callable[[], None]) -> None:
    """Have every `pause` call this: an engine's, for the call that the thread works on."""
    global _at_pause
    _at_pause = at_pause


def pause() -> None:
    """A piece of a step is done, and another follows; may raise what the call has been stopped with."""
    _at_pause()
