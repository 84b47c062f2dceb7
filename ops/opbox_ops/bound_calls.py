"""Calls that a compute returns when it is bound to its arrays: several as one, and one that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Call", "as_one", "nothing"]

Call: TypeAlias = Callable[[], Any]


def as_one(calls: Sequence[Call]) -> Call:
    """Join `calls` into one call that runs them in order.

    Example:
        >>> as_one([partial(np.dot, a, b, out=c), partial(np.add, c, bias, out=c)])()
    """
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


def nothing() -> None:
    """Do nothing: the call of an operator whose outputs nobody reads, or whose arrays have no elements."""
