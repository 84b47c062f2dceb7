"""The operators' functions on symbols: those of `image`. The stub beside it is generated."""

from .._schema.functions import populate
from .compose import caller
from .symbol import Symbol

__all__ = populate(globals(), "image", caller(Symbol), Symbol)
