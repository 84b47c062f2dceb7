"""Symbols: graphs of operators, composed here without a server.

`Symbol` and how it is composed, inferred and bound live here; the operator functions come from the catalogue.
"""

from ..operator.compose import symbol_custom as Custom
from . import _internal, contrib, image, linalg, op, random, sparse
from .creation import arange, eye, full, histogram, hypot, linspace, maximum, minimum, ones, pow, power, zeros
from .op import *  # noqa: F403
from .symbol import Symbol, load, load_json
from .variable import Group, Variable, var

# The catalogue's functions of these names take symbols only; ours take numbers too, as MXNet's do.
from .creation import split_v2  # isort: skip

__all__ = [
    "Custom",
    "Group",
    "Symbol",
    "Variable",
    "arange",
    "contrib",
    "eye",
    "full",
    "histogram",
    "hypot",
    "image",
    "linalg",
    "linspace",
    "load",
    "load_json",
    "maximum",
    "minimum",
    "ones",
    "op",
    "pow",
    "power",
    "random",
    "sparse",
    "split_v2",
    "var",
    "zeros",
    "_internal",
    *op.__all__,
]
