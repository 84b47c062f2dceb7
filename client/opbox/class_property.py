"""Properties of a class itself, which MXNet's scopes have: `mx.name.NameManager.current`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ClassProperty", "WithClassProperties"]


class ClassProperty:
    """A property that is read and set on a class, whose metaclass is `WithClassProperties`.

    Args:
        read: takes no arguments and returns the value.
        write: takes the value.
        doc: what the property is.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], doc: str) -> None:
        self._read = read
        self.write = write
        self.__doc__ = doc

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._read()


class WithClassProperties(type):
    """Metaclass of classes that have a `ClassProperty`: setting the attribute sets the property.

    Example:
        >>> mx.Context.default_ctx = mx.gpu(0)
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        known = next((vars(kind)[name] for kind in cls.__mro__ if name in vars(kind)), None)
        if isinstance(known, ClassProperty):
            known.write(value)
        else:
            super().__setattr__(name, value)
