"""Bad input to the layers and losses: each one sentence that tells what was expected and what was got."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.infer import ShapeList, TypeList
from opbox_protocol.errors import DTypeError, MXNetError, ParamError, ShapeError
from opbox_service.graph.passes.infer_type import infer_type
from tests.ops.one_call import call_graph

CONV = {"kernel": (3, 3), "num_filter": 4}

SHAPES: list[tuple[str, dict[str, Any], list[Any], str]] = [
    (
        "Convolution",
        CONV,
        [(2, 3, 8), None, None],
        "expected 4 dimensions, got (2, 3, 8): write one number of kernel for each spatial dimension, such as "
        "kernel=(3,)",
    ),
    (
        "Convolution",
        CONV,
        [(2, 64), None, None],
        "expected 4 dimensions, got (2, 64): kernel (3, 3) slides over (batch, channel, …, …)",
    ),
    (
        "Deconvolution",
        {"kernel": (3,), "num_filter": 2},
        [(2, 3, 8, 8), None],
        "expected 3 dimensions, got (2, 3, 8, 8): write one number of kernel for each spatial dimension, such as "
        "kernel=(3, 3)",
    ),
    (
        "Convolution",
        CONV,
        [(2, 3, 2, 8), None, None],
        "expected spatial dimensions that the kernel fits into (it reaches over (3, 3)), got (2, 8) with pad (0, 0)",
    ),
    ("Convolution", {**CONV, "dilate": (4, 4)}, [(2, 3, 8, 8), None, None], "it reaches over (9, 9)"),
    (
        "Convolution",
        {**CONV, "num_group": 3},
        [None, None, None],
        "num_filter: expected a multiple of num_group 3, got 4",
    ),
    (
        "Convolution",
        {**CONV, "num_group": 2},
        [(2, 3, 8, 8), None, None],
        "expected a number of channels that num_group 2 divides, got 3",
    ),
    (
        "Convolution",
        {**CONV, "stride": (2,)},
        [None, None, None],
        "stride: expected 2 numbers, as many as kernel has, got (2,)",
    ),
    (
        "Convolution",
        {**CONV, "stride": (0, 1)},
        [None, None, None],
        "stride: expected numbers of at least 1, got (0, 1)",
    ),
    ("Convolution", {**CONV, "pad": (-1, 0)}, [None, None, None], "pad: expected numbers of at least 0, got (-1, 0)"),
    (
        "Convolution",
        {**CONV, "kernel": (1, 1, 1, 1)},
        [None, None, None],
        "kernel: expected one to three positive numbers, got (1, 1, 1, 1)",
    ),
    (
        "Convolution",
        {**CONV, "layout": "NCW"},
        [None, None, None],
        "layout: expected one with 2 spatial dimensions, as kernel has, got 'NCW'",
    ),
    ("Convolution", CONV, [(2, 3, 8, 8), (4, 2, 3, 3), None], "expected (4, 3, 3, 3), got (4, 2, 3, 3)"),
    ("Convolution", CONV, [(2, 3, 8, 8), None, (5,)], "expected (4,), got (5,)"),
    (
        "Pooling",
        {},
        [(2, 3, 8)],
        "expected 2 dimensions, got (2, 3, 8): write one number of kernel for each spatial dimension, such as "
        "kernel=(2,)",
    ),
    ("Pooling", {}, [None], "kernel: expected one to three positive numbers (or global_pool), got ()"),
    (
        "Pooling",
        {"kernel": (3, 3)},
        [(2, 3, 2, 8)],
        "expected spatial dimensions of at least the kernel 3, got 2 padded to 2",
    ),
    (
        "Pooling",
        {"kernel": (2,), "pooling_convention": "same", "pad": (1,)},
        [(2, 3, 8)],
        "pad: expected none with pooling_convention 'same', got (1,)",
    ),
    ("Pooling", {"global_pool": True}, [(2, 3)], "expected 3 or 4 or 5 dimensions, got (2, 3)"),
    (
        "BatchNorm",
        {"axis": 3},
        [(2, 3), None, None, None, None],
        "axis: expected between -2 and 1 for 2 dimensions, got 3",
    ),
    ("BatchNorm", {}, [(2, 3), (4,), None, None, None], "expected (3,), got (4,)"),
    ("Dropout", {"axes": (2,)}, [(2, 3)], "axes: expected between -2 and 1 for 2 dimensions, got 2"),
    ("softmax", {"axis": 2}, [(2, 3)], "axis: expected between -2 and 1 for 2 dimensions, got 2"),
    ("softmax", {"use_length": True}, [(2, 3), (3,)], "expected (2,), got (3,)"),
    (
        "SoftmaxActivation",
        {"mode": "channel"},
        [(2, 3)],
        "expected at least 3 dimensions with mode 'channel', got (2, 3)",
    ),
    ("LeakyReLU", {"act_type": "prelu"}, [(2, 3), (4,)], "expected (3,), got (4,)"),
    ("FullyConnected", {"num_hidden": 5}, [(2, 3, 4), (5, 4), None], "expected (5, 12), got (5, 4)"),
    ("SoftmaxOutput", {}, [(4, 3), (4, 1)], "expected (4,) or (4, 3), got (4, 1)"),
    (
        "SoftmaxOutput",
        {"multi_output": True},
        [(4, 3, 5, 6), (4,)],
        "expected (4, 30) or (4, 5, 6) or (4, 3, 5, 6), got (4,)",
    ),
    (
        "SoftmaxOutput",
        {"multi_output": True},
        [(4,), None],
        "expected at least 2 dimensions with multi_output, got (4,)",
    ),
    (
        "LinearRegressionOutput",
        {},
        [(4, 3), (4,)],
        "expected as many elements as data (4, 3) with the same batch, got (4,)",
    ),
    ("SVMOutput", {}, [(4, 3), (5,)], "expected (4,), got (5,)"),
    ("softmax_cross_entropy", {}, [(4, 3, 2), None], "expected 2 dimensions, got (4, 3, 2)"),
]

PARAMS: list[tuple[str, dict[str, Any], str]] = [
    ("Convolution", {"num_filter": 4}, "Convolution: parameter 'kernel' is required: a tuple of integers"),
    (
        "Convolution",
        {**CONV, "num_filter": 0},
        "parameter 'num_filter': expected a number greater than or equal to 1, got 0",
    ),
    ("Convolution", {**CONV, "layout": "NCHWc"}, "parameter 'layout': expected one of"),
    ("Convolution", {**CONV, "strides": (1, 1)}, "unknown parameter 'strides'; did you mean stride?"),
    ("Activation", {"act_type": "swish"}, "parameter 'act_type': expected one of"),
    ("Activation", {}, "parameter 'act_type' is required"),
    ("Dropout", {"p": 1.5}, "parameter 'p': expected a number less than or equal to 1, got 1.5"),
    (
        "SoftmaxOutput",
        {"normalization": "all"},
        "parameter 'normalization': expected one of 'batch', 'null' or 'valid'",
    ),
]


def _infer(op: str, attrs: dict[str, Any], shapes: list[Any]) -> None:
    definition = registry.get(op)
    params = definition.parse(attrs)
    assert definition.shape_rule is not None
    outs = ShapeList([None] * definition.num_outputs(params), "output")
    definition.shape_rule(params, ShapeList(shapes, "input"), outs)


@pytest.mark.parametrize(("op", "attrs", "shapes", "message"), SHAPES)
def test_shapes(op: str, attrs: dict[str, Any], shapes: list[Any], message: str) -> None:
    with pytest.raises(ShapeError) as error:
        _infer(op, attrs, shapes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("op", "attrs", "message"), PARAMS)
def test_parameters(op: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamError) as error:
        registry.get(op).parse(attrs)
    assert message in str(error.value)


@pytest.mark.parametrize("p_value", [None, 4])
def test_the_p_of_lp_pooling(p_value: int | None) -> None:
    with pytest.raises(MXNetError, match="'p_value': expected 1, 2 or 3 for lp pooling"):
        _infer("Pooling", {"kernel": (2,), "pool_type": "lp", "p_value": p_value}, [(1, 1, 4)])


def test_batch_norm_takes_floats() -> None:
    op = registry.get("BatchNorm")
    with pytest.raises(DTypeError, match="got int32"):
        op.type_rule(op.parse({}), TypeList([np.dtype("int32"), *[None] * 4], "input"), TypeList([None] * 3, "output"))


def test_softmax_output_takes_no_integers() -> None:
    graph = call_graph("SoftmaxOutput", {}, ["data", "label"])
    with pytest.raises(DTypeError, match="data: expected float16 or float32 or float64 or bfloat16, got int8"):
        infer_type(graph, {"data": "int8"})
