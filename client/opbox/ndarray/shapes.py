"""Shapes and types of results that follow from the call alone, so that nobody has to ask the engine.

Only families where MXNet's rule is plain stand here; for all others the answer is "not known", and the engine tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.mxnet import attribute_value, numpy_dtype

__all__ = ["known"]

Known = tuple[tuple[int, ...] | None, Any]
UNKNOWN: Known = (None, None)

LIKE = frozenset(
    [
        "abs",
        "sign",
        "ceil",
        "floor",
        "rint",
        "round",
        "fix",
        "trunc",
        "exp",
        "log",
        "log2",
        "log10",
        "log1p",
        "expm1",
        "sqrt",
        "rsqrt",
        "cbrt",
        "rcbrt",
        "square",
        "reciprocal",
        "negative",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "arcsinh",
        "arccosh",
        "arctanh",
        "degrees",
        "radians",
        "sigmoid",
        "relu",
        "softsign",
        "clip",
        "_copy",
        "zeros_like",
        "ones_like",
        "Activation",
        "softmax",
        "log_softmax",
        "BlockGrad",
    ]
)
"""Results are as the first input."""
BROADCAST = frozenset(
    f"broadcast_{kind}"
    for kind in [
        "add",
        "sub",
        "mul",
        "div",
        "mod",
        "power",
        "maximum",
        "minimum",
        "hypot",
        "equal",
        "not_equal",
        "greater",
        "greater_equal",
        "lesser",
        "lesser_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
    ]
)
CONSTANT = frozenset(["_zeros", "_ones", "_full", "_random_uniform", "_random_normal"])


def known(op: str, attrs: Mapping[str, str], inputs: Sequence[Any]) -> Known:
    """Shape and element type of every output, as far as they are known."""
    if op in CONSTANT:
        shape = attribute_value(attrs.get("shape", "None"))
        shape = (shape,) if isinstance(shape, int) else shape
        name = attrs.get("dtype", "float32")
        dtype = numpy_dtype("float32" if name == "None" else name)
        return (shape, dtype) if shape else (None, dtype)
    if not inputs:
        return UNKNOWN
    first = inputs[0]
    if op in LIKE:
        return first._shape, first._dtype
    if op.endswith("_scalar") and len(inputs) == 1 and op.startswith("_"):
        floating = first._dtype is not None and first._dtype.kind == "f"
        return first._shape, first._dtype if floating else None
    if op == "Cast":
        return first._shape, numpy_dtype(attrs["dtype"])
    if op in BROADCAST and len(inputs) == 2:
        return _broadcast(first, inputs[1])
    return UNKNOWN


def _broadcast(left: Any, right: Any) -> Known:
    dtype = left._dtype if left._dtype == right._dtype else None
    if left._shape is None or right._shape is None:
        return None, dtype
    try:
        return tuple(np.broadcast_shapes(left._shape, right._shape)), dtype
    except ValueError:
        return None, dtype
