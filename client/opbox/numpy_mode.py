"""MXNet's numpy mode for shapes (`mx.util`): in it 0 is a size, and what is unknown is -1 or None.

    with mx.util.np_shape():
        net.infer_shape(data=(0, 4))            # an empty batch
        net.infer_shape_partial(data=(-1, 4))   # a batch of unknown size

Outside of it 0 is an unknown size and () an unknown shape, as in MXNet 1.x. The mode is a thread's own. It concerns
what `infer_shape`, `infer_shape_partial` and `simple_bind` take and give; the shapes that variables are made with; and
the parameter `shape` of `zeros`, `ones`, `full` and the random operators. Files written in it say so, as MXNet's do.
Arrays may be empty or without axes in either mode.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from .base import value_text

__all__ = ["is_np_shape", "np_shape", "set_np_shape", "use_np_shape"]

F = TypeVar("F", bound=Callable[..., Any])
_mode = threading.local()


def is_np_shape() -> bool:
    """Return whether this thread is in numpy mode."""
    return bool(getattr(_mode, "active", False))


def set_np_shape(active: bool) -> bool:
    """Turn numpy mode on or off in this thread; returns whether it was on.

    Raises:
        TypeError: `active` is no truth value.

    Example:
        >>> before = mx.util.set_np_shape(True)
    """
    try:
        wanted = bool(operator.index(active))
    except TypeError:
        raise TypeError(f"set_np_shape: active: expected True or False, got {value_text(active)}") from None
    before = is_np_shape()
    _mode.active = wanted
    return before


class np_shape:
    """Numpy mode (or, with `active=False`, MXNet 1.x's) for a `with` statement, or for a function as a decorator."""

    def __init__(self, active: bool = True) -> None:
        self._active = active
        self._before: list[bool] = []

    def __enter__(self) -> np_shape:
        self._before.append(set_np_shape(self._active))
        return self

    def __exit__(self, *_: object) -> None:
        set_np_shape(self._before.pop())

    def __call__(self, function: F) -> F:
        return _in_mode(function, self._active)


def use_np_shape(func: F) -> F:
    """Decorator: the function runs in numpy mode; of a class, its methods and properties do.

    Raises:
        TypeError: it is neither a function nor a class.

    Example:
        >>> @mx.util.use_np_shape
        ... def shapes(net): return net.infer_shape(data=(0, 4))
    """
    if isinstance(func, type):
        member: Any
        for name, member in list(vars(func).items()):
            if isinstance(member, property):
                parts: list[Any] = [part and _in_mode(part, True) for part in (member.fget, member.fset, member.fdel)]
                setattr(func, name, property(*parts))
            elif callable(member) and not isinstance(member, type | staticmethod):
                setattr(func, name, _in_mode(member, True))
        return func
    if not callable(func):
        raise TypeError(f"use_np_shape: expected a function or a class, got {value_text(func)}")
    return _in_mode(func, True)


def _in_mode(function: F, active: bool) -> F:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with np_shape(active):
            return function(*args, **kwargs)

    return cast("F", run)
