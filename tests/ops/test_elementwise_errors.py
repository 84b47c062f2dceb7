"""Bad shapes, types and parameters of the elementwise, broadcasting and reducing operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.infer import ShapeList, TypeList
from opbox_protocol.errors import DTypeError, ParamError, ShapeError

SHAPES: list[tuple[str, dict[str, Any], list[Any], str]] = [
    ("elemwise_add", {}, [(2, 3), (2, 4)], "expected (2, 3), got (2, 4)"),
    ("_maximum", {}, [(2, 3), (6,)], "expected (2, 3), got (6,)"),
    ("add_n", {"num_args": 3}, [(2,), (2,), (3,)], "expected (2,), got (3,)"),
    ("_identity_with_attr_like_rhs", {}, [(4,), (2, 2)], "expected (4,), got (2, 2)"),
    ("where", {}, [(2,), (2, 2), (2,)], "expected (2, 2), got (2,)"),
    ("where", {}, [(3,), (2, 2), (2, 2)], "expected (2,), got (3,)"),
    ("where", {}, [(1, 2, 2), (2, 2), (2, 2)], "expected (2, 2) or (2,), got (1, 2, 2)"),
    ("broadcast_add", {}, [(3,), (2, 4)], "expected shapes that broadcast together, got (3,) and (2, 4)"),
    ("broadcast_lesser", {}, [(2, 3), (3, 3)], "expected shapes that broadcast together, got (2, 3) and (3, 3)"),
    ("broadcast_to", {"shape": (2, 4)}, [(1, 3)], "expected a shape that can be repeated to (2, 4), got (1, 3)"),
    ("broadcast_to", {"shape": (2, 3)}, [(3,)], "expected 2 dimensions, to be repeated to (2, 3), got (3,)"),
    ("broadcast_axis", {"axis": (1,), "size": (2,)}, [(1, 3)], "expected (1, 1), got (1, 3)"),
    ("broadcast_axis", {"axis": (0, 1), "size": 2}, [(1, 1)], "axis and size: expected as many of each"),
    ("broadcast_axis", {"axis": 2, "size": 2}, [(1, 1)], "axis: expected between -2 and 1 for 2 dimensions, got 2"),
    ("broadcast_like", {}, [(1, 3), (5, 2)], "expected a shape that can be repeated to (5, 2), got (1, 3)"),
    ("broadcast_like", {"lhs_axes": 0}, [(1, 3), (5, 2)], "lhs_axes and rhs_axes: expected both or neither"),
    (
        "broadcast_like",
        {"lhs_axes": 1, "rhs_axes": 1},
        [(1, 3), (5, 2)],
        "expected length 1 along axis 1, got (1, 3)",
    ),
    ("sum", {"axis": 3}, [(2, 3)], "axis: expected between -2 and 1 for 2 dimensions, got 3"),
    ("mean", {"axis": (0, -2)}, [(2, 3)], "axis: expected each axis once, got (0, -2)"),
    ("norm", {"axis": -3}, [(2, 3)], "axis: expected between -2 and 1 for 2 dimensions, got -3"),
    ("argmax", {"axis": 2}, [(2, 3)], "axis: expected between -2 and 1 for 2 dimensions, got 2"),
    ("argmin", {"axis": 0}, [(0, 3)], "expected at least one element along axis 0, got none"),
    ("argmax", {}, [(0,)], "expected at least one element in all, got none"),
    ("argmax_channel", {}, [(3,)], "expected at least 2 dimensions, got 1"),
]

TYPES: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("elemwise_add", {}, ["float32", "int32"], "expected type float32, got int32"),
    ("broadcast_mul", {}, ["float32", "float64"], "expected type float32, got float64"),
    ("exp", {}, ["bool"], "expected a number type, got bool: Cast it first"),
    ("max", {}, ["bool"], "expected a number type, got bool: Cast it first"),
    ("hard_sigmoid", {}, ["int32"], "expected a real type, got int32: Cast it first"),
    ("where", {}, ["float32", "float32", "float16"], "expected type float32, got float16"),
]

PARAMS: list[tuple[str, dict[str, Any], str]] = [
    ("exp", {"scalar": 1}, "exp: unknown parameter 'scalar'; it takes none"),
    ("_plus_scalar", {"scalar": "two"}, "_plus_scalar: parameter 'scalar': expected a number, got 'two'"),
    ("clip", {"a_min": 0}, "clip: parameter 'a_max' is required: a number"),
    ("Cast", {"dtype": "complex64"}, "Cast: parameter 'dtype': expected one of 'float32'"),
    ("add_n", {"num_args": 0}, "add_n: parameter 'num_args': expected a number greater than or equal to 1"),
    ("sum", {"axes": 1}, "sum: unknown parameter 'axes'; did you mean axis?"),
    ("mean", {"keepdims": "maybe"}, "mean: parameter 'keepdims': expected True or False, got 'maybe'"),
    ("norm", {"ord": 3}, "norm: parameter 'ord': expected one of 1 or 2, got '3'"),
    ("argmax", {"axis": "first"}, "argmax: parameter 'axis': expected an integer or None, got 'first'"),
    ("broadcast_to", {"shape": "(2, x)"}, "broadcast_to: parameter 'shape'"),
]


def _parse(name: str, attrs: dict[str, Any]) -> tuple[Any, Any]:
    op = registry.get(name)
    return op, op.parse({key: str(value) for key, value in attrs.items()})


@pytest.mark.parametrize(("name", "attrs", "shapes", "message"), SHAPES, ids=lambda v: str(v))
def test_shapes(name: str, attrs: dict[str, Any], shapes: list[Any], message: str) -> None:
    op, params = _parse(name, attrs)
    with pytest.raises(ShapeError) as caught:
        op.shape_rule(params, ShapeList(shapes, "input"), ShapeList([None], "output"))
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "attrs", "types", "message"), TYPES, ids=lambda v: str(v))
def test_types(name: str, attrs: dict[str, Any], types: list[str], message: str) -> None:
    op, params = _parse(name, attrs)
    with pytest.raises(DTypeError) as caught:
        op.type_rule(params, TypeList([np.dtype(dtype) for dtype in types], "input"), TypeList([None], "output"))
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "attrs", "message"), PARAMS, ids=lambda v: str(v))
def test_params(name: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError) as caught:
        _parse(name, attrs)
    assert message in str(caught.value)
