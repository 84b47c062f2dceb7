"""Models of one node, run by opbox and by onnx's evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper, shape_inference

from .models import Arrays, imported

__all__ = ["compared", "model_of", "node_sizes"]


def node_sizes(values: np.ndarray[Any, Any], unknown: bool) -> list[int | str]:
    """The sizes that a model gives for an input: its own, or names where they are known only when it is run."""
    return [f"size{axis}" if unknown else size for axis, size in enumerate(values.shape)]


def model_of(
    op_type: str,
    inputs: Sequence[np.ndarray[Any, Any] | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    constants: Sequence[int] = (),
    unknown: Sequence[int] = (),
    opset: int = 17,
    outputs: int = 1,
) -> tuple[ModelProto, Arrays]:
    """A model and what it is fed.

    Args:
        op_type: ONNX's operator.
        inputs: the values of its inputs; None leaves one out.
        attrs: its attributes.
        constants: the positions of inputs that are constants of the model.
        unknown: the positions of inputs whose sizes the model does not give.
        opset: of the model.
        outputs: their number.
    """
    names = ["" if values is None else f"x{i}" for i, values in enumerate(inputs)]
    arrays = {name: values for name, values in zip(names, inputs, strict=True) if values is not None}
    fixed = [f"x{i}" for i in constants]
    makes = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, makes, name="node", **(attrs or {}))
    fed = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(values.dtype), node_sizes(values, int(name[1:]) in unknown)
        )
        for name, values in arrays.items()
        if name not in fixed
    ]
    results = [ValueInfoProto(name=name) for name in makes]  # their types are inferred
    graph = helper.make_graph(
        [node], "graph", fed, results, [numpy_helper.from_array(arrays[name], name) for name in fixed]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = shape_inference.infer_shapes(model)
    for result in model.graph.output:
        if not result.type.WhichOneof("value"):
            result.type.tensor_type.elem_type = TensorProto.FLOAT
    return model, {name: values for name, values in arrays.items() if name not in fixed}


def compared(model: ModelProto, feeds: Arrays, path: Path, tolerance: float = 1e-5) -> None:
    """Import the model and compare what it gives with what onnx's evaluator gives.

    Raises:
        MXNetError: the model is refused.
        AssertionError: the results differ.
    """
    path.write_bytes(model.SerializeToString())
    with np.errstate(all="ignore"):
        expected: Any = ReferenceEvaluator(model).run(None, feeds)
    actual = imported(path, {name: np.atleast_1d(values) for name, values in feeds.items()})
    for got, wanted in zip(actual, expected, strict=True):
        wanted = np.atleast_1d(wanted)
        assert got.shape == wanted.shape, (got.shape, wanted.shape)
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=tolerance, atol=tolerance / 10
        )
