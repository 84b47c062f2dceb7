"""Operators as methods: `x.reshape(shape=(2, 3))`. Filled from the catalogue; the stub beside it is generated."""

from __future__ import annotations

from .._schema.functions import add_methods

__all__ = ["SymbolFluent"]


class SymbolFluent:
    """Base with a method for each operator that the catalogue has as one."""

    __slots__ = ()


add_methods(SymbolFluent)
