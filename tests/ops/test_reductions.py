"""Reductions where numbers get large or arrays get empty: what the operator table's small rows do not reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.infer import ShapeList
from opbox_protocol.mxnet import numpy_dtype

from .harness import write_outputs

CPU = backend_for("cpu")


def _call(name: str, attrs: dict[str, Any], inputs: list[Any], shape: tuple[int, ...] | None = None) -> Any:
    op = registry.get(name)
    params = op.parse({key: str(value) for key, value in attrs.items()})
    if shape is None:
        outs = ShapeList([None], "output")
        op.shape_rule(params, ShapeList([inputs[0].shape], "input"), outs)
        assert outs[0] is not None
        shape = outs[0]
    out = np.empty(shape, inputs[0].dtype)
    write_outputs(op, params, inputs, [out])
    return out


def test_half_precision_adds_up_in_single() -> None:
    ones = np.ones((70000,), np.float16)
    assert _call("mean", {}, [ones]).tolist() == [1]
    assert _call("sum", {"axis": 0}, [ones[:5000]]).tolist() == [5000]
    assert _call("norm", {}, [ones[:10000] * np.float16(20)]).tolist() == [2000]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "attrs"), [("_backward_tile", {"reps": (1000, 1)}), ("_backward_repeat", {"repeats": 1000, "axis": 0})]
)
def test_gradients_of_copies_add_up_in_single(name: str, attrs: dict[str, Any], dtype: str) -> None:
    ones = np.ones((1000, 1), numpy_dtype(dtype))
    assert _call(name, attrs, [ones], (1, 1)).astype(np.float32).tolist() == [[1000]]


def test_the_mean_gradient_of_many_halves_is_not_lost() -> None:
    shares = _call("_backward_mean", {}, [np.full((1,), 7000, np.float16)], (70000,))
    assert shares[0] == np.float16(0.1)


def test_small_integers_count_past_their_range() -> None:
    assert _call("mean", {}, [np.full((300,), 7, np.int8)]).tolist() == [7]
    assert _call("mean", {}, [np.array([-3, -4], np.int8)]).tolist() == [-3]
    assert _call("_backward_mean", {}, [np.full((1,), 100, np.int8)], (300,)).tolist() == [0] * 300


@pytest.mark.parametrize("name", ["prod", "nanprod"])
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int32", [[42, 21, 14], [270, 216, 180]]),
        ("int64", [[42, 21, 14], [270, 216, 180]]),
        ("int8", [[42, 21, 14], [14, -40, -76]]),
        ("uint8", [[42, 21, 14], [14, 216, 180]]),
    ],
)
def test_the_gradient_of_a_product_of_integers_is_mxnets(name: str, dtype: str, expected: list[list[int]]) -> None:
    g, x, y = (np.array(values, dtype) for values in ([7, 9], [[1, 2, 3], [4, 5, 6]], [6, 120]))
    assert _call(f"_backward_{name}", {"axis": 1}, [g, x, y], x.shape).tolist() == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sum", 0), ("prod", 1), ("nansum", 0), ("norm", 0), ("max", -np.inf), ("min", np.inf), ("mean", np.nan)],
)
def test_nothing_to_reduce(name: str, expected: float) -> None:
    np.testing.assert_array_equal(_call(name, {"axis": 0}, [np.empty((0, 2), np.float32)]), [expected] * 2)
    assert _call(name, {"axis": 1}, [np.empty((0, 2), np.float32)]).shape == (0,)


@pytest.mark.parametrize(("axis", "expected"), [(None, (1,)), ((0, 1), (1,)), (1, (2,)), ((), (1,))])
def test_a_reduction_of_everything_leaves_one_element(axis: Any, expected: tuple[int, ...]) -> None:
    outs = ShapeList([None], "output")
    op = registry.get("sum")
    op.shape_rule(op.parse({"axis": str(axis)}), ShapeList([(2, 3)], "input"), outs)
    assert outs[0] == expected


def test_shapes_are_inferred_backwards_where_they_are_not_reduced() -> None:
    op = registry.get("max")
    ins, outs = ShapeList([(-1, 3, -1)], "input"), ShapeList([(5, 1, 7)], "output")
    op.shape_rule(op.parse({"axis": "1", "keepdims": "True"}), ins, outs)
    assert ins[0] == (5, 3, 7)
    ins, outs = ShapeList([(-1, 3, -1)], "input"), ShapeList([(5, 7)], "output")
    op.shape_rule(op.parse({"axis": "1"}), ins, outs)
    assert ins[0] == (5, 3, 7)
