"""Packages whose names are imported when they are first used (PEP 562), so that a program loads what it needs.

__getattr__, __dir__ = attach(__name__, __all__, modules={"nd": "ndarray"}, homes={"Context": "context"})
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["AbsentModules", "attach"]


class AbsentModules:
    """The last finder of modules: `import opbox.gluon` says why there is no such module, as `mx.gluon` does."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        package, _, name = fullname.rpartition(".")
        if package in ("opbox", "opbox.contrib"):
            from .absent import refuse_module

            refuse_module(package, name)


def attach(
    package: str, public: Iterable[str], modules: Mapping[str, str], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports on first use.

    Args:
        package: its full name.
        public: all names that it offers. Those in neither table are submodules of that name.
        modules: the submodule that each short name stands for; of another package by its full name.
        homes: the submodule that defines each class, function or value.

    Returns:
        Two functions, to be assigned to `__getattr__` and `__dir__` in the package.
    """
    names = frozenset(public)

    def load(name: str) -> Any:
        if name not in names:
            from .absent import attribute_error

            raise attribute_error(package, name, names)
        home = homes.get(name)
        place = home or modules.get(name, name)
        module = importlib.import_module(place if "." in place else f"{package}.{place}")
        value = module if home is None else getattr(module, name)
        vars(sys.modules[package])[name] = value
        return value

    def listed() -> list[str]:
        return sorted(names | vars(sys.modules[package]).keys())

    return load, listed
