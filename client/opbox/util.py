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

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["getenv", "is_np_array", "is_np_shape", "np_shape", "set_np_shape", "setenv", "use_np_shape"]

F = TypeVar("F", bound=Callable[..., Any])
_mode = threading.local()


def is_np_shape() -> bool:
    """Return whether this thread is in numpy mode."""
    return bool(getattr(_mode, "active", False))


def is_np_array() -> bool:
    """Return False: there is no `mx.np`, whose arrays this asks about."""
    return False


def getenv(name: str) -> str | None:
    """An environment variable of this process; None where it is not set."""
    return os.environ.get(name)


def setenv(name: str, value: str | None) -> None:
    """Set an environment variable of this process, or with None take it away."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def set_np_shape(active: bool) -> bool:
    """Turn numpy mode on or off in this thread; returns whether it was on.

    Example:
        >>> before = mx.util.set_np_shape(True)
    """
    before = is_np_shape()
    _mode.active = bool(active)
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


def use_np_shape(function: F) -> F:
    """Decorator: the function runs in numpy mode; of a class, its methods do.

    Example:
        >>> @mx.util.use_np_shape
        ... def shapes(net): return net.infer_shape(data=(0, 4))
    """
    if isinstance(function, type):
        for name, method in list(vars(function).items()):
            if callable(method) and not isinstance(method, type):
                setattr(function, name, _in_mode(method, True))
        return function
    return _in_mode(function, True)


def _in_mode(function: F, active: bool) -> F:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with np_shape(active):
            return function(*args, **kwargs)

    return cast("F", run)
