"""Arrays on an engine's device: handles, the operators on them, and files of them.

Operators run in the order of the program, on the engine; the program goes on meanwhile and waits only for values.
"""

from ..operator.compose import array_custom as Custom
from . import _internal, contrib, image, linalg, op, random, sparse
from .array import NDArray, waitall
from .creation import arange, array, concatenate, empty, eye, from_numpy, full, linspace, moveaxis, ones, zeros
from .files import load, load_frombuffer, save
from .invoke import imperative, invoke, invoke_update
from .op import *  # noqa: F403

# The catalogue's functions of these names take arrays only; ours take numbers too, as MXNet's do.
from .binary import (  # isort: skip
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
from .creation import histogram, onehot_encode, split_v2  # isort: skip

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
    "true_divide",
    "waitall",
    "zeros",
    "_internal",
    *op.__all__,
]
