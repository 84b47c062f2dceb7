"""The operators' functions on arrays: those of `image`. The stub beside it is generated."""

from .._schema.functions import populate
from .array import NDArray
from .invoke import call

__all__ = populate(globals(), "image", call, NDArray)
