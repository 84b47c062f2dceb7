"""The modules of operators, `mx.nd.linalg` and the like: which operators are in each, as its functions.

An operator is in a module by its name alone: `_linalg_gemm2` is `linalg.gemm2`. `install` makes the modules of one
package; they need no files, and can be imported as if they had some. A function is made when it is first used, so
operators that the catalogue learns later are there at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..absent import attribute_error
from .functions import build
from .operator import Operator, find, operators

__all__ = ["NAMESPACES", "WRITTEN", "attach", "functions_of", "install"]

NAMESPACES: dict[str, tuple[str, ...]] = {
    "op": ("",),
    "_internal": ("_",),
    "contrib": ("_contrib_",),
    "image": ("_image_",),
    "linalg": ("_linalg_",),
    "random": ("_random_", "_sample_"),
    "sparse": ("_sparse_",),
}
"""The modules by the prefixes of their operators' names; `_internal` keeps the whole names."""

WRITTEN = {"contrib": "contributed"}
"""Modules that also have hand-written functions, with their files."""


def _kept_whole(namespace: str) -> bool:
    return namespace in ("op", "_internal")


def _operator(namespace: str, function: str) -> Operator | None:
    """The operator that a module has under a function's name, or None."""
    if namespace == "op":
        return None if function.startswith("_") else find(function)
    if namespace == "_internal":
        return find(function) if function.startswith("_") else None
    return next((op for prefix in NAMESPACES[namespace] if (op := find(prefix + function)) is not None), None)


def functions_of(namespace: str) -> dict[str, Operator]:
    """The operators of a module of `NAMESPACES`, by the names of their functions."""
    names: dict[str, Operator] = {}
    for op in operators():
        for name in (op.name, *op.aliases):
            for prefix in NAMESPACES[namespace]:
                if name.startswith(prefix):
                    function = name if _kept_whole(namespace) else name[len(prefix) :]
                    if _operator(namespace, function) is op:
                        names[function] = op
    return names


def attach(
    module: str, namespace: str, tensor: type, written: ModuleType | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module that has the functions of a namespace, beside its own names.

    Args:
        module: its full name.
        namespace: one of `NAMESPACES`.
        tensor: Symbol or NDArray.
        written: a module whose functions (its `__all__`) are there too, before an operator of the same name.
    """
    by_hand: tuple[str, ...] = () if written is None else tuple(written.__all__)

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted({*functions_of(namespace), *by_hand})
        if name in by_hand:
            return getattr(written, name)
        op = _operator(namespace, name)
        if op is None:
            raise attribute_error(module, name, listed())
        function = build(op, name, name.lower(), tensor)
        function.__module__ = module
        vars(sys.modules[module])[name] = function
        return function

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[module]), *functions_of(namespace), *by_hand})

    return load, listed


def install(package: str, tensor: type, written: Mapping[str, ModuleType]) -> None:
    """Make the modules of operators of a package (`opbox.ndarray`, `opbox.symbol`) that it does not define itself.

    Args:
        package: its full name.
        tensor: Symbol or NDArray.
        written: functions written by hand, by the name of the module that they are in beside its operators.
    """
    above = vars(sys.modules[package])
    for namespace in NAMESPACES:
        name = f"{package}.{namespace}"
        if name not in sys.modules:
            module = ModuleType(name, f"Operators on {tensor.__name__}s, as functions made from the catalogue.")
            vars(module)["__getattr__"], vars(module)["__dir__"] = attach(
                name, namespace, tensor, written.get(namespace)
            )
            sys.modules[name] = above[namespace] = module
