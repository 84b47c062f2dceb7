"""The operators' functions on arrays: those of `_internal`. The stub beside it is generated."""

from .._schema.functions import populate
from .array import NDArray
from .invoke import call

__all__ = populate(globals(), "_internal", call, NDArray)
