"""Products of half precision and bfloat16: cuBLAS reads them as they lie, and adds up in single."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.cuda import cublas
from opbox_ops.linalg.product import product
from opbox_protocol.errors import MXNetError
from opbox_service.executor import bind, invoke
from opbox_service.graph.json import load
from tests.switches import switch_off

from .spy import watched

TYPES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]


def numbers(*shape: int, dtype: Any) -> Any:
    """Whole numbers, whose sums single precision has exactly and half does not."""
    return np.random.default_rng(0).integers(-30, 30, shape).astype(dtype)


CALLS: dict[str, tuple[str, dict[str, Any], list[tuple[int, ...]]]] = {
    "dense": ("FullyConnected", {"num_hidden": 5, "no_bias": True}, [(4, 300), (5, 300)]),
    "bias": ("FullyConnected", {"num_hidden": 5}, [(4, 300), (5, 300), (5,)]),
    "turned": ("dot", {"transpose_a": True}, [(300, 4), (300, 5)]),
    "batch": ("batch_dot", {"transpose_b": True}, [(3, 4, 300), (3, 5, 300)]),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_they_are_rounded_once_and_copied_nowhere(gpu: Any, name: str, dtype: Any) -> None:
    op, attrs, shapes = CALLS[name]
    arrays = [numbers(*shape, dtype=dtype) for shape in shapes]
    results = []
    for device in ("cpu", "gpu:0"):
        backend = backend_for(device)
        inputs = [backend.put(array) for array in arrays]
        random = backend.random(0)
        with watched() as watch:
            outputs = invoke(op, attrs, inputs, backend=backend, random=random)
        results.append([backend.get(out) for out in outputs])
    for expected, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got.astype("f"), expected.astype("f"))
    assert watch.calls["product"] == 1
    assert not watch.calls["launch"], "a bias is added by its product, before it is rounded"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("rows", "hidden", "launches"), [(3, 5, 1), (128, 10, 1), (300, 128, 2)])
def test_a_biass_gradient_is_rounded_where_it_is_added_up(
    gpu: Any, rows: int, hidden: int, launches: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of many rows are made of slices', which a second launch adds up."""
    switch_off(monkeypatch, "cuda-graphs")
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=hidden, name="fc")
    shapes = {"data": (rows, 4), "fc_weight": (hidden, 4), "fc_bias": (hidden,)}
    results = []
    for device in ("cpu", "gpu:0"):
        backend = backend_for(device)
        args = {name: backend.put(numbers(*shape, dtype=dtype)) for name, shape in shapes.items()}
        grads = {"fc_bias": backend.put(numbers(hidden, dtype=dtype))}
        executor = bind(load(net.tojson()), args=args, grads=grads, backend=backend, random=backend.random(0))
        executor.forward(is_train=True)
        head = backend.put(numbers(rows, hidden, dtype=dtype))
        executor.backward([head])
        with watched() as watch:
            executor.backward([head])
        results.append(backend.get(grads["fc_bias"]).astype("f"))
    np.testing.assert_array_equal(*results)
    assert watch.calls["launch"] == launches


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_what_cublas_does_not_read_as_it_lies_is_copied(gpu: Any, dtype: Any) -> None:
    backend = backend_for("gpu:0")
    xp = backend.xp
    host = numbers(8, 12, dtype=dtype)
    a, b = backend.put(host)[::2, ::3], backend.put(host)[:4, :4]
    out = backend.empty((4, 4), dtype)
    product(xp, a, b, out, [xp.empty(16, "f") for _ in range(3)])
    expected = host[::2, ::3].astype("f") @ host[:4, :4].astype("f")
    np.testing.assert_array_equal(backend.get(out).astype("f"), expected.astype(dtype).astype("f"))


def test_no_part_of_a_sum_is_rounded_to_half(gpu: Any) -> None:
    """cuBLAS may add parts of a sum in the result's type unless it is told not to."""
    cublas._handles.clear()
    backend = backend_for("gpu:0")
    with gpu.recorded() as calls:
        x = backend.put(np.ones((2, 2), "e"))
        product(backend.xp, x, x, x * 1, [])
    assert [detail for kind, detail in calls.events if kind == "math mode"] == [16]


@pytest.mark.parametrize(("place", "value", "status"), [(8, 2, 7), (7, 1, 15), (20, 64, 15), (2, -1, 7)])
def test_the_pretended_library_refuses_what_the_real_one_does(gpu: Any, place: int, value: int, status: int) -> None:
    """A line shorter than a matrix, types that do not go together, a computation in half, a negative size."""
    backend = backend_for("gpu:0")
    x = backend.put(numbers(4, 4, dtype="float16"))
    one = np.ones(2, "f")
    pointer, factor = x.data.ptr, one.ctypes.data
    matrix = (pointer, 2, 4, 0)
    arguments = [0, 0, 4, 4, 4, factor, *matrix, *matrix, factor + 4, *matrix, 1, 68, -1]
    arguments[place] = value
    with pytest.raises(MXNetError, match=f"cublasGemmStridedBatchedEx answered {status}"):
        cublas.batched_product(backend.xp, tuple(arguments))
