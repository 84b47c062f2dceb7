"""The operator table: one file a family, each with a list CASES of rows; `all_cases` gathers them."""

from __future__ import annotations

import importlib
import pkgutil

from .case import FLOATS, Arg, Case

__all__ = ["FLOATS", "Arg", "Case", "all_cases"]


def all_cases() -> list[Case]:
    """Every row of every family, in a stable order."""
    found: list[Case] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found += getattr(importlib.import_module(f"{__name__}.{module}"), "CASES", [])
    return found
