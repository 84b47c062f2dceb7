"""sort, argsort and topk by the C kernel: the order that NumPy's stable argsort gives, in every type and direction."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.index import order, radix_order

TYPES = ("int32", "int64", "float16", "float32", "float64")
SHAPES = (((300,), 0), ((2, 256), 1), ((3, 300, 2), 1), ((400, 3), 0), ((2, 5000), 1))


@pytest.fixture(autouse=True)
def _kernel(monkeypatch, folder):
    """Each test compiles the kernel, or finds it in the folder, at its first call."""
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))
    monkeypatch.setenv("OPBOX_C_KERNELS", "now")
    monkeypatch.setattr(radix_order, "_KERNEL", radix_order.new_kernel())


def values(dtype, shape, few):
    """Numbers of a type: `few` different ones, so that many are equal, or all that it has."""
    rng = np.random.default_rng(len(shape))
    if np.dtype(dtype).kind == "i":
        low, high = (-3, 4) if few else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    with np.errstate(over="ignore"):
        numbers = (rng.integers(-3, 4, shape) if few else rng.normal(size=shape) * 1e5).astype(dtype)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(special, shape), numbers)


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_it_is_numpys_stable_order(dtype, shape, axis, few, ascend):
    data = values(dtype, shape, few)
    expected = np.argsort(data if ascend else np.flip(data, axis), axis=axis, kind="stable")
    if not ascend:
        expected = np.flip(shape[axis] - 1 - expected, axis)
    got = radix_order.radix_order(data, axis, ascend)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(order._order(np, data, axis, ascend), expected)


def test_arrays_with_gaps_and_turned_ones():
    data = values("float32", (200, 150), True)
    for view in (data[:, ::2], data.T, data[::-1, 1:]):
        got = radix_order.radix_order(view, 0, True)
        np.testing.assert_array_equal(got, np.argsort(view, axis=0, kind="stable"))


@pytest.mark.parametrize(
    "data", [np.ones((2, 0), "f"), np.ones((2, 127), "f"), np.ones((2, 300), ">f4"), np.ones((2, 300), "uint8")]
)
def test_numpy_orders_what_the_kernel_does_not_take(data):
    assert radix_order.radix_order(data, 1, True) is None
    assert order._order(np, data, 1, True).shape == data.shape


def test_numpy_orders_without_a_compiler(monkeypatch):
    monkeypatch.setenv("OPBOX_C_KERNELS", "0")
    data = values("float32", (2, 150), False)
    assert radix_order.radix_order(data, 1, True) is None
    np.testing.assert_array_equal(order._order(np, data, 1, True), np.argsort(data, axis=1, kind="stable"))


def test_a_call_may_end_between_rows(monkeypatch):
    monkeypatch.setattr(radix_order, "AT_ONCE", 400)
    looks = []
    monkeypatch.setattr(radix_order, "pause", lambda: looks.append(1))
    data = values("float32", (10, 200), False)
    got = radix_order.radix_order(data, 1, True)
    np.testing.assert_array_equal(got, np.argsort(data, axis=1, kind="stable"))
    assert len(looks) == 5
