"""Deconvolution by oneDNN beside NumPy: groups, dilation, dimensions, layouts; and what NumPy keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.allocations import counted
from tests.machine import needs_onednn

pytestmark = needs_onednn

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "overlap": ((2, 6, 5, 4), {"kernel": (4, 3), "stride": (2, 1), "pad": (1, 1), "num_filter": 3}),
    "bias, groups": ((2, 6, 5, 4), {"kernel": (3, 3), "num_group": 2, "num_filter": 8, "no_bias": False}),
    "depthwise": ((1, 6, 5, 4), {"kernel": (4, 4), "stride": (2, 2), "num_group": 6, "num_filter": 6}),
    "dilated, adj": (
        (2, 4, 6, 6),
        {"kernel": (3, 3), "stride": (2, 2), "dilate": (2, 1), "adj": (1, 1), "num_filter": 5},
    ),
    "target_shape": ((2, 4, 6, 6), {"kernel": (4, 4), "stride": (2, 2), "target_shape": (11, 12), "num_filter": 5}),
    "1 dimension": ((2, 4, 9), {"kernel": (3,), "stride": (2,), "num_filter": 5, "no_bias": False}),
    "3 dimensions": ((2, 4, 3, 4, 3), {"kernel": (3, 2, 3), "num_filter": 5, "no_bias": False}),
    "channels last": ((2, 5, 4, 6), {"kernel": (3, 3), "num_filter": 3, "no_bias": False, "layout": "NHWC"}),
}


def bound(shape: tuple[int, ...], attrs: dict[str, Any], level: str, dtype: str = "float32", req: str = "write") -> Any:
    """The executor, and its gradients, which begin as ones."""
    symbol = mx.sym.Deconvolution(mx.sym.Variable("data"), name="layer", **attrs)
    graph, cpu = load(symbol.tojson()), backend_for("cpu")
    rng = np.random.default_rng(0)
    shapes = infer_shape(graph, {"data": shape})
    args = {
        name: rng.normal(size=of).astype(dtype)
        for name, of in zip(graph.argument_names, shapes.arg_shapes, strict=True)
    }
    grads = {name: np.ones_like(array) for name, array in args.items()}
    requests = dict.fromkeys(args, req)
    executor = bind(
        graph, args=args, grads=grads, grad_req=requests, aux={}, backend=cpu, random=cpu.random(0), level=level
    )
    return executor, grads


def levels(executor: Any) -> set[str]:
    """Those of Deconvolution, forward and backward."""
    steps = [step for step in executor.plan.steps if step.node.op is not None]
    return {step.kernel.level for step in steps if step.node.op.name.endswith("Deconvolution")}


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("name", CASES)
def test_beside_numpy(name: str, req: str) -> None:
    results = []
    for level in ("library", "reference"):
        executor, grads = bound(*CASES[name], level, req=req)
        assert levels(executor) == {level}
        head = np.random.default_rng(1).normal(size=executor.outputs[0].shape).astype(np.float32)
        executor.forward(is_train=True)
        executor.backward([head])
        with counted() as sizes:
            executor.forward(is_train=True)
        assert not sizes
        results.append({"out": executor.outputs[0], **grads})
    for key, array in results[1].items():
        # float32: sums of up to two hundred products of numbers about 1
        np.testing.assert_allclose(results[0][key], array, rtol=1e-4, atol=1e-4, err_msg=key)


def test_what_numpy_keeps() -> None:
    """float64, no elements, windows that do not overlap, single positions, and padding beyond a kernel's reach."""
    shape, attrs = CASES["overlap"]
    for other, changed, dtype in (
        (shape, attrs, "float64"),
        ((0, *shape[1:]), attrs, "float32"),
        (shape, {"kernel": (2, 2), "stride": (2, 2), "num_filter": 3}, "float32"),
        ((2, 6, 1, 1), {"kernel": (4, 4), "num_filter": 3}, "float32"),
        (shape, {**attrs, "kernel": (1, 3), "stride": (1, 1)}, "float32"),
    ):
        executor, _ = bound(other, changed, "library", dtype)
        assert levels(executor) == {"reference"}
