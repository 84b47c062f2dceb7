"""cumsum and its gradient over sums of every length and distance, on each device."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import Backend
from opbox_service.executor.invoke import invoke

SHAPES = [((3, 1000), 1), ((1000, 40), 0), ((5, 300, 7), 1), ((4, 70, 2), 1), ((700,), 0), ((1,), 0), ((2, 3), None)]
TOLERANCES = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-12}
"""Of the result's rounding, at sums of up to 30: of half precision 2^-6 of it are between two numbers."""


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sums_run_along_the_axis(shape: tuple[int, ...], axis: int | None, dtype: str, backend: Backend) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype(dtype)
    attrs = {} if axis is None else {"axis": str(axis)}
    with backend.scope():
        [sums] = invoke("_np_cumsum", attrs, [backend.put(x)], backend=backend, random=backend.random(0))
        result = backend.get(sums)
    expected = np.cumsum(x.astype(np.float64), axis=axis)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_gradients_run_the_other_way(shape: tuple[int, ...], axis: int | None, dtype: str, device: str) -> None:
    context, along = mx.Context(device, 0), 0 if axis is None else axis
    gradient = mx.nd.zeros(shape, context, dtype=dtype)
    data = mx.nd.zeros(shape, context, dtype=dtype)
    executor = mx.sym.cumsum(mx.sym.Variable("a"), axis=axis).bind(context, {"a": data}, {"a": gradient})
    [out] = executor.forward(is_train=True)
    head = np.random.default_rng(1).uniform(-1, 1, out.shape).astype(dtype)
    executor.backward([mx.nd.array(head, ctx=context, dtype=dtype)])
    expected = np.flip(np.cumsum(np.flip(head.astype(np.float64), along), axis=along), along).reshape(shape)
    np.testing.assert_allclose(gradient.asnumpy(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
