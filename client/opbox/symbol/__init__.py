"""Symbols: graphs of operators, composed here without a server.

`Symbol` and how it is composed, inferred and bound live here; the operator functions come from the catalogue.
"""

from typing import TYPE_CHECKING

from .._schema.namespaces import attach, install
from . import contributed, random
from .creation import (
    arange,
    eye,
    full,
    histogram,
    hypot,
    linspace,
    maximum,
    minimum,
    ones,
    pow,
    power,
    split_v2,
    zeros,
)
from .custom import Custom
from .symbol import Symbol, load, load_json
from .variable import Group, Variable, var

install(__name__, Symbol, {"contrib": contributed})

from . import _internal, contrib, image, linalg, op, sparse  # noqa: E402

if TYPE_CHECKING:
    from .op import *  # noqa: F403
else:
    # The functions of `op` are here too, unless a function of that name above takes more, as MXNet's does.
    __getattr__, __dir__ = attach(__name__, "op", Symbol)

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
