"""Models whose inputs or outputs state no shape, as the format allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onnx
import opbox as mx
from onnx import TensorProto, helper, numpy_helper

from .models import exported, imported, same

X = np.random.RandomState(3).uniform(-1, 1, (4, 3)).astype("float32")


def value(name: str, shape: list[int | str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.mark.parametrize(
    ("operator", "of_input", "of_output"),
    [
        ("MatMul", ["rows", 3], None),
        ("Tanh", ["rows", 3], None),
        ("Tanh", None, ["rows", 3]),
        ("Tanh", None, None),
    ],
)
def test_a_shape_that_is_not_stated(
    operator: str, of_input: list[int | str] | None, of_output: list[int | str] | None, tmp_path: Path
) -> None:
    weight = numpy_helper.from_array(np.eye(3, 2, dtype=np.float32) + 1, "w")
    node = helper.make_node(operator, ["x", "w"] if operator == "MatMul" else ["x"], ["y"])
    weights = [weight] if operator == "MatMul" else []
    graph = helper.make_graph([node], "g", [value("x", of_input)], [value("y", of_output)], weights)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    same(imported(path, {"x": X}), exported(path, {"x": X}))
    described = mx.onnx.get_model_metadata(path)
    assert described["output_tensor_data"] == [("y", () if of_output is None else (0, 3))]
