"""Bad shapes and parameters: one sentence that names what was expected and what was given."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops import registry
from opbox_ops.infer import ShapeList
from opbox_protocol.errors import ParamError, ShapeError

SHAPES: list[tuple[str, dict[str, Any], list[Any], str]] = [
    ("Reshape", {"shape": (5, 6)}, [(2, 3, 4)], "expected a shape of 24 elements for data (2, 3, 4), got (5, 6)"),
    ("Reshape", {"shape": (-1, 5)}, [(2, 3)], "expected a shape of 6 elements for data (2, 3), got (1, 5)"),
    ("Reshape", {"shape": (-1, -1)}, [(2, 3)], "shape: expected at most one -1, got (-1, -1)"),
    ("Reshape", {"shape": (0, 0, 0)}, [(2, 3)], "shape: expected at least 3 dimensions of data, got (2, 3)"),
    ("Reshape", {"shape": (-3,)}, [(2,)], "shape: expected at least 2 dimensions of data, got (2,)"),
    ("Reshape", {"shape": (-4, 2)}, [(4,)], "shape: expected two sizes after -4, got (-4, 2)"),
    ("Reshape", {"shape": (-4, -1, -1)}, [(4,)], "shape: expected at most one -1 after -4, got two"),
    ("Reshape", {"shape": (-4, 3, -1)}, [(4,)], "shape: expected two numbers after -4 whose product is 4, got 3 and 1"),
    ("Reshape", {"shape": (-7,)}, [(4,)], "shape: expected sizes or codes from -4 to 0, got -7"),
    ("reshape_like", {}, [(5,), (2, 3)], "expected as many elements as (2, 3), got (5,)"),
    ("reshape_like", {"lhs_begin": 3}, [(5,), (2, 3)], "lhs_begin, lhs_end: expected a range of 1 axes, got 3 to None"),
    ("expand_dims", {"axis": 4}, [(2, 3)], "axis: expected between -3 and 2 for 3 dimensions, got 4"),
    ("squeeze", {"axis": 0}, [(2, 1)], "axis 0: expected size 1, got (2, 1)"),
    ("squeeze", {"axis": (1, -1)}, [(2, 1)], "axis: expected each axis once, got (1, -1)"),
    ("transpose", {"axes": (0, 0)}, [(2, 3)], "axes: expected each of the 2 axes once, got (0, 0)"),
    ("SwapAxis", {"dim1": 0, "dim2": 2}, [(2, 3)], "dim2: expected between -2 and 1 for 2 dimensions, got 2"),
    ("Concat", {"num_args": 2}, [(2, 3), (3, 3)], "expected (2, ?), got (3, 3)"),
    ("Concat", {"num_args": 2, "dim": 2}, [(2, 3), (2, 3)], "dim: expected between -2 and 1 for 2 dimensions, got 2"),
    ("stack", {"num_args": 2}, [(2, 3), (2, 4)], "expected (2, 3), got (2, 4)"),
    ("SliceChannel", {"num_outputs": 4}, [(2, 6)], "axis 1: expected a multiple of 4, got 6"),
    (
        "SliceChannel",
        {"num_outputs": 3, "squeeze_axis": True},
        [(2, 6)],
        "squeeze_axis: expected axis 1 to be 3 long, got (2, 6)",
    ),
    ("_split_v2", {"indices": (4, 2)}, [(2, 6)], "indices: expected rising positions up to 6, got (4, 2)"),
    (
        "slice",
        {"begin": (0, 0), "end": (1,)},
        [(2, 3)],
        "begin, end, step: expected equally many, got (0, 0), (1,), ()",
    ),
    ("slice", {"begin": (0, 0), "end": (1, 1)}, [(2,)], "begin: expected at most 1 axes, got (0, 0)"),
    ("slice", {"begin": (0,), "end": (1,), "step": (0,)}, [(2,)], "step: expected no 0, got (0,)"),
    (
        "slice_axis",
        {"axis": 0, "begin": 1, "end": 9},
        [(4,)],
        "begin, end: expected a range of an axis 4 long, got 1 to 9",
    ),
    ("slice_like", {}, [(2, 3), (4, 3)], "axis 0: expected at most 2, got 4"),
    ("slice_like", {}, [(5, 2), (3,)], r"expected 2 dimensions, as data has, got (3,): name the axes"),
    ("slice_like", {}, [(2, 3), (1, 2, 3)], r"expected 2 dimensions, as data has, got (1, 2, 3)"),
    ("slice_like", {"axes": (-1,)}, [(1, 2, 3), (5, 2)], r"expected an axis 2, as axes=(-1,) names for data of shape"),
    ("slice_like", {"axes": (0, 1)}, [(5, 2), (3,)], r"expected an axis 1, as axes=(0, 1) names for data of shape"),
    ("_slice_assign", {"begin": (0,), "end": (2,)}, [(4,), (3,)], "expected (2,), got (3,)"),
    ("tile", {"reps": (-1,)}, [(2,)], "reps: expected no negative number, got (-1,)"),
    (
        "Pad",
        {"mode": "edge", "pad_width": (1, 1, 1)},
        [(2, 3)],
        "pad_width: expected two numbers of at least 0 an axis",
    ),
    ("Pad", {"mode": "edge", "pad_width": (1, 1)}, [(2, 3)], "expected 1 dimensions, got (2, 3)"),
    ("Pad", {"mode": "reflect", "pad_width": (3, 0)}, [(3,)], "axis 0: expected at least 4 for mode reflect, got (3,)"),
    ("depth_to_space", {"block_size": 2}, [(1, 6, 2, 2)], "axis 1: expected a multiple of 4, got (1, 6, 2, 2)"),
    ("space_to_depth", {"block_size": 2}, [(1, 6, 3, 2)], "axes 2 and 3: expected a multiple of 2, got (1, 6, 3, 2)"),
    ("Embedding", {"input_dim": 5, "output_dim": 3}, [(2,), (5, 4)], "expected (5, 3), got (5, 4)"),
    ("take", {"axis": 2}, [(2, 3), (4,)], "axis: expected between -2 and 1 for 2 dimensions, got 2"),
    ("pick", {}, [(2, 3), (4,)], "expected (2,), got (4,)"),
    ("gather_nd", {}, [(2, 3), (3, 5)], "indices: expected 1 to 2 positions on its first axis, got (3, 5)"),
    ("topk", {"k": 4}, [(2, 3)], "k: expected at most 3, the length of the axis, got 4"),
    ("dot", {}, [(2, 3), (4, 5)], "expected (3, 5), got (4, 5)"),
    ("dot", {"transpose_a": True}, [(3,), (3,)], "transpose_a, transpose_b: expected False for two vectors, got True"),
    ("batch_dot", {}, [(2, 3, 4), (3, 4, 5)], "expected (2, 4, 5), got (3, 4, 5)"),
    ("batch_dot", {}, [(3, 4), (4, 5)], "expected lhs and rhs with the same number of dimensions, at least 3"),
    ("sgd_update", {"lr": 1}, [(2, 3), (2, 4)], "expected (2, 3), got (2, 4)"),
]

PARAMS: list[tuple[str, dict[str, Any], str]] = [
    ("_arange", {"start": 0, "stop": 1, "step": 0}, "_arange: expected finite numbers and a step other than 0"),
    ("_random_randint", {"low": 3, "high": 3}, "_random_randint: expected low below high, got low=3, high=3"),
    ("_random_gamma", {"alpha": 0}, "_random_gamma: expected alpha and beta above 0, got alpha=0.0, beta=1.0"),
    ("_random_normal", {"scale": -1}, "_random_normal: expected scale of at least 0, got loc=0.0, scale=-1.0"),
    ("_random_poisson_like", {"lam": -1}, "_random_poisson: expected lam of at least 0, got lam=-1.0"),
]

PARSED: list[tuple[str, dict[str, Any], str]] = [
    ("Concat", {"num_args": 0}, "Concat: parameter 'num_args': expected a number greater than or equal to 1, got 0"),
    ("SliceChannel", {}, "SliceChannel: parameter 'num_outputs' is required"),
    (
        "Pad",
        {"mode": "wrap", "pad_width": ()},
        "Pad: parameter 'mode': expected one of 'constant', 'edge' or 'reflect'",
    ),
    ("take", {"mode": "wrapped"}, "take: parameter 'mode': expected one of 'clip', 'raise' or 'wrap', got 'wrapped'"),
    ("sgd_update", {"learning_rate": 1}, "sgd_update: unknown parameter 'learning_rate'"),
    ("adam_update", {"lr": "fast"}, "adam_update: parameter 'lr': expected a number, got 'fast'"),
    ("_zeros", {"shape": (2,), "dtype": "float31"}, "_zeros: parameter 'dtype': expected one of 'float32'"),
]


def _infer(name: str, attrs: dict[str, Any], ins: list[Any]) -> None:
    op = registry.get(name)
    params = op.parse(attrs)
    assert op.shape_rule is not None
    shapes = ShapeList(ins, "input"), ShapeList([None] * op.num_outputs(params), "output")
    for _ in range(2):
        op.shape_rule(params, *shapes)


@pytest.mark.parametrize(("name", "attrs", "ins", "message"), SHAPES)
def test_shapes_that_do_not_fit(name: str, attrs: dict[str, Any], ins: list[Any], message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        _infer(name, attrs, ins)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "attrs", "message"), PARAMS)
def test_numbers_that_make_no_sense_together(name: str, attrs: dict[str, Any], message: str) -> None:
    op = registry.get(name)
    with pytest.raises(ParamError) as caught:
        _infer(name, attrs, [None] * op.num_inputs(op.parse(attrs)))
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "attrs", "message"), PARSED)
def test_parameters_that_cannot_be_read(name: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError) as caught:
        registry.get(name).parse(attrs)
    assert message in str(caught.value)
