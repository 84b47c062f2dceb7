"""Shapes and types of results that follow from the call alone, so that nobody has to ask the engine.

The catalogue says for which operators they do; of all others the engine tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.mxnet import NP_SHAPE, attribute_value, numpy_dtype

from .._schema import Operator
from .handle import Handle

__all__ = ["known"]

Shape = tuple[int, ...] | None
DType = np.dtype[Any] | None


def known(op: Operator, attrs: Mapping[str, str], inputs: Sequence[Handle]) -> tuple[Shape, DType]:
    """Shape and element type of every output; None for what only the engine can tell.

    Args:
        op: the operator.
        attrs: its parameters, as strings.
        inputs: its inputs in order.
    """
    return _shape(op, attrs, inputs), _dtype(op, attrs, inputs)


def _shape(op: Operator, attrs: Mapping[str, str], inputs: Sequence[Handle]) -> Shape:
    if op.result_shape == "given":
        shape = attribute_value(attrs.get("shape", "None"))
        if isinstance(shape, int):
            shape = (shape,)
        if shape is not None and NP_SHAPE in attrs:
            return shape if min(shape, default=0) >= 0 else None
        return shape if shape and min(shape) > 0 else None
    if not inputs or op.result_shape is None:
        return None
    if op.result_shape == "first":
        return inputs[0]._shape
    shapes = [x._shape for x in inputs]
    try:
        return np.broadcast_shapes(*(shape for shape in shapes if shape is not None)) if None not in shapes else None
    except ValueError:
        return None  # the engine refuses it, in its own words


def _dtype(op: Operator, attrs: Mapping[str, str], inputs: Sequence[Handle]) -> DType:
    first = inputs[0]._dtype if inputs else None
    if op.result_type == "first":
        return first
    if op.result_type == "first if real":
        return first if first is not None and first.kind == "f" else None
    if op.result_type in ("given", "given or first"):
        name = attrs.get("dtype", op.params["dtype"].get("default"))
        if name not in (None, "None"):
            return numpy_dtype(name)
        return first if op.result_type == "given or first" else np.dtype(np.float32)
    return None
