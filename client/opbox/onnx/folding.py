"""Working out nodes of an ONNX model whose inputs are known, as shapes that are computed in the model are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.errors import MXNetError

from .import_graph import Array, ImportGraph
from .importing import IMPORTERS, ImportCall

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto

__all__ = ["CONSTANT", "folded"]

CONSTANT = ("Constant", "ConstantOfShape", "Range")
"""ONNX operators that are evaluated when reading and have no converter."""
FOLDABLE = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand",
    "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less",
    "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "Range", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Shape", "Sign", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub",
    "Tile", "Transpose", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
"""Operators that shapes and packed weights are computed by. Others run with the network: onnx's evaluator has no old
versions of all of them, and some draw numbers."""
FOLDED = 2**20
"""Maximum number of elements of an evaluated constant."""


def folded(graph: ImportGraph, node: NodeProto) -> bool:
    """Work out a node whose inputs are known; False when they are not, the result is large, or its converter is to.

    Raises:
        MXNetError: onnx cannot work out a node that has no converter.
    """
    names = [name for name in node.input if name]
    if node.op_type == "Shape" and graph.knows_shape(names[0]) and None not in graph.shapes[names[0]]:
        whole = np.array(graph.shapes[names[0]], np.int64)
        bounds = {attr.name: attr.i for attr in node.attribute}
        graph.constants[node.output[0]] = whole[bounds.get("start", 0) : bounds.get("end", len(whole))]
        return True
    if node.op_type not in FOLDABLE or any(name not in graph.constants for name in names):
        return False
    if any(graph.constants[name].size > FOLDED for name in names) and node.op_type not in ("Cast", "Identity"):
        return False
    try:
        results = _worked_out(graph, node, [graph.constants[name] if name else None for name in node.input])
    except Exception as error:  # onnx's evaluator lacks operators and opsets, and raises errors of any kind
        if node.op_type in IMPORTERS:
            return False
        name = node.name or node.output[0]
        raise MXNetError(f"import_model: {name} ({node.op_type}): onnx cannot work it out: {error}") from error
    for name, value in zip(node.output, results, strict=True):
        if name:
            graph.constants[name] = value
    return True


def _worked_out(graph: ImportGraph, node: NodeProto, values: list[Any]) -> list[Array]:
    from onnx.reference import ReferenceEvaluator

    from onnx import ValueInfoProto, helper

    if node.op_type in ("Squeeze", "Unsqueeze"):  # before opset 13 onnx's evaluator takes the axes one by one
        axes = ImportCall(node, graph).ints(1, "axes")
        if node.op_type == "Unsqueeze":
            return [np.expand_dims(values[0], tuple(axes or ()))]
        return [np.squeeze(values[0], None if axes is None else tuple(axes))]
    feeds = {name: value for name, value in zip(node.input, values, strict=True) if name}
    # A model, and not the node: of a node alone the evaluator takes the newest version, and leaves its attributes out.
    graph_of_one = helper.make_graph(
        [node],
        node.op_type,
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in feeds.items()
        ],
        [ValueInfoProto(name=name) for name in node.output],
    )
    model = helper.make_model(graph_of_one, opset_imports=[helper.make_opsetid("", graph.opset)])
    results: Any = ReferenceEvaluator(model).run(None, feeds)
    return [np.asarray(value) for value in results]


def _typed(name: str, array: Array) -> ValueInfoProto:
    """An input of a model."""
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
