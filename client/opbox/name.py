"""Automatic names of symbols: `fullyconnected0`, and prefixes.

with mx.name.Prefix("tower_"):
    net = mx.sym.FullyConnected(data, num_hidden=10, name="fc1")   # tower_fc1, tower_fc1_weight, …
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from .base import value_text
from .class_property import ClassProperty, WithClassProperties

__all__ = ["NameManager", "Prefix", "current"]

_scope = threading.local()


class NameManager(metaclass=WithClassProperties):
    """Gives names to symbols that the user did not name; a subclass may give others by overriding `get`."""

    def __init__(self) -> None:
        self._counter: dict[str, int] = {}
        self._before: list[NameManager] = []

    current: ClassVar[NameManager]
    """The innermost manager of this thread; setting it replaces it."""

    def get(self, name: str | None, hint: str) -> str:
        """The name to use: the user's own, or `hint` and how often it was asked for before.

        Args:
            name: what the user gave, or None.
            hint: the operator's name in lower case.
        """
        if name:
            return name
        count = self._counter.get(hint, 0)
        self._counter[hint] = count + 1
        return f"{hint}{count}"

    def __enter__(self) -> Any:
        self._before.append(current())
        _scope.value = self
        return self

    def __exit__(self, *_: object) -> None:
        _scope.value = self._before.pop()


class Prefix(NameManager):
    """Puts `prefix` before every name, given or made."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        """The prefixed name."""
        return self._prefix + super().get(name, hint)


def current() -> NameManager:
    """The manager of this thread's innermost `with`."""
    manager: NameManager | None = getattr(_scope, "value", None)
    if manager is None:
        manager = _scope.value = NameManager()
    return manager


def _set_current(scope: Any) -> None:
    """Make `scope` the one of this thread, outside any `with` (MXNet's old manner).

    Raises:
        TypeError: it is none.
    """
    if not isinstance(scope, NameManager):
        raise TypeError(f"NameManager.current: expected a NameManager, got {value_text(scope)}")
    _scope.value = scope


NameManager.current = ClassProperty(current, _set_current, "The innermost manager of this thread.")  # type: ignore[assignment]
