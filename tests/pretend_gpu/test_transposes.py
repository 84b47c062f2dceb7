"""Axes in another order on the device: any order, odd sizes, all types; matrices by tiles in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda.transposes import merged_axes
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor import invoke

from .spy import watched

CALLS: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {
    ((33, 70), (1, 0)): 1,
    ((3, 5, 7, 9), (0, 2, 3, 1)): 1,
    ((3, 7, 9, 5), (0, 3, 1, 2)): 1,
    ((2, 3, 5, 7), (2, 3, 0, 1)): 1,
    ((2, 1, 40, 33), (1, 0, 3, 2)): 1,
    ((3, 4, 8), (1, 0, 2)): 1,
    ((2, 3, 5, 8), (0, 2, 1, 3)): 1,
    ((2, 3, 5, 7), (3, 1, 0, 2)): 1,
    ((1, 1), (1, 0)): 1,
}
"""Shapes and orders, and how many launches a call takes at most."""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "int32", "bool"])
@pytest.mark.parametrize(("shape", "axes"), CALLS, ids=str)
def test_numpys_elements(gpu: Any, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> None:
    top = 2 if dtype == "bool" else 100
    host = np.random.default_rng(0).integers(0, top, shape).astype(numpy_dtype(dtype))
    backend = backend_for("gpu:0")
    data, random = backend.put(host), backend.random(0)
    with watched() as watch:
        (out,) = invoke("transpose", {"axes": str(axes)}, [data], backend=backend, random=random)
    np.testing.assert_array_equal(backend.get(out), host.transpose(axes))
    assert watch.calls["launch"] + watch.calls["copy"] <= CALLS[shape, axes]


@pytest.mark.parametrize(
    ("shape", "order", "merged"),
    [
        ((64, 128, 56, 56), (0, 2, 3, 1), ((64, 128, 3136), (0, 2, 1))),
        ((4, 5), (0, 1), ((20,), (0,))),
        ((4, 1, 5), (2, 1, 0), ((4, 5), (1, 0))),
        ((2, 3, 5, 8), (0, 2, 1, 3), ((2, 3, 5, 8), (0, 2, 1, 3))),
        ((1, 1), (1, 0), ((), ())),
    ],
)
def test_axes_that_stay_neighbours_are_one(shape: Any, order: Any, merged: Any) -> None:
    assert merged_axes(shape, order) == merged
