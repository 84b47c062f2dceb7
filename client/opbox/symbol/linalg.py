"""The operators' functions on symbols: those of `linalg`. The stub beside it is generated."""

from .._schema.functions import populate
from .compose import caller
from .symbol import Symbol

__all__ = populate(globals(), "linalg", caller(Symbol), Symbol)
