"""Operators at their edges: sequences of no steps, axes of no elements, margins longer than the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.infer import ShapeList, TypeList
from opbox_protocol.errors import ShapeError
from opbox_protocol.mxnet import numpy_dtype

from .one_call import call_graph, run_call

CPU = backend_for("cpu")


def outputs_and_gradient(op: str, attrs: Mapping[str, Any], arrays: Mapping[str, Any], gout: Any) -> tuple[Any, Any]:
    """The first output, and the gradient of "data"."""
    values = run_call(call_graph(op, attrs, list(arrays)), arrays, ["data"], lambda number, output: gout)
    return values["out:0"], values["grad:data"]


@pytest.mark.parametrize("axis", [0, 1])
def test_the_last_step_of_no_steps_is_the_first(axis: int) -> None:
    """MXNet reads what lies before the array."""
    data = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    arrays = {"data": data if axis == 0 else data.swapaxes(0, 1).copy(), "length": np.array([0, 4, 2], np.float32)}
    gout = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    attrs = {"use_sequence_length": True, "axis": axis}
    out, gradient = outputs_and_gradient("SequenceLast", attrs, arrays, gout)
    np.testing.assert_array_equal(out, data[[0, 3, 1], [0, 1, 2]])
    expected = np.zeros_like(data)
    expected[[0, 3, 1], [0, 1, 2]] = gout
    np.testing.assert_array_equal(gradient, expected if axis == 0 else expected.swapaxes(0, 1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(("name", "limit"), [("max", "min"), ("min", "max")])
def test_the_extreme_of_no_integers_is_what_every_integer_beats(name: str, limit: str, dtype: str) -> None:
    values = run_call(call_graph(name, {"axis": 1}, ["data"]), {"data": np.empty((2, 0), dtype)}, [], None)
    assert values["out:0"].dtype == dtype
    assert values["out:0"].tolist() == [getattr(np.iinfo(dtype), limit)] * 2


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "float32", "float64"])
def test_values_and_positions_have_types_of_their_own(dtype: str) -> None:
    data = np.array([[1, 3, 2], [6, 5, 4]], np.float32)
    values = run_call(call_graph("topk", {"k": 2, "ret_typ": "both", "dtype": dtype}, ["data"]), {"data": data}, [], [])
    assert [values["out:0"].dtype, values["out:1"].dtype] == [np.float32, dtype]
    assert values["out:0"].tolist() == [[3, 2], [6, 5]]
    assert values["out:1"].tolist() == [[1, 2], [0, 1]]
    op = registry.get("topk")
    types = TypeList([None], "input"), TypeList([numpy_dtype("float16"), None], "output")
    op.type_rule(op.parse({"ret_typ": "both", "dtype": dtype}), *types)
    assert [*types[0], *types[1]] == [np.float16, np.float16, dtype]


def test_rrelu_draws_no_slopes_in_inference() -> None:
    data = np.array([[-1, -2, 3]], np.float32)
    graph = call_graph("LeakyReLU", {"act_type": "rrelu", "lower_bound": 0.25, "upper_bound": 0.5}, ["data"])
    np.testing.assert_array_equal(
        run_call(graph, {"data": data}, [], None, is_train=False)["out:0"], [[-0.375, -0.75, 3]]
    )
    drawn = run_call(graph, {"data": data}, [], None)["out:0"]
    assert -0.5 <= drawn[0, 0] <= -0.25
    assert drawn[0, 0] != -0.375


def test_a_margin_may_be_longer_than_twice_the_data() -> None:
    """By MXNet 1.9.1; a mirror image is at most as long as the data without its edge."""
    data = np.array([[[[1, 2, 3]]]], np.float32)
    gout = np.arange(1, 19, dtype=np.float32).reshape(1, 1, 1, 18)
    for mode, before, after, gradient in (
        ("edge", [1] * 7, [3] * 8, [36, 9, 126]),
        ("constant", [5] * 7, [5] * 8, [8, 9, 10]),
    ):
        attrs = {"mode": mode, "pad_width": (0, 0, 0, 0, 0, 0, 7, 8), "constant_value": 5}
        out, gdata = outputs_and_gradient("Pad", attrs, {"data": data}, gout)
        assert out.reshape(-1).tolist() == [*before, 1, 2, 3, *after]
        assert gdata.reshape(-1).tolist() == gradient
    attrs = {"mode": "reflect", "pad_width": (0, 0, 0, 0, 0, 0, 2, 2)}
    out, gdata = outputs_and_gradient("Pad", attrs, {"data": data}, gout[..., :7].copy())
    assert out.reshape(-1).tolist() == [3, 2, 1, 2, 3, 2, 1]
    assert gdata.reshape(-1).tolist() == [3 + 7, 2 + 4 + 6, 1 + 5]


@pytest.mark.parametrize("pad_width", [(3, 0), (0, 3), (7, 8)])
def test_a_mirror_image_beyond_the_data_is_refused(pad_width: tuple[int, int]) -> None:
    op = registry.get("Pad")
    params = op.parse({"mode": "reflect", "pad_width": str((0, 0, 0, 0, 0, 0, *pad_width))})
    with pytest.raises(ShapeError, match=rf"axis 3: expected at least {max(pad_width) + 1} for mode reflect"):
        op.shape_rule(params, ShapeList([(1, 1, 1, 3)], "input"), ShapeList([None], "output"))
