"""Sorting on the device: equal elements, NaN, every axis, rows that are sorted by the kernel and longer ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda.order import LONGEST
from opbox_service.executor import bind, invoke
from tests.ops.one_call import call_graph

from .spy import watched

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("sort", {"is_ascend": True}),
    ("sort", {"is_ascend": False}),
    ("argsort", {"is_ascend": True, "dtype": "int32"}),
    ("argsort", {"is_ascend": False, "dtype": "float64"}),
    ("topk", {"k": 3, "ret_typ": "both"}),
    ("topk", {"k": 5, "ret_typ": "mask", "is_ascend": True}),
    ("topk", {"k": 0, "ret_typ": "indices"}),
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize(("op", "attrs"), CALLS, ids=lambda value: str(value))
def test_the_cpus_order(gpu: Any, op: str, attrs: dict[str, Any], dtype: str) -> None:
    x = np.random.default_rng(0).integers(-4, 5, (3, 37, 2)).astype(dtype)
    if x.dtype.kind == "f":
        x[0, 5:8], x[1, :, 1], x[2, 3] = np.nan, np.inf, -np.inf
    for axis in (0, 1, -1, None):
        _same_on_both(op, {**attrs, "axis": axis}, x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("op", "attrs"), CALLS, ids=lambda value: str(value))
def test_longer_rows(gpu: Any, op: str, attrs: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in (((2, LONGEST + 1), -1), ((LONGEST + 700, 3), 0)):
        x = rng.integers(-50, 50, shape).astype(dtype)
        if x.dtype.kind == "f":
            flat = x.reshape(-1)
            for k, value in enumerate((np.nan, np.inf, -np.inf, -0.0, 1e-7, -np.nan)):
                flat[k::29] = value
        _same_on_both(op, {**attrs, "axis": axis}, x)


def test_long_rows_allocate_nothing(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    with backend.scope():
        args = {"data": backend.put(np.random.default_rng(0).normal(size=(3, 5000)).astype("f"))}
        graph = call_graph("topk", {"k": "9", "ret_typ": "both"}, ["data"])
        executor = bind(graph, args=args, grads={}, grad_req={}, backend=backend, random=backend.random(0))
        executor.forward(is_train=False)
        executor.forward(is_train=False)
        with watched() as watch:
            executor.forward(is_train=False)
    assert not watch.allocations
    assert not watch.refused


def _same_on_both(op: str, attrs: dict[str, Any], x: Any) -> None:
    strings = {key: str(value) for key, value in attrs.items()}
    if "k" in attrs:
        length = x.size if attrs.get("axis", -1) is None else x.shape[attrs.get("axis", -1)]
        strings["k"] = str(min(attrs["k"], length))
    results = []
    for device in ("cpu", "gpu:0"):
        backend = backend_for(device)
        outputs = invoke(op, strings, [backend.put(x)], backend=backend, random=backend.random(0))
        results.append([backend.get(out) for out in outputs])
    for expected, result in zip(*results, strict=True):
        np.testing.assert_array_equal(result, expected, err_msg=f"{op} {strings}")
