"""Arrays on an engine's device: handles, the operators on arrays, and files of arrays.

Operators run in the order of the program, on the engine; the program goes on meanwhile and waits only for values.
"""

from typing import TYPE_CHECKING

from .._schema.namespaces import attach, install
from . import contributed, random
from .array import NDArray, array
from .creation import (
    arange,
    concatenate,
    empty,
    eye,
    from_dlpack,
    from_numpy,
    full,
    histogram,
    linspace,
    moveaxis,
    onehot_encode,
    ones,
    split_v2,
    to_dlpack_for_read,
    zeros,
)
from .custom import Custom
from .files import load, load_frombuffer, save
from .invocation import imperative, invoke, waitall
from .two_operands import (
    add,
    divide,
    equal,
    greater,
    greater_equal,
    lesser,
    lesser_equal,
    logical_and,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    modulo,
    multiply,
    not_equal,
    power,
    subtract,
    true_divide,
)
from .updates import invoke_update

install(__name__, NDArray, {"contrib": contributed})

from . import _internal, contrib, image, linalg, op, sparse  # noqa: E402

if TYPE_CHECKING:
    from .op import *  # noqa: F403
else:
    # The functions of `op` are here too, unless a function of that name above takes more, as MXNet's does.
    __getattr__, __dir__ = attach(__name__, "op", NDArray)

__all__ = [
    "Custom",
    "NDArray",
    "add",
    "arange",
    "array",
    "concatenate",
    "contrib",
    "divide",
    "empty",
    "equal",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "greater",
    "greater_equal",
    "histogram",
    "image",
    "imperative",
    "invoke",
    "invoke_update",
    "lesser",
    "lesser_equal",
    "linalg",
    "linspace",
    "load",
    "load_frombuffer",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "modulo",
    "moveaxis",
    "multiply",
    "not_equal",
    "onehot_encode",
    "ones",
    "op",
    "power",
    "random",
    "save",
    "sparse",
    "split_v2",
    "subtract",
    "to_dlpack_for_read",
    "true_divide",
    "waitall",
    "zeros",
    "_internal",
    *op.__all__,
]
