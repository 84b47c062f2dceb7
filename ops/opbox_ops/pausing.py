"""Long work inside one operator: between its pieces the engine stops the call, or lets other calls go first.

How long a step takes may follow from values and parameters, as the samples of a region or the places of a window do,
and not from sizes that have been admitted. A compute that works in pieces calls `pause` before each: there its call
may end with an error, or wait. Arrays are what they are then; nobody else sees them before the step has ended.

A library's call that cannot be cut runs inside `in_one_piece`: the engine refuses it where it would take too long, and
gives the call's place to others as long as it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

__all__ = ["LONG", "in_one_piece", "pause", "set_pause"]

LONG = 1 << 32
"""Multiplications of a library's call from which on it is long: 0.1 s of one thread at 40 GFLOP/s."""


def _go_on() -> None:
    """Do nothing: the pause of a process in which no engine has set one."""


def _run_on(multiplications: int) -> AbstractContextManager[None]:
    """The same for `in_one_piece`."""
    return nullcontext()


_at_pause: Callable[[], None] = _go_on
_around_a_piece: Callable[[int], AbstractContextManager[None]] = _run_on


def set_pause(at_pause: Callable[[], None], around_a_piece: Callable[[int], AbstractContextManager[None]]) -> None:
    """Have every `pause` and `in_one_piece` call these: an engine's, for the call that the thread works on."""
    global _at_pause, _around_a_piece
    _at_pause, _around_a_piece = at_pause, around_a_piece


def pause() -> None:
    """A piece of a step is done, and another follows; may raise what the call has been stopped with."""
    _at_pause()


def in_one_piece(multiplications: int) -> AbstractContextManager[None]:
    """The block is a library's call of so much work that nothing can stop; may raise a LimitError."""
    if multiplications < LONG:
        _at_pause()
        return nullcontext()
    return _around_a_piece(multiplications)
