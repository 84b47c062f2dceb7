"""Arrays on both engines, against numpy and MXNet's rules."""

from __future__ import annotations

import copy
import operator
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError, ParamError, ShapeError

pytestmark = pytest.mark.usefixtures("engine")

VALUES = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.fixture
def x() -> mx.NDArray:
    return mx.nd.array(VALUES)


def test_what_it_is(x: mx.NDArray) -> None:
    assert (x.shape, x.dtype, x.size, x.ndim, len(x), x.stype) == ((2, 3), np.float32, 6, 2, 2, "default")
    assert x.context == mx.cpu()
    assert repr(x) == "\n[[1. 2. 3.]\n [4. 5. 6.]]\n<NDArray 2x3 @cpu(0)>"
    assert x.asnumpy().flags.writeable
    assert [row.asnumpy().tolist() for row in x] == VALUES.tolist()
    np.testing.assert_array_equal(x.T.asnumpy(), VALUES.T)
    np.testing.assert_array_equal(np.asarray(x), VALUES)


def test_default_types() -> None:
    assert mx.nd.array([1, 2]).dtype == np.float32
    assert mx.nd.array(np.arange(3)).dtype == np.float32
    assert mx.nd.array(mx.nd.array([1], dtype="int8")).dtype == np.int8
    assert mx.nd.array([1], dtype="float64").dtype == np.float64
    assert mx.nd.array(3).shape == ()
    assert mx.nd.zeros((0, 3)).shape == (0, 3)


def test_host_values_are_copied() -> None:
    values = np.ones(3, np.float32)
    x = mx.nd.array(values, dtype="float32")
    values[:] = 7
    y = mx.nd.zeros(3)
    y[:] = values
    values[:] = 9
    assert (x.asnumpy().tolist(), y.asnumpy().tolist()) == ([1, 1, 1], [7, 7, 7])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "mod", "pow", "eq", "ne", "gt", "ge", "lt", "le"])
def test_operators(name: str) -> None:
    function = getattr(operator, name)
    a, b = VALUES, VALUES[::-1].copy()
    x, y = mx.nd.array(a), mx.nd.array(b)
    for got, expected in (
        (function(x, y), function(a, b)),
        (function(x, 2), function(a, np.float32(2))),
        (function(2, x), function(np.float32(2), a)),
        (function(x, y[0:1]), function(a, b[0:1])),
    ):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got.asnumpy(), expected.astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "imod"])
def test_operators_in_place_write_to_views(name: str, x: mx.NDArray) -> None:
    row, expected = x[1], VALUES.copy()
    getattr(operator, name)(row, 2)
    part = expected[1]
    getattr(operator, name)(part, 2)
    np.testing.assert_allclose(x.asnumpy(), expected)


def test_functions_of_numbers_and_arrays(x: mx.NDArray) -> None:
    np.testing.assert_array_equal(mx.nd.maximum(x, 3).asnumpy(), np.maximum(VALUES, 3))
    np.testing.assert_array_equal(mx.nd.minimum(3, x).asnumpy(), np.minimum(VALUES, 3))
    np.testing.assert_array_equal(mx.nd.greater(3, x).asnumpy(), VALUES < 3)
    np.testing.assert_array_equal(mx.nd.subtract(3, x).asnumpy(), 3 - VALUES)
    assert mx.nd.maximum(2, 3) == 3
    with pytest.raises(TypeError):
        mx.nd.add("a", 1)


@pytest.mark.parametrize(
    "key", [0, -1, slice(0, 1), slice(1, None), slice(0, 0), (0, 1), (1, slice(0, 2)), slice(None), (-1, -1), Ellipsis]
)
def test_contiguous_parts_are_views(key: Any, x: mx.NDArray) -> None:
    expected = VALUES[key]
    part = x[key]
    np.testing.assert_array_equal(part.asnumpy(), np.atleast_1d(expected))
    if expected.size:
        part[:] = 9
        changed = VALUES.copy()
        changed[key] = 9
        np.testing.assert_array_equal(x.asnumpy(), changed)


@pytest.mark.parametrize(
    "key",
    [
        (slice(None), 1),
        (slice(None), slice(0, 2)),
        slice(None, None, -1),
        (slice(None), slice(None, None, 2)),
        [0, 1, 0],
        np.array([1, 0]),
        (np.array([0, 1]), np.array([2, 0])),
        None,
        (Ellipsis, 1),
        VALUES > 2,
        (slice(None), [True, False, True]),
    ],
)
def test_other_parts_are_copies(key: Any, x: mx.NDArray) -> None:
    part = x[key]
    np.testing.assert_array_equal(part.asnumpy(), VALUES[key])
    part[:] = 9
    np.testing.assert_array_equal(x.asnumpy(), VALUES)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (slice(None), 5),
        (slice(None), [7, 8, 9]),
        (slice(1, 2), VALUES[0]),
        ((slice(None), 1), 5),
        ((slice(None), 1), [3, 4]),
        ((slice(None), slice(1, 3)), VALUES[:, :2]),
        ((0, 2), 1),
        ([1, 0], 4),
        ([1, 0], VALUES[::-1]),
        (VALUES > 3, 0),
        ((slice(None), slice(None, None, 2)), 7),
        (slice(0, 0), 3),
    ],
)
def test_assignment(key: Any, value: Any, x: mx.NDArray) -> None:
    expected = VALUES.copy()
    expected[key] = value
    x[key] = value
    np.testing.assert_array_equal(x.asnumpy(), expected)


def test_assignment_of_arrays_casts_and_broadcasts(x: mx.NDArray) -> None:
    x[:] = mx.nd.array([1, 2, 3], dtype="int32")
    np.testing.assert_array_equal(x.asnumpy(), [[1, 2, 3], [1, 2, 3]])
    x[:, 1] = mx.nd.array([8, 9])
    np.testing.assert_array_equal(x.asnumpy(), [[1, 8, 3], [1, 9, 3]])
    x[0] = mx.nd.array([[4, 4, 4]])
    np.testing.assert_array_equal(x.asnumpy(), [[4, 4, 4], [1, 9, 3]])
    with pytest.raises(MXNetError, match=r"assignment: expected a value of shape \(2, 3\)"):
        x[:] = np.ones((2, 2))


@pytest.mark.parametrize(
    "key",
    [
        *(0, slice(0, 1), (slice(None), slice(1, 3)), (slice(None), slice(None, None, 2)), slice(None, None, 2)),
        *([0, 2], ([0, 1], [1, 2]), (slice(None), [0, 3]), np.array([[True, False, True, False]] * 3), slice(None)),
    ],
    ids=str,
)
@pytest.mark.parametrize(("dtype", "of"), [("int32", "float32"), ("float16", "float64"), ("float32", "int64")])
def test_assignment_of_another_type_is_a_cast(key: Any, dtype: str, of: str) -> None:
    """By MXNet 1.9.1: towards zero, whatever the part is and wherever the value lies."""
    expected = np.zeros((3, 4), dtype)
    value = np.asarray(np.linspace(-7.7, 7.7, expected[key].size).reshape(expected[key].shape), of)
    expected[key] = value
    for given_value in (mx.nd.array(value, dtype=of), value, value.tolist()):
        array = mx.nd.zeros((3, 4), dtype=dtype)
        array[key] = given_value
        assert array.dtype == np.dtype(dtype).type
        np.testing.assert_array_equal(array.asnumpy(), expected)


def test_index_out_of_bounds(x: mx.NDArray) -> None:
    with pytest.raises(IndexError, match="index 5: expected -2 to 1 on axis 0"):
        x[5]
    with pytest.raises(IndexError, match="too many indices"):
        x[0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 2), (3, 2)), ((-1,), (6,)), ((0, -1), (2, 3)), ((-2,), (2, 3)), ((-3,), (6,)), ((-4, 1, 2, 0), (1, 2, 3))],
)
def test_reshape_shares_memory(shape: tuple[int, ...], expected: tuple[int, ...], x: mx.NDArray) -> None:
    y = x.reshape(shape)
    assert y.shape == expected
    y[:] = 1
    assert x.asnumpy().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert x.reshape(*expected).shape == x.reshape(shape=expected).shape == expected


def test_reshape_to_another_size(x: mx.NDArray) -> None:
    with pytest.raises(MXNetError, match="expected a shape of 6 elements"):
        x.reshape((4, 2))
    assert x.reshape((1, -1), reverse=True).shape == (1, 6)
    # A code that splits an axis is read from the right too, by the method as by the operator.
    y = mx.nd.zeros((6, 4))
    assert y.reshape((2, 3, -4, 0), reverse=True).shape == (2, 3, 4)
    assert mx.nd.reshape(y, (2, 3, -4, 0), reverse=True).shape == (2, 3, 4)
    assert mx.nd.reshape(y.reshape((-1,))[:6], (2, 3, -4), reverse=True).shape == (2, 3)


def test_copies(x: mx.NDArray) -> None:
    for other in (x.copy(), copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.copyto(mx.cpu())):
        other[:] = 0
        np.testing.assert_array_equal(x.asnumpy(), VALUES)
    target = mx.nd.zeros((2, 3), dtype="int32")
    assert x.copyto(target) is target
    np.testing.assert_array_equal(target.asnumpy(), VALUES.astype(np.int32))
    assert x.as_in_context(mx.cpu()) is x
    assert x.astype("float32", copy=False) is x
    assert x.astype("int32").dtype == np.int32
    with pytest.raises(TypeError):
        x.copyto([1])


def test_scalars(x: mx.NDArray) -> None:
    one = mx.nd.array([3])
    assert (one.asscalar(), float(one), int(one), bool(one)) == (3, 3.0, 3, True)
    with pytest.raises(ValueError, match=r"one element, got shape \(2, 3\)"):
        x.asscalar()
    with pytest.raises(ValueError, match="compare and reduce it first"):
        bool(x)


def test_generated_functions(x: mx.NDArray) -> None:
    np.testing.assert_allclose(mx.nd.sum(x, axis=1).asnumpy(), VALUES.sum(1))
    np.testing.assert_allclose(x.mean(axis=0).asnumpy(), VALUES.mean(0))
    np.testing.assert_allclose(mx.nd.clip(x, 2, 4).asnumpy(), VALUES.clip(2, 4))
    np.testing.assert_allclose(mx.nd.dot(x, x.T).asnumpy(), VALUES @ VALUES.T)
    parts = mx.nd.split(x, num_outputs=3, axis=1)
    assert [part.shape for part in parts] == [(2, 1)] * 3
    assert mx.nd.concatenate([x, x], axis=1).shape == (2, 6)
    assert mx.nd.Concat(x, x, dim=0).shape == (4, 3)
    assert mx.nd.moveaxis(mx.nd.zeros((1, 2, 3)), 0, 2).shape == (2, 3, 1)
    out = mx.nd.zeros((2, 3))
    assert mx.nd.exp(x, out=out) is out
    np.testing.assert_allclose(out.asnumpy(), np.exp(VALUES), rtol=1e-6)
    assert mx.nd.arange(2, 8, 2).asnumpy().tolist() == [2, 4, 6]
    assert mx.nd.full((2,), 3, dtype="int32").asnumpy().tolist() == [3, 3]
    mx.nd.sgd_update(x, x, lr=0.5, out=x)
    np.testing.assert_allclose(x.asnumpy(), VALUES / 2)


def test_unfit_calls(x: mx.NDArray) -> None:
    with pytest.raises(ParamError, match="unknown parameter 'axes'; did you mean axis"):
        mx.nd.sum(x, axes=1)
    with pytest.raises(ParamError, match="input 'weight' is missing"):
        mx.nd.FullyConnected(x, num_hidden=3)
    with pytest.raises(TypeError, match="argument data must be an NDArray"):
        mx.nd.sum("x")


def test_errors_come_at_the_next_wait_with_the_line() -> None:
    y = mx.nd.ones((2, 3)) + mx.nd.ones((4,))  # this line is the one told
    with pytest.raises(ShapeError, match=r"broadcast_add: .*\(2, 3\) and \(4,\) \(test_ndarray\.py:\d+\)"):
        y.asnumpy()
    assert mx.nd.ones(2).asnumpy().tolist() == [1, 1]


def test_seeds_make_values_repeat() -> None:
    mx.random.seed(7)
    first = mx.nd.random.uniform(-1, 1, shape=(5,)).asnumpy()
    second = mx.random.normal(shape=(5,)).asnumpy()
    mx.random.seed(7)
    np.testing.assert_array_equal(mx.nd.random.uniform(-1, 1, shape=(5,)).asnumpy(), first)
    np.testing.assert_array_equal(mx.random.normal(shape=(5,)).asnumpy(), second)
    assert np.abs(first).max() <= 1
    mx.random.seed(-7)
    third = mx.nd.random.uniform(shape=(4,)).asnumpy()
    mx.random.seed(-7)
    assert (mx.nd.random.uniform(shape=(4,)).asnumpy() == third).all()
    with pytest.raises(ValueError, match="seed: expected a number, got 'x'"):
        mx.random.seed("x")


# What MXNet 1.9.1 wrote for {"arg:w": [[3, 7, 1], [4, 5, 5]], "aux:m": ones(2) in float16}.
PARAMS = bytes.fromhex(
    "120100000000000000000000000000000200000000000000c9fa93f900000000020000000200000000000000030000000000000001000000"
    "0000000000000000000040400000e0400000803f000080400000a0400000a040c9fa93f90000000001000000020000000000000001000000"
    "0000000002000000003c003c020000000000000005000000000000006172673a7705000000000000006175783a6d"
)


def test_files_are_mxnets(tmp_path: Path) -> None:
    path = tmp_path / "net.params"
    path.write_bytes(PARAMS)
    loaded = mx.nd.load(str(path))
    assert loaded["arg:w"].asnumpy().tolist() == [[3, 7, 1], [4, 5, 5]]
    assert loaded["aux:m"].dtype == np.float16
    mx.nd.save(str(path), loaded)
    assert path.read_bytes() == PARAMS


@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8", "int32", "int64", "bool", "bfloat16"])
def test_files_of_every_type(dtype: str, tmp_path: Path) -> None:
    path = str(tmp_path / "list")
    values = mx.nd.array(np.array([[0, 1], [1, 1]]), dtype=mx.nd.array([1], dtype=dtype).dtype)
    mx.nd.save(path, [values, mx.nd.array(5), mx.nd.zeros((0, 2))])
    loaded = mx.nd.load(path)
    assert [array.shape for array in loaded] == [(2, 2), (), (0, 2)]
    assert loaded[0].dtype == values.dtype
    np.testing.assert_array_equal(loaded[0].asnumpy(), values.asnumpy())


@pytest.mark.parametrize("cut", [0, 3, 20, 40, 100, len(PARAMS) - 1])
def test_cut_files_are_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(PARAMS[:cut])
    with pytest.raises(MXNetError, match=r"more bytes|expected"):
        mx.nd.load(str(path))


def test_steps_of_many_weights_are_called_with_their_arrays_in_turn() -> None:
    weights, moms = [mx.nd.ones(3), mx.nd.ones(2)], [mx.nd.zeros(3), mx.nd.zeros(2)]
    arrays = [array for pair in zip(weights, [mx.nd.ones(3), mx.nd.ones(2)], moms, strict=True) for array in pair]
    mx.nd.multi_sgd_mom_update(*arrays, lrs=(0.5, 0.25), wds=(0, 0), momentum=0.5, num_weights=2, out=weights)
    assert [array.asnumpy().tolist() for array in weights] == [[0.5] * 3, [0.75] * 2]
    assert [array.asnumpy().tolist() for array in moms] == [[-0.5] * 3, [-0.25] * 2]
    rates = [mx.nd.array([0.5, 0.25]), mx.nd.array([0, 0])]
    mx.nd.preloaded_multi_sgd_update(weights[0], moms[0], weights[1], moms[1], *rates, out=weights)
    assert weights[0].asnumpy().tolist() == [0.75] * 3
    symbol = mx.sym.multi_sgd_mom_update(*(mx.sym.Variable(name) for name in "abcdef"), lrs=(1, 1), wds=(0, 0))
    assert symbol.list_auxiliary_states() == ["c", "f"]
    assert len(symbol.list_outputs()) == 2


def test_rows_by_a_mask_are_taken_on_arrays_and_refused_in_a_graph() -> None:
    data, mask = mx.nd.array([[1, 2], [3, 4], [5, 6]]), mx.nd.array([1, 0, 1])
    rows = mx.nd.contrib.boolean_mask(data, mask)
    assert rows.shape == (2, 2)
    assert rows.asnumpy().tolist() == [[1, 2], [5, 6]]
    symbol = mx.sym.contrib.boolean_mask(mx.sym.Variable("data"), mx.sym.Variable("index"))
    with pytest.raises(mx.MXNetError, match="depends on the values of its inputs"):
        symbol.bind(mx.cpu(), {"data": data, "index": mask}).forward()[0].wait_to_read()


def test_operators_that_write_what_they_are_given() -> None:
    arrays = [mx.nd.ones(3), mx.nd.ones((2, 2))]
    mx.nd.reset_arrays(*arrays, num_arrays=2)
    assert [array.asnumpy().sum() for array in arrays] == [0, 0]
    mx.nd._internal._set_value(src=3, out=arrays[1])
    assert arrays[1].asnumpy().tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
def test_integers_that_mxnet_lacks_come_from_numpy_alone(dtype: str) -> None:
    x = mx.nd.array(np.arange(6), dtype=dtype)
    assert [(x + x).dtype, x[1:3].dtype, x.reshape((2, 3)).sum(axis=1).dtype] == [np.dtype(dtype).type] * 3
    assert mx.sym.Variable("x", dtype=dtype).infer_type()[1] == [np.dtype(dtype).type]
    with pytest.raises(ParamError, match=f"'dtype': expected one of .* got '{dtype}'"):
        mx.nd.zeros((2,), dtype=dtype).asnumpy()
    with pytest.raises(ParamError, match=f"'dtype': expected one of .* got '{dtype}'"):
        mx.nd.ones((2,)).astype(dtype).asnumpy()


def test_cumsum(engine: str) -> None:
    data = mx.nd.array([[1, 2], [3, 4]])
    assert mx.nd.cumsum(data).asnumpy().tolist() == [1, 3, 6, 10]
    assert mx.nd.cumsum(data, axis=0).asnumpy().tolist() == [[1, 2], [4, 6]]
    assert mx.nd.cumsum(data, axis=1, dtype="int32").dtype == np.int32
    assert mx.nd.cumsum(data.astype("bool"), axis=1).dtype == np.int64
    assert mx.nd.cumsum(data.astype("int8"), axis=1).dtype == np.int8
    for axis in (-1, 2):  # MXNet counts from the front alone
        with pytest.raises(mx.MXNetError, match=f"axis: expected between 0 and 1 for 2 dimensions, got {axis}"):
            mx.nd.cumsum(data, axis=axis).asnumpy()
    with pytest.raises(mx.MXNetError, match=r"parameter 'dtype': expected one of .*'int8'.*, got 'bool'"):
        mx.nd.cumsum(data, dtype="bool")
    total = mx.sym.cumsum(mx.sym.Variable("x"), axis=1, name="total")
    assert '"_np_cumsum"' in total.tojson()
    executor = total.simple_bind(mx.cpu(), x=(2, 3))
    executor.forward(is_train=True)
    executor.backward(mx.nd.array([[1, 2, 3], [4, 5, 6]]))
    assert executor.grad_dict["x"].asnumpy().tolist() == [[6, 5, 3], [15, 11, 6]]


@pytest.mark.parametrize(
    ("operator", "shape", "params", "expected"),
    [
        ("depth_to_space", (1, 4, 4, 4), {"block_size": 3}, r"data: axis 1: expected a multiple of 9, got"),
        ("space_to_depth", (4, 4), {"block_size": 2}, "data: expected 4 dimensions, got"),
        ("diag", (3, 3), {"k": 5}, r"k: expected between -2 and 2 for \(3, 3\), got 5"),
        ("Pooling", (1, 2, 4, 4), {"kernel": (0, 2)}, "kernel: expected one to three positive numbers"),
        ("Correlation", (1, 2, 6, 6), {"kernel_size": 2}, "'kernel_size': expected an odd number, got 2"),
    ],
)
def test_what_an_operator_refuses_at_the_call(
    operator: str, shape: tuple[int, ...], params: dict[str, Any], expected: str
) -> None:
    """MXNet's errors come there, and programs rely on it."""
    inputs = [mx.nd.ones(shape) for _ in range(1 + (operator == "Correlation"))]
    with pytest.raises(MXNetError, match=expected):
        getattr(mx.nd, operator)(*inputs, **params)


def test_shapes_are_checked_once() -> None:
    data, session = mx.nd.ones((1, 4, 4, 4)), mx.cpu().session
    mx.nd.depth_to_space(data, block_size=2)
    session.flush()
    requests = session.requests
    mx.nd.depth_to_space(data, block_size=2)
    assert session.requests == requests


def test_positions_outside_are_index_errors() -> None:
    with pytest.raises(IndexError, match=r"indices\[0\]: expected positions from -3 to 2, got 5"):
        mx.nd.gather_nd(mx.nd.ones((3, 2)), mx.nd.array([[5], [1]])).asnumpy()
