"""Registries of classes by name: what `mx.registry` offers, and what metrics and initializers are created through.

Names are case-insensitive. A class can be asked for by name, by an instance, or by the JSON text that `dumps` writes:
`'["xavier", {"magnitude": 2}]'` or `'{"metric": "acc"}'`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from opbox_protocol.near_names import near_names

__all__ = ["get_alias_func", "get_create_func", "get_register_func", "get_registry", "meant"]

C = TypeVar("C", bound=type)

_classes: dict[type, dict[str, type]] = {}


def get_registry(base_class: type) -> dict[str, type]:
    """A copy of the table of classes registered under a base class, by lower-case name."""
    return dict(_classes.setdefault(base_class, {}))


def get_register_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """The function that registers a subclass of `base_class`; `nickname` is for messages."""
    table = _classes.setdefault(base_class, {})

    def register(klass: C, name: str | None = None) -> C:
        if not (isinstance(klass, type) and issubclass(klass, base_class)):
            raise AssertionError(f"{klass!r}: only a subclass of {base_class.__name__} can be registered")
        key = (name or klass.__name__).lower()
        if key in table and table[key] is not klass:
            warnings.warn(
                f"New {nickname} {klass.__module__}.{klass.__name__} registered with name {key} overrides "
                f"{table[key].__module__}.{table[key].__name__}",
                UserWarning,
                stacklevel=2,
            )
        table[key] = klass
        return klass

    register.__doc__ = f"Register a {nickname} class under its lower-case name, or under `name`."
    return register


def get_alias_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """The decorator that registers a class under further names."""
    register = get_register_func(base_class, nickname)

    def alias(*names: str) -> Callable[[C], C]:
        def decorate(klass: C) -> C:
            for name in names:
                register(klass, name)
            return klass

        return decorate

    return alias


def meant(name: str, known: Iterable[str]) -> str:
    """The beginning of an error about an unknown name: those that may have been meant; empty where none is near."""
    near = near_names(name, known)
    return f"did you mean {' or '.join(near)}? " if near else ""


def get_create_func(base_class: type, nickname: str) -> Callable[..., Any]:
    """The function that makes an instance from a name, an instance, a dict or a JSON text.

    Raises (from the function returned):
        AssertionError: the name is not registered, or arguments come with an instance.
    """
    table = _classes.setdefault(base_class, {})

    def create(*args: Any, **kwargs: Any) -> Any:
        if args:
            name, args = args[0], args[1:]
        else:
            name = kwargs.pop(nickname)
        if isinstance(name, base_class):
            if args or kwargs:
                raise AssertionError(f"{nickname} is already an instance: further arguments have no meaning")
            return name
        if isinstance(name, dict):
            return create(**name)
        if not isinstance(name, str):
            raise AssertionError(f"{nickname}: expected a name, an instance or a dict, got {type(name).__name__}")
        if name.startswith("["):
            class_name, options = json.loads(name)
            return create(class_name, **options)
        if name.startswith("{"):
            return create(**json.loads(name))
        if name.lower() not in table:
            raise AssertionError(
                f"{nickname} {name!r}: {meant(name, table)}expected one of {', '.join(sorted(table))}; "
                f"a class of yours becomes known by {nickname}.register"
            )
        return table[name.lower()](*args, **kwargs)

    create.__doc__ = f"Make a {nickname} from its name and arguments, an instance, a dict or a JSON text."
    return create
