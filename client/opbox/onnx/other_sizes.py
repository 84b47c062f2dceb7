"""Checks a model whose sizes may vary at other sizes than those it was converted with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opbox_protocol.errors import MXNetError

from .network import ExportNetwork

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["check_sizes"]

SMALL = 64
"""Maximum number of elements of a constant from which shapes are computed."""


def check_sizes(network: ExportNetwork, model: ModelProto, values: Mapping[tuple[int, int], str]) -> None:
    """Compare the shapes of a model's values with the network's, where its inputs have other sizes.

    Raises:
        MXNetError: the model has other shapes there than the network: names the node.
    """
    other = network.at_other_sizes()
    if other is None:
        return
    inputs, expected = other
    shapes = _shapes(model, inputs)
    for node in network.nodes:
        for index in range(node.visible_outputs() if node.op is not None else 0):
            shape = shapes.get(values.get((id(node), index), ""))
            wanted = expected[id(node), index]
            if shape is not None and shape != wanted:
                assert node.op is not None
                where = f"{node.name} ({node.op.name})"
                raise MXNetError(
                    f"export_model: {where}: expected {wanted} for inputs of {inputs}, got {shape}: "
                    "ONNX cannot express it for all sizes: free fewer dimensions by dynamic_input_shapes"
                )


def _shapes(model: ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes that ONNX infers for inputs of these sizes."""
    from onnx import helper, shape_inference

    graph = model.graph
    fed = [helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, inputs[v.name]) for v in graph.input]
    small = []
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= SMALL:
            small.append(tensor)
        else:  # its values say nothing of shapes
            fed.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    results = [helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, None) for v in graph.output]
    sized = helper.make_graph(graph.node, graph.name, fed, results, small)
    whole = helper.make_model(sized, opset_imports=model.opset_import, ir_version=model.ir_version)
    inferred = shape_inference.infer_shapes(whole, data_prop=True).graph
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.output)
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
