"""sort, argsort and topk on the CPU: the order that NumPy's stable argsort gives, in every type and direction."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.index import ordered_rows, packed_order
from opbox_service.executor import bind, invoke
from opbox_service.graph.json import load
from tests.allocations import counted

CPU = backend_for("cpu")
TYPES = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
SHAPES = (
    ((1,), 0),
    ((7,), 0),
    ((300,), 0),
    ((2, 256), 1),
    ((3, 30, 2), 1),
    ((40, 3), 0),
    ((2, 5000), 1),
    ((5, 4), None),
)
LONG_ROWS = ((3, 5003, 7), (32, 256, 16), (9, 1100, 1), (1, 20000, 40))
"""Rows, elements of a row and how many are wanted: few of long rows, which columns are searched for."""


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(name, shape, few):
    """Numbers of a type: `few` different ones, so that many are equal, or all that it has."""
    rng, dtype = np.random.default_rng(len(shape)), dtype_of(name)
    if dtype.kind in "biu":
        if dtype.kind == "b" or few:
            return rng.integers(0, 2 if dtype.kind == "b" else 5, shape).astype(dtype)
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    with np.errstate(over="ignore"):
        numbers = (rng.integers(-3, 4, shape) if few else rng.normal(size=shape) * 1e5).astype(dtype)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]).astype(dtype)
    return np.where(rng.random(shape) < (0.3 if few else 0.001), rng.choice(special, shape), numbers)


def expected_order(data, axis, ascend):
    """By NumPy, of numbers that it can compare: float64 has all of bfloat16's."""
    data = data.reshape(-1) if axis is None else data
    axis = 0 if axis is None else axis
    data = data.astype("float64") if data.dtype.itemsize == 2 else data
    if ascend:
        return np.argsort(data, axis=axis, kind="stable")
    order = np.argsort(np.flip(data, axis), axis=axis, kind="stable")
    return np.flip(data.shape[axis] - 1 - order, axis)


def same_bits(got, expected):
    np.testing.assert_array_equal(got.view(f"u{got.dtype.itemsize}"), expected.view(f"u{got.dtype.itemsize}"))


def call(op, attrs, data):
    return invoke(op, {name: str(value) for name, value in attrs.items()}, [data], backend=CPU, random=CPU.random(0))


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", TYPES)
def test_it_is_numpys_stable_order(name, shape, axis, few, ascend):
    data = values(name, shape, few)
    order = expected_order(data, axis, ascend)
    attrs = {"axis": axis, "is_ascend": ascend}
    np.testing.assert_array_equal(call("argsort", {**attrs, "dtype": "int32"}, data)[0], order)
    flat, along = (data.reshape(-1), 0) if axis is None else (data, axis)
    same_bits(call("sort", attrs, data)[0], np.take_along_axis(flat, order, along))
    some = max(1, flat.shape[along] // 3)
    best = np.take(order, range(some), axis=along)
    chosen, places = call("topk", {**attrs, "k": some, "ret_typ": "both", "dtype": "int64"}, data)
    np.testing.assert_array_equal(places, best)
    same_bits(chosen, np.take_along_axis(flat, best, along))
    mask = call("topk", {**attrs, "k": some, "ret_typ": "mask"}, data)[0]
    expected = np.zeros(flat.shape, data.dtype)
    np.put_along_axis(expected, best, 1, along)
    np.testing.assert_array_equal(mask, expected.reshape(data.shape))


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("rows", "size", "k"), LONG_ROWS)
@pytest.mark.parametrize("name", TYPES)
def test_the_first_few_of_long_rows(name, rows, size, k, few, ascend):
    data = values(name, (rows, size), few)
    attrs = {"axis": 1, "is_ascend": ascend, "k": k, "ret_typ": "both", "dtype": "int64"}
    chosen, places = call("topk", attrs, data)
    best = expected_order(data, 1, ascend)[:, :k]
    np.testing.assert_array_equal(places, best)
    same_bits(chosen, np.take_along_axis(data, best, 1))


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize("lacking", [3, 1500, 2048])
def test_the_first_few_where_numbers_are_missing(lacking, ascend):
    rng = np.random.default_rng(lacking)
    data = rng.normal(size=(4, 2048)).astype("float32")
    for row in data:
        row[rng.permutation(2048)[:lacking]] = np.nan
    places = call("topk", {"axis": 1, "is_ascend": ascend, "k": 5, "dtype": "int64"}, data)[0]
    np.testing.assert_array_equal(places, expected_order(data, 1, ascend)[:, :5])


def test_columns_are_searched_where_they_differ_at_the_border(monkeypatch):
    """A row of different numbers is never put in order as a whole; one of equal numbers is."""
    sizes = []
    plain = ordered_rows.order_calls

    def watched(rows, *args):
        return [lambda: sizes.append(rows.shape[1]), *plain(rows, *args)]

    monkeypatch.setattr(ordered_rows, "order_calls", watched)
    rng = np.random.default_rng(0)
    call("topk", {"axis": 1, "k": 4}, rng.permutation(8192).reshape(1, 8192).astype("float32"))
    assert len(sizes) == 2
    assert max(sizes) < 1024
    sizes.clear()
    call("topk", {"axis": 1, "k": 4}, np.ones((1, 8192), "float32"))
    assert max(sizes) == 8192


def test_arrays_with_gaps_and_turned_ones():
    data = values("float32", (200, 150), True)
    for view in (data[:, ::2], data.T, data[::-1, 1:]):
        for axis in (0, 1, None):
            got = call("argsort", {"axis": axis, "dtype": "int64"}, view)[0]
            np.testing.assert_array_equal(got, expected_order(view, axis, True))


def test_more_than_is_ordered_at_once(monkeypatch):
    monkeypatch.setattr(ordered_rows, "AT_ONCE", 400)
    looks = []
    monkeypatch.setattr(ordered_rows, "pause", lambda: looks.append(1))
    for shape, axis in (((10, 200), 1), ((200, 10), 0), ((9, 300), 1)):
        data = values("float64", shape, False)
        looks.clear()
        got = call("argsort", {"axis": axis, "dtype": "int64"}, data)[0]
        np.testing.assert_array_equal(got, expected_order(data, axis, True))
        assert len(looks) == {200: 5, 300: 9}[shape[axis]]


@pytest.mark.parametrize("name", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("sort", {}),
        ("argsort", {"axis": 0, "dtype": "int32"}),
        ("topk", {"k": 3, "ret_typ": "both"}),
        ("topk", {"k": 2000, "ret_typ": "mask"}),
        ("sort", {"axis": None}),
    ],
)
def test_large_rows_allocate_nothing(name, op, attrs):
    x = mx.sym.Variable("x", dtype=name)
    symbol = getattr(mx.sym, op)(x, **attrs)
    data = values(name, (3, 5000), False)
    executor = bind(load(symbol.tojson()), args={"x": data}, backend=CPU, random=CPU.random(0))
    executor.forward(is_train=False)
    with counted() as sizes:
        executor.forward(is_train=False)
    assert sizes == []


def test_places_beyond_two_to_the_31_are_no_negative_numbers():
    """Such a row has 8 GiB and more: the halves that hold its places are looked at alone."""
    packed = np.array([[(-5 << 32) | (2**32 - 1), (7 << 32) | 2**31]], np.int64)
    lower, upper = packed_order._halves(packed)
    assert lower.tolist() == [[2**32 - 1, 2**31]]
    assert upper.tolist() == [[-5, 7]]
    assert np.add(lower, np.int64(10)).tolist() == [[2**32 + 9, 2**31 + 10]]
