"""The operators' functions on arrays: those of `sparse`. The stub beside it is generated."""

from .._schema.functions import populate
from .array import NDArray
from .invoke import call

__all__ = populate(globals(), "sparse", call, NDArray)
