"""Calls that a compute returns when bound to its arrays: several as one, a C function's, and one that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = ["Call", "as_one", "c_call", "nothing", "place_of"]

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


def c_call(function: Callable[..., Any], arguments: Sequence[Any], alive: Any) -> Call:
    """Return a call of a C function; what its arguments point to, `alive`, stays alive with it.

    Example:
        >>> c_call(kernel, (x.ctypes.data, x.size), x)()
    """

    def call(alive: Any = alive) -> None:
        function(*arguments)

    return call


def place_of(array: Any) -> int | None:
    """The address of an array's first element, for a C function; None for None."""
    return None if array is None else int(array.__array_interface__["data"][0])


def nothing() -> None:
    """Do nothing: the call of an operator whose outputs nobody reads, or whose arrays have no elements."""
