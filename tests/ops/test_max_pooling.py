"""Max pooling in C beside its definition, and who computes which pooling; NaN passes through all of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.accumulation import NARROW
from opbox_ops.compute import Array
from opbox_ops.cpu.algorithms.window_sizes import WindowSizes
from opbox_ops.cpu.onednn.library import library
from opbox_ops.nn.max_pooling import MaxPooling, max_pooling
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor.passes import PASSES
from tests.allocations import counted
from tests.executor.test_parts import compiled
from tests.machine import needs_compiler
from tests.switches import set_c_kernels

from .thread_counts import assert_same_bits

pytestmark = needs_compiler

# kernel, stride, pad, data's height and width, out's
GEOMETRIES: list[Any] = [
    ((3, 3), (2, 2), (1, 1), (37, 12), (19, 6)),
    ((2, 2), (2, 2), (0, 0), (34, 8), (17, 4)),
    ((3, 3), (1, 1), (1, 1), (20, 5), (20, 5)),
    ((2, 5), (3, 1), (1, 2), (18, 7), (6, 7)),
    ((5, 2), (1, 3), (4, 0), (3, 9), (7, 3)),
    ((3, 3), (2, 2), (0, 0), (8, 8), (4, 4)),  # "full": the last windows reach beyond data
    ((1, 1), (2, 3), (0, 0), (19, 7), (10, 3)),
    ((17, 4), (1, 1), (0, 0), (17, 4), (1, 1)),
]


@pytest.fixture(params=["float32", *NARROW])
def dtype(request: pytest.FixtureRequest) -> np.dtype[Any]:
    return numpy_dtype(request.param)


@pytest.fixture
def kernel(dtype: np.dtype[Any]) -> MaxPooling:
    compiled_functions = max_pooling(dtype.name)
    assert compiled_functions is not None
    return compiled_functions


def arrays(windows: WindowSizes, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Data, whole numbers so that maxima come more than once, both zeros among them, and a gradient of out."""
    rng = np.random.default_rng(0)
    batch, _, _, channels = windows.data
    data = rng.integers(-4, 4, windows.data) * rng.choice([1.0, -1.0], windows.data)
    return data.astype(dtype), rng.normal(size=(batch, *windows.out, channels)).astype(dtype)


def wide(array: Array) -> Array:
    return array.astype(np.float32)


def by_definition(windows: WindowSizes, data: Array, gout: Array) -> tuple[Array, Array]:
    """Out, and the gradient of data, window by window, in float32."""
    data, gout = wide(data), wide(gout)
    out, gdata = np.empty_like(gout), np.zeros_like(data)
    for n, y, x in np.ndindex(gout.shape[:3]):
        spans = [
            range(max(0, at * s - q), min(size, at * s - q + k))
            for at, s, q, k, size in zip(
                (y, x), windows.stride, windows.pad, windows.kernel, windows.data[1:3], strict=True
            )
        ]
        places = list(itertools.product(*spans))
        values = np.array([data[n, i, j] for i, j in places])
        out[n, y, x] = values.max(0)
        for c in range(data.shape[3]):
            here = np.flatnonzero(values[:, c] == out[n, y, x, c])
            if len(here):
                gdata[(n, *places[here[0]], c)] += gout[n, y, x, c]
    return out, gdata


@pytest.mark.parametrize("channels", [1, 7, 32, 45])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_definition(kernel: MaxPooling, dtype: Any, geometry: Any, channels: int) -> None:
    """To the last bit: gradients are added in the order of windows."""
    size, stride, pad, data_size, out_size = geometry
    windows = WindowSizes((2, *data_size, channels), out_size, size, stride, (1, 1), pad)
    data, gout = arrays(windows, dtype)
    out, gdata = np.full_like(gout, np.nan), np.full(data.shape, np.nan, np.float32)
    forward, backward = kernel.forward(windows, data, out), kernel.gradient(windows, gout, data, out, gdata)
    with counted() as allocated:
        forward()
        backward()
    assert not allocated
    expected, gexpected = by_definition(windows, data, gout)
    np.testing.assert_array_equal(wide(out), expected)
    np.testing.assert_array_equal(gdata, gexpected)


@pytest.mark.parametrize("channels", [3, 32])
def test_numbers_that_are_none(kernel: MaxPooling, dtype: Any, channels: int) -> None:
    """NaN is the maximum, and takes no gradient; an infinite gradient stays in its place."""
    windows = WindowSizes((1, 8, 8, channels), (4, 4), (2, 2), (2, 2), (1, 1), (0, 0))
    data, gout = arrays(windows, dtype)
    data[0, 0, 0, 1] = -data.dtype.type(np.nan)
    data[0, 0, 1, 0], data[0, 2, 2, 1], data[0, :2, 2:4, 2] = np.nan, np.inf, -np.inf
    gout[0, 3, 3, 0] = np.inf
    out, gdata = np.empty_like(gout), np.empty(data.shape, np.float32)
    kernel.forward(windows, data, out)()
    kernel.gradient(windows, gout, data, out, gdata)()
    expected, gexpected = by_definition(windows, data, gout)
    np.testing.assert_array_equal(wide(out), expected)
    np.testing.assert_array_equal(gdata, gexpected)
    assert np.isnan(wide(out)[0, 0, 0, :2]).all()
    assert out[0, 0, 1, 2] == -np.inf
    assert np.isinf(gdata).sum() == 1
    assert (gdata[0, :2, :2, 0] == 0).all()


THREADS_SCRIPT = """
import sys
import numpy as np
from opbox_ops.nn.max_pooling import max_pooling
from opbox_ops.cpu.algorithms.window_sizes import WindowSizes
kernel, rng = max_pooling(), np.random.default_rng(0)
windows = WindowSizes((1, 70, 61, 24), (35, 31), (3, 3), (2, 2), (1, 1), (1, 1))
data, gout = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 70, 61, 24), (1, 35, 31, 24)))
out, gdata = np.empty_like(gout), np.empty_like(data)
kernel.forward(windows, data, out)()
kernel.gradient(windows, gout, data, out, gdata)()
sys.stdout.write(out.tobytes().hex() + gdata.tobytes().hex())
"""


def test_threads_give_the_bits_of_one() -> None:
    assert_same_bits(THREADS_SCRIPT)


def computed(symbol: Any, shape: tuple[int, ...]) -> list[bool]:
    """Whether the kernels compute its pooling, and the gradient of that."""
    executor, _ = compiled(mx.sym.MakeLoss(mx.sym.sum(symbol)), {"data": shape}, PASSES)
    steps = [step for step in executor.plan.steps if step.node.op is not None and "Pooling" in step.node.op.name]
    assert len(steps) == 2
    return [any(isinstance(one, MaxPooling) for one in getattr(step.kernel.bind, "args", ())) for step in steps]


POOL = {"kernel": (2, 2), "stride": (2, 2), "pool_type": "max"}


def test_which_poolings_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays whose channels lie last, by their layout or between convolutions."""
    data = mx.sym.Variable("data")
    assert computed(mx.sym.Pooling(data, layout="NHWC", **POOL), (2, 8, 6, 5)) == [True] * 2
    convolved = mx.sym.Convolution(data, kernel=(3, 3), num_filter=8, name="before")
    between = mx.sym.Convolution(mx.sym.Pooling(convolved, **POOL), kernel=(2, 2), num_filter=8, name="after")
    if library() is not None:
        assert computed(between, (2, 4, 10, 9)) == [True] * 2
    for other, shape in (
        (mx.sym.Pooling(data, **POOL), (2, 8, 6, 5)),
        (mx.sym.Pooling(data, layout="NHWC", **{**POOL, "pool_type": "avg"}), (2, 8, 6, 5)),
        (mx.sym.Pooling(data, layout="NHWC", **POOL, pad=(2, 2)), (2, 8, 6, 5)),
        (mx.sym.Pooling(data, layout="NWC", kernel=(2,), stride=(2,), pool_type="max"), (2, 8, 6)),
    ):
        assert computed(other, shape) == [False] * 2
    set_c_kernels(monkeypatch, "0")
    assert computed(mx.sym.Pooling(data, layout="NHWC", **POOL), (2, 8, 6, 5)) == [False] * 2


@pytest.mark.parametrize("kernels", ["1", "0"], ids=["C", "without a compiler"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "between convolutions"])
@pytest.mark.parametrize("window", [2, 3])
def test_nan_passes_through_and_its_gradient_ends(
    kernels: str, layout: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever computes it; the numbers beside it are as they were."""
    set_c_kernels(monkeypatch, kernels)
    symbol = mx.sym.Variable("data")
    attrs: dict[str, Any] = {"kernel": (window, window), "stride": (2, 2), "pool_type": "max"}
    if layout.startswith("between"):
        symbol = mx.sym.Convolution(symbol, kernel=(1, 1), num_filter=8, no_bias=True, name="first")
        symbol = mx.sym.Pooling(symbol, **attrs)
        symbol = mx.sym.Convolution(symbol, kernel=(1, 1), num_filter=8, no_bias=True, name="second")
    else:
        symbol = mx.sym.Pooling(symbol, layout=layout, **attrs)
    results = []
    for number in (0.5, np.nan):
        executor, grads = compiled(symbol, {"data": (2, 8, 8, 8)}, PASSES)
        for name in {"first_weight", "second_weight"} & {*executor.plan.graph.argument_names}:
            executor._external["arg", name][...] = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)
        executor._external["arg", "data"][0, 4, 4, 4] = number
        executor.forward(is_train=True)
        executor.backward([np.ones_like(executor.outputs[0])])
        results.append((executor.outputs[0].copy(), grads["data"].copy()))
    (out, gdata), (other, gother) = results
    places = np.isnan(other)
    assert places.sum() == (1 if window == 2 else 4) * (8 if layout.startswith("between") else 1)
    np.testing.assert_array_equal(other[~places], out[~places])
    assert np.isfinite(gother).all()
    assert gdata.sum() - gother.sum() == places.sum()
    np.testing.assert_array_equal(gother[1], gdata[1])
