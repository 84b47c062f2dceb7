"""Attributes given to all symbols made in a scope.

with mx.AttrScope(ctx_group="stage1", __lr_mult__="0.1"):
    net = mx.sym.FullyConnected(data, num_hidden=10)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from .base import value_text
from .class_property import ClassProperty, WithClassProperties

__all__ = ["AttrScope", "current"]

_scope = threading.local()


class AttrScope(metaclass=WithClassProperties):
    """Attributes, strings by name, for the symbols made inside; scopes nest, the inner one wins.

    Raises:
        ValueError: a value is not a string.
    """

    def __init__(self, **kwargs: str) -> None:
        for key, value in kwargs.items():
            if not isinstance(value, str):
                raise ValueError(f"AttrScope: attribute {key!r}: expected a string, got {type(value).__name__}")
        self._own = kwargs
        self._attr: dict[str, str] = dict(kwargs)
        self._before: list[AttrScope] = []

    current: ClassVar[AttrScope]
    """The innermost scope of this thread; setting it replaces it."""

    def get(self, attr: Mapping[str, Any] | None) -> dict[str, Any]:
        """The scope's attributes, with those that the user gave for one symbol."""
        return {**self._attr, **(attr or {})}

    def __enter__(self) -> AttrScope:
        before = current()
        self._before.append(before)
        self._attr = {**before._attr, **self._own}
        _scope.value = self
        return self

    def __exit__(self, *_: object) -> None:
        _scope.value = self._before.pop()


def current() -> AttrScope:
    """The innermost scope of this thread."""
    scope: AttrScope | None = getattr(_scope, "value", None)
    if scope is None:
        scope = _scope.value = AttrScope()
    return scope


def _set_current(scope: Any) -> None:
    """Make `scope` the one of this thread, outside any `with` (MXNet's old manner).

    Raises:
        TypeError: it is none.
    """
    if not isinstance(scope, AttrScope):
        raise TypeError(f"AttrScope.current: expected an AttrScope, got {value_text(scope)}")
    _scope.value = scope


AttrScope.current = ClassProperty(current, _set_current, "The innermost scope of this thread.")  # type: ignore[assignment]
