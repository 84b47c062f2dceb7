"""Callbacks of a training as users give them: none, a function or a list of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base import value_text

__all__ = ["Callbacks", "check_callbacks", "listed"]

Callbacks = Any


def listed(callbacks: Callbacks) -> Sequence[Callable[..., Any]]:
    """The functions, one after the other."""
    if callbacks is None:
        return ()
    return callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,)


def check_callbacks(arguments: Mapping[str, tuple[Callbacks, str]]) -> None:
    """TypeError for what cannot be called as a callback is, before a training has begun.

    Args:
        arguments: the callbacks by the names of their arguments, each with the names of what it is called with.
    """
    for argument, (callbacks, names) in arguments.items():
        for callback in listed(callbacks):
            expected = f"{argument}: expected a function of ({names}), or a list of them"
            if not callable(callback) or isinstance(callback, type):
                raise TypeError(f"{expected}, got {value_text(callback)}")
            try:
                signature = inspect.signature(callback)
            except (TypeError, ValueError):
                continue  # a builtin, which does not tell
            try:
                signature.bind(*names.split(", "))
            except TypeError:
                name = getattr(callback, "__name__", type(callback).__name__)
                raise TypeError(f"{expected}, got {name}{signature}") from None
