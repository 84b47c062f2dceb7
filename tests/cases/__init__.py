"""The operator table: one file a family, each with a list CASES of rows; `all_cases` gathers them."""

from __future__ import annotations

import importlib
import pkgutil

from .case import FLOATS, Arg, Case

__all__ = ["FLOATS", "Arg", "Case", "all_cases", "families"]

_NO_FAMILIES = ("presets",)
"""Programs beside the families: they need the engine, which MXNet's Python has not."""


def families() -> dict[str, list[Case]]:
    """The rows by family: the name of their file."""
    rows_by_family = {}
    for name in sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NO_FAMILIES):
        rows = getattr(importlib.import_module(f"{__name__}.{name}"), "CASES", None)
        if rows is not None:
            rows_by_family[name] = list(rows)
    return rows_by_family


def all_cases() -> list[Case]:
    """Every row of every family, in a stable order."""
    return [case for rows in families().values() for case in rows]
