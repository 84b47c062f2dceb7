"""index_copy on the device: the last of several rows at a position, positions that are not there, arrays in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_service.executor import bind, invoke
from tests.ops.one_call import call_graph

WHERE = np.random.default_rng(0).integers(0, 9, 700)


def copied(backend: Any, arrays: list[Any], outputs: Any = None) -> Any:
    """What the operator makes of arrays that are on a device."""
    options: Any = {"backend": backend, "random": backend.random(0), "outputs": outputs}
    return backend.get(invoke("_contrib_index_copy", {}, arrays, **options)[0])


def arrays_of(dtype: str, where: Any = WHERE) -> list[Any]:
    """Ten rows of three numbers, and new ones."""
    rng = np.random.default_rng(1)
    old, new = (rng.integers(-99, 99, (count, 3)).astype(dtype) for count in (10, len(where)))
    return [old, where, new]


@pytest.mark.parametrize("index", ["int64", "int32", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
def test_the_last_row_at_a_position_is_there(gpu: Any, dtype: str, index: str) -> None:
    old, where, new = arrays_of(dtype)
    expected = old.copy()
    for position, row in zip(where, new, strict=True):
        expected[position] = row
    backend = backend_for("gpu:0")
    arrays = [backend.put(array) for array in (old, where.astype(index), new)]
    np.testing.assert_array_equal(copied(backend, arrays), expected)
    np.testing.assert_array_equal(backend.get(arrays[0]), old)
    np.testing.assert_array_equal(copied(backend, arrays, outputs=[arrays[0]]), expected)


def test_positions_that_are_not_there_are_passed_over(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    old, where, new = arrays_of("float32", np.array([10, 3, -1, 2**31 - 1, -(2**31)]))
    expected = old.copy()
    expected[3] = new[1]
    np.testing.assert_array_equal(copied(backend, [backend.put(array) for array in (old, where, new)]), expected)


@pytest.mark.parametrize("device", ["gpu:0", "cpu"])
@pytest.mark.parametrize("req", ["write", "add"])
def test_the_gradient_of_rows_that_are_replaced_is_0(gpu: Any, device: str, req: str) -> None:
    backend = backend_for(device)
    with backend.scope():
        names = ("old_tensor", "index_vector", "new_tensor")
        arrays = dict(zip(names, arrays_of("float32"), strict=True))
        args = {name: backend.put(array) for name, array in arrays.items()}
        grads = {name: backend.put(np.ones_like(arrays[name])) for name in names[::2]}
        options: Any = {"backend": backend, "random": backend.random(0), "grads": grads}
        executor = bind(
            call_graph("_contrib_index_copy", {}, names), args=args, grad_req=dict.fromkeys(grads, req), **options
        )
        head = np.random.default_rng(2).normal(size=(10, 3)).astype("f")
        for _ in range(1 if req == "add" else 3):
            executor.forward(is_train=True)
            executor.backward([backend.put(head)])
        before = req == "add"
        expected = np.where(np.isin(np.arange(10), WHERE)[:, None], 0, head)
        np.testing.assert_allclose(backend.get(grads["old_tensor"]), expected + before, rtol=1e-6)
        np.testing.assert_allclose(backend.get(grads["new_tensor"]), head[WHERE] + before, rtol=1e-6)
