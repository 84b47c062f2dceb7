"""Single ONNX nodes, with what differs between ONNX and MXNet: the numbers are ONNX's, or the node is refused."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from onnx import TensorProto, helper
from opbox.onnx import importers, importing
from opbox.symbol import Symbol
from opbox_protocol.errors import MXNetError

from .models import imported
from .single_nodes import compared, model_of

RANDOM = np.random.RandomState(3)
IMAGE = RANDOM.uniform(-3, 3, (2, 3, 5, 6)).astype(np.float32)
ROWS = RANDOM.uniform(-3, 3, (3, 4)).astype(np.float32)
CUBE = RANDOM.uniform(-3, 3, (2, 3, 4)).astype(np.float32)
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 8388609.0, -8388611.0, np.inf, -0.3], np.float32)


def ints(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def floats(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


NODES: dict[str, dict[str, Any]] = {
    "Gather of fed indices below 0": {"op_type": "Gather", "inputs": [ROWS, ints([-1, 0, -3])], "attrs": {"axis": 1}},
    "Gather of one fed index": {"op_type": "Gather", "inputs": [ROWS, np.array(-2)], "attrs": {"axis": -1}},
    "Gather of constant indices, of an unknown size": {
        "op_type": "Gather",
        "inputs": [ROWS, ints(-1, 2)],
        "constants": [1],
        "unknown": [0],
    },
    "GatherElements of fed indices": {
        "op_type": "GatherElements",
        "inputs": [ROWS, ints([-1], [0], [-4])],
        "attrs": {"axis": 1},
    },
    "GatherElements of many indices": {
        "op_type": "GatherElements",
        "inputs": [ROWS, ints([-1, 0, 2, 1], [0, -3, 1, -2])],
        "attrs": {"axis": -2},
    },
    "GatherND of fed indices": {"op_type": "GatherND", "inputs": [CUBE, ints([-1, 0], [0, -3], [1, 1])]},
    "GatherND of batches": {"op_type": "GatherND", "inputs": [CUBE, ints([-1], [0])], "attrs": {"batch_dims": 1}},
    "GatherND of batches of batches": {
        "op_type": "GatherND",
        "inputs": [CUBE, RANDOM.randint(-4, 4, (2, 3, 1)).astype(np.int64)],
        "attrs": {"batch_dims": 2},
    },
    "OneHot of fed indices": {
        "op_type": "OneHot",
        "inputs": [ints([-1, 0], [2, -3]), np.array(3), floats(2, 5)],
        "constants": [1, 2],
    },
    "OneHot along the first axis": {
        "op_type": "OneHot",
        "inputs": [ints([-1, 0], [2, -3]), np.array(3), floats(2, 5)],
        "attrs": {"axis": 0},
        "constants": [1, 2],
    },
    "Expand of unknown sizes": {
        "op_type": "Expand",
        "inputs": [floats([[1]], [[2]]), ints(2, 3, 4)],
        "constants": [1],
        "unknown": [0],
    },
    "Expand to more dimensions": {
        "op_type": "Expand",
        "inputs": [floats([1], [2]), ints(4, 1, 3)],
        "constants": [1],
        "unknown": [0],
    },
    "MaxPool with a window behind the data": {
        "op_type": "MaxPool",
        "inputs": [IMAGE],
        "attrs": {"kernel_shape": [1, 1], "strides": [4, 3], "ceil_mode": 1},
    },
    "MaxPool with a window that begins in the padding": {
        "op_type": "MaxPool",
        "inputs": [IMAGE[:, :, :4, :4]],
        "attrs": {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    },
    "MaxPool with other padding behind": {
        "op_type": "MaxPool",
        "inputs": [IMAGE - 9],
        "attrs": {"kernel_shape": [2, 2], "pads": [0, 1, 1, 0]},
    },
    "MaxPool without padding and with ceil_mode": {
        "op_type": "MaxPool",
        "inputs": [IMAGE],
        "attrs": {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "VALID", "ceil_mode": 1},
    },
    "MaxPool with ceil_mode, of an unknown size": {
        "op_type": "MaxPool",
        "inputs": [IMAGE],
        "attrs": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        "unknown": [0],
    },
    "AveragePool with padding that counts": {
        "op_type": "AveragePool",
        "inputs": [IMAGE],
        "attrs": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 1], "count_include_pad": 1},
        "opset": 19,
    },
    "AveragePool with padding that does not count": {
        "op_type": "AveragePool",
        "inputs": [IMAGE],
        "attrs": {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
        "opset": 19,
    },
    "LpPool of signs": {"op_type": "LpPool", "inputs": [IMAGE], "attrs": {"kernel_shape": [2, 2], "p": 3}},
    "LpPool of sums": {"op_type": "LpPool", "inputs": [IMAGE], "attrs": {"kernel_shape": [2, 2], "p": 1}},
    "LpPool of a power that MXNet lacks": {
        "op_type": "LpPool",
        "inputs": [IMAGE],
        "attrs": {"kernel_shape": [2, 2], "p": 5, "pads": [0, 1, 1, 0]},
    },
    "Clip whose bounds cross": {
        "op_type": "Clip",
        "inputs": [ROWS, np.float32(2), np.float32(-1)],
        "constants": [1, 2],
    },
    "Clip of fed bounds that cross": {"op_type": "Clip", "inputs": [ROWS, np.array(2, "f"), np.array(-1, "f")]},
    "Clip of float64 without an upper bound": {
        "op_type": "Clip",
        "inputs": [np.array([1e300, -1e300, 0]), np.array(-1.0)],
        "constants": [1],
    },
    "Clip before opset 11": {"op_type": "Clip", "inputs": [ROWS], "attrs": {"max": 1.0}, "opset": 7},
    "Flatten behind the last axis": {"op_type": "Flatten", "inputs": [CUBE], "attrs": {"axis": 3}},
    "Flatten before the first axis": {"op_type": "Flatten", "inputs": [CUBE], "attrs": {"axis": -3}},
    "Gemm with a bias for each row": {
        "op_type": "Gemm",
        "inputs": [ROWS[:3, :3], ROWS[:, :3], floats([1], [2], [3])],
        "constants": [1, 2],
    },
    "PRelu with a slope for each column": {
        "op_type": "PRelu",
        "inputs": [CUBE[:, :, :3], floats(0.1, 0.5, 2)],
        "constants": [1],
    },
    "Round of halves and large numbers": {"op_type": "Round", "inputs": [HALVES]},
    "Split into parts of which the last is smaller": {
        "op_type": "Split",
        "inputs": [floats(1, 2, 3, 4, 5, 6, 7)],
        "attrs": {"num_outputs": 3},
        "opset": 18,
        "outputs": 3,
    },
    "Where of parts none of which is whole": {
        "op_type": "Where",
        "inputs": [np.array([[True], [False], [True]]), floats([1, 2, 3, 4]), floats(7)],
    },
    "Where of parts of unknown sizes": {
        "op_type": "Where",
        "inputs": [np.array([[True], [False], [True]]), floats([[1, 2, 3, 4]]), floats([7], [8], [9])],
        "unknown": [0, 1, 2],
    },
    "ReduceSum of axes, with a word on no axes": {
        "op_type": "ReduceSum",
        "inputs": [ROWS, ints(-1)],
        "attrs": {"noop_with_empty_axes": 1},
        "constants": [1],
    },
    "ReduceSum of no axes": {"op_type": "ReduceSum", "inputs": [ROWS], "attrs": {"noop_with_empty_axes": 1}},
    "And of fed truths": {"op_type": "And", "inputs": [np.array([True, False]), np.array([[True], [False]])]},
    "Pow of two types": {"op_type": "Pow", "inputs": [ints(4, 9), floats(0.5, -1)]},
    "Mod by 0": {"op_type": "Mod", "inputs": [floats(1, 0, 5, -5), floats(0, 0, 3, 3)]},
    "MatMul of stacks that are broadcast": {
        "op_type": "MatMul",
        "inputs": [RANDOM.rand(2, 1, 3, 4).astype("f"), RANDOM.rand(5, 4, 2).astype("f")],
    },
    "Resize as it is by default": {
        "op_type": "Resize",
        "inputs": [IMAGE, None, floats(1, 1, 3, 3)],
        "attrs": {"mode": "nearest", "cubic_coeff_a": -0.5},
        "constants": [2],
    },
    "ArgMax of the last axis": {"op_type": "ArgMax", "inputs": [ROWS], "attrs": {"axis": -1, "keepdims": 0}},
    "Dropout of nothing": {"op_type": "Dropout", "inputs": [ROWS, np.float32(0.5)], "constants": [1]},
}


@pytest.mark.parametrize("name", NODES)
def test_a_node_gives_the_numbers_of_onnx(name: str, tmp_path: Path) -> None:
    compared(*model_of(**NODES[name]), tmp_path / "net.onnx")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "training": (
        {"op_type": "Dropout", "inputs": [ROWS, np.float32(0.5), np.array(True)], "constants": [1, 2]},
        "node (Dropout): training_mode: expected False, got True: export the model for inference",
    ),
    "training that is fed": (
        {"op_type": "Dropout", "inputs": [ROWS, np.float32(0.5), np.array(True)]},
        "node (Dropout): expected input 2 (x2) to be a constant, got a value that is computed",
    ),
    "statistics for each element": (
        {
            "op_type": "BatchNormalization",
            "inputs": [IMAGE, *[np.ones(3, np.float32)] * 4],
            "attrs": {"spatial": 0},
            "opset": 7,
        },
        "node (BatchNormalization): attribute spatial: expected 1, got 0, which opbox's converter does not read",
    ),
    "means that nobody computes": (
        {"op_type": "LayerNormalization", "inputs": [ROWS, ROWS[0]], "attrs": {"stash_type": 11}},
        "node (LayerNormalization): attribute stash_type: expected 1, got 11, which opbox's converter does not read",
    ),
    "another gamma": (
        {"op_type": "Selu", "inputs": [ROWS], "attrs": {"gamma": 2.0}},
        "node (Selu): attribute gamma: expected 1.0507010221481323, got 2.0, which opbox's converter does not read",
    ),
    "scales of some axes": (
        {
            "op_type": "Resize",
            "inputs": [IMAGE, None, floats(1, 1, 2, 2)],
            "attrs": {"axes": [0, 1, 2, 3]},
            "constants": [2],
            "opset": 18,
        },
        "node (Resize): attribute axes: expected none, got [0, 1, 2, 3], which opbox's converter does not read",
    ),
    "texts": (
        {"op_type": "Equal", "inputs": [np.array(["a", "b"]), np.array(["a"])], "opset": 19},
        "node (Equal): expected an input 0 (x0) of numbers that opbox has, got STRING",
    ),
    "a constant text": (
        {"op_type": "Equal", "inputs": [np.array(["a", "b"]), np.array(["a"])], "opset": 19, "constants": [1]},
        "node (Equal): expected input 1 (x1) of numbers, got STRING",
    ),
    "more than there is": (
        {"op_type": "TopK", "inputs": [ROWS, ints(0)], "constants": [1], "outputs": 2},
        "node (TopK): k: expected 1 to 4, got 0",
    ),
    "an index beyond the axis": (
        {"op_type": "Gather", "inputs": [ROWS, ints(3)], "constants": [1]},
        "node (Gather): indices: expected -3 to 2, got 3 to 3",
    ),
    "an axis that is not there": (
        {"op_type": "Softmax", "inputs": [ROWS], "attrs": {"axis": 2}},
        "node (Softmax): axis: expected -2 to 1, got 2",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_opbox_has_not_is_refused(name: str, tmp_path: Path) -> None:
    case, sentence = REFUSED[name]
    (tmp_path / "net.onnx").write_bytes(model_of(**case)[0].SerializeToString())
    with pytest.raises(MXNetError, match=re.escape(sentence)):
        mx.onnx.import_model(tmp_path / "net.onnx")


def test_integers_stay_integers(tmp_path: Path) -> None:
    """The place of the largest element, halved: ONNX's integers lose what is behind the point."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["place"], axis=-1, keepdims=0),
        helper.make_node("Div", ["place", "two"], ["half"]),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
        helper.make_tensor_value_info("half", TensorProto.INT64, [2]),
    ]
    two = helper.make_tensor("two", TensorProto.INT64, [], [2])
    model = helper.make_model(helper.make_graph(nodes, "graph", values[:1], values[1:], [two]), ir_version=8)
    model.opset_import[0].version = 17
    compared(model, {"x": floats([0, 1, 2, 9], [0, 9, 1, 2])}, tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("op_type", "attrs", "inputs", "unread"),
    [
        ("HardSigmoid", {"alpha": 0.5, "beta": 0.25}, 1, "attribute alpha: expected 0.2"),
        ("LRN", {"size": 3}, 1, "attribute size: expected none, got 3"),
        ("Sum", {}, 3, "input 1: expected none, got x1"),
    ],
)
def test_what_a_converter_does_not_read_is_an_error(
    op_type: str, attrs: dict[str, Any], inputs: int, unread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(call: importing.ImportCall) -> Symbol:
        return call.make("relu", call.symbol(0))

    monkeypatch.setitem(importing.IMPORTERS, op_type, forgetful)
    model, _ = model_of(op_type, [np.ones((1, 2), np.float32)] * inputs, attrs)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(MXNetError, match=f"{re.escape(f'node ({op_type}): {unread}')}.*converter does not read"):
        mx.onnx.import_model(tmp_path / "net.onnx")


def test_what_repeats_the_default_need_not_be_read(tmp_path: Path) -> None:
    model, feeds = model_of("Selu", [ROWS], {"alpha": 1.6732631921768188})
    compared(model, feeds, tmp_path / "net.onnx")


def test_converters_read_nodes_through_the_call_alone() -> None:
    """Attributes and inputs have no other way to a converter than those that note what was read."""
    for path in sorted(Path(importers.__file__).parent.glob("*.py")):
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "call":
                assert not item.attr.startswith("_"), f"{path.name}: call.{item.attr}"
            assert not (isinstance(item, ast.Attribute) and item.attr in ("constants", "symbols", "params")), path.name


def test_a_folded_node_takes_all_axes_at_once(tmp_path: Path) -> None:
    """As PyTorch writes a shape that it puts together: Gather, Unsqueeze and Concat of constants."""
    nodes = [
        helper.make_node("Shape", ["x"], ["whole"]),
        helper.make_node("Gather", ["whole", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows"], ["first"], axes=[-1]),
        helper.make_node("Unsqueeze", ["two"], ["second"], axes=[0]),
        helper.make_node("Unsqueeze", ["two"], ["third"], axes=[1, 0]),
        helper.make_node("Squeeze", ["third"], ["last"], axes=[1]),
        helper.make_node("Concat", ["first", "second", "last"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2, 2]),
    ]
    known = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in (("zero", 0), ("two", 2))]
    model = helper.make_model(helper.make_graph(nodes, "graph", values[:1], values[1:], known), ir_version=6)
    model.opset_import[0].version = 11
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    (out,) = imported(path, {"x": ROWS})
    np.testing.assert_array_equal(out, ROWS.reshape(3, 2, 2))
