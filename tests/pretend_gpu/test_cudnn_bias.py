"""A convolution and its bias in one call of cuDNN, on the pretend device, and the two steps that it stands for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.cudnn import algorithms, planned, search
from opbox_service.executor import invoke
from tests.cases.case import Case
from tests.ops.harness import Run
from tests.switches import switch_off

from .replays import replayed_and_eager
from .spy import watched
from .test_cudnn import forget

ONE, TWO = "cudnnConvolutionBiasActivationForward", "cudnnConvolutionForward"
TYPES = [np.dtype("float32"), np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
SHAPES = ((2, 4, 7, 6), (6, 4, 3, 2), (6,))
ATTRS = {"kernel": (3, 2), "num_filter": 6, "stride": (2, 1), "pad": (1, 0)}
"""Of no algorithm that the stand-in has for small kernels: IMPLICIT_PRECOMP_GEMM is the best of those that it has."""


@pytest.fixture(autouse=True)
def anew(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process, whose measurements are written to a folder of their own."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    forget()
    yield
    forget()


def numbers(dtype: Any, shapes: Any = SHAPES) -> list[Any]:
    """Whole numbers, whose sums single precision has exactly and half does not."""
    rng = np.random.default_rng(0)
    return [rng.integers(-30, 30, shape).astype(dtype) for shape in shapes]


def computed(arrays: list[Any], attrs: dict[str, Any], device: str = "gpu:0") -> tuple[Any, Any]:
    """Convolution's output by a compute that is chosen anew, and what the device did when that was measured."""
    backend = backend_for(device)
    calls: Any = importlib.import_module("opbox_service.executor.invoke")
    calls._forms.clear()
    calls._calls.clear()
    inputs, random = [backend.put(array) for array in arrays], backend.random(0)
    invoke("Convolution", attrs, inputs, backend=backend, random=random)
    assert search.settle(60)
    with watched() as watch:
        (out,) = invoke("Convolution", attrs, inputs, backend=backend, random=random)
    return backend.get(out), watch


def named(watch: Any) -> list[Any]:
    """The calls of cuDNN, and the kernels."""
    return [detail if kind == "cudnn" else kind for kind, detail in watch.calls.events if kind in ("cudnn", "launch")]


def agree(arrays: list[Any], attrs: dict[str, Any] = ATTRS, *, exact: bool = True) -> list[Any]:
    """The device's values are the CPU's, to the last bit where rounded once; what it called."""
    (expected, _), (got, watch) = computed(arrays, attrs, "cpu"), computed(arrays, attrs)
    if exact:
        np.testing.assert_array_equal(got.astype("f"), expected.astype("f"))
    else:
        near = 2 * float(ml_dtypes.finfo(got.dtype).eps)  # type: ignore[no-untyped-call]
        np.testing.assert_allclose(got.astype("f"), expected.astype("f"), rtol=near, atol=near * np.abs(expected).max())
    return named(watch)


def last(arrays: list[Any]) -> list[Any]:
    return [*[np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in arrays[:2]], arrays[2]]


@pytest.fixture
def in_one_is_fastest(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is measured that the call with the bias takes less than each other of cuDNN's."""
    switch_off(monkeypatch, "convolution-products")
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "limited_workspace")
    gpu.costs.update({(ONE, 1): 0.5, **{(TWO, number): 1.0 for number in range(8)}})


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_bias_is_added_by_the_convolution(dtype: Any, layout: str) -> None:
    arrays = numbers(dtype)
    attrs = {**ATTRS, "layout": layout}
    assert agree(last(arrays) if layout == "NHWC" else arrays, attrs) == [ONE]


@pytest.mark.usefixtures("in_one_is_fastest")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_it_is_added_in_each_number_of_dimensions(dtype: Any, groups: int, ndim: int) -> None:
    shapes = ((2, 4, *(5, 6, 4)[:ndim]), (6, 4 // groups, *(2, 3, 1)[:ndim]), (6,))
    attrs = {"kernel": shapes[1][2:], "num_filter": 6, "num_group": groups}
    assert agree(numbers(dtype, shapes), attrs) == [ONE]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("in_one", "taken"), [(2.0, [TWO, "launch"]), (0.5, [ONE])])
def test_the_faster_of_one_step_and_two_is_taken(
    gpu: Any, dtype: Any, in_one: float, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "limited_workspace")
    switch_off(monkeypatch, "convolution-products")
    gpu.costs.update({(ONE, 1): in_one, (TWO, 1): 1.0, (TWO, 2): 3.0, (TWO, 0): 3.0})
    assert agree(numbers(dtype), exact=dtype == np.float32 or taken == [ONE]) == taken


@pytest.mark.parametrize(
    ("module", "name", "other", "attrs"),
    [
        (planned, "_IDENTITY", 1, ATTRS),
        (planned, "_NOT_PROPAGATE_NAN", 1, ATTRS),
        (algorithms, "IMPLICIT_PRECOMP_GEMM", 0, {**ATTRS, "workspace": 0}),
    ],
)
def test_what_the_library_refuses_goes_in_two_steps_from_then_on(
    module: Any, name: str, other: int, attrs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stand-in, as by cuDNN: ReLU, NaN that stays, and every other algorithm."""
    monkeypatch.setattr(module, name, other)
    refused = []
    real = planned.RefusedConvolution

    class Counted(real):  # type: ignore[misc, valid-type]
        def __init__(self, message: str) -> None:
            super().__init__(message)
            refused.append(message)

    monkeypatch.setattr(planned, "RefusedConvolution", Counted)
    assert agree(numbers("float32"), attrs) == [TWO, "launch"]
    assert len(refused) == 1


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["Convolution", "Deconvolution"])
def test_the_biass_gradient_has_kernels(dtype: Any, layout: str, op: str) -> None:
    """A sum of each channel: of channels that lie last by slices of their rows, then over these."""
    filters, last_axes = 40, layout == "NHWC"
    shapes = {"data": (8, 4, 10, 9), "weight": (4, filters, 1, 1), "bias": (filters,)}
    if op == "Convolution":
        shapes["weight"] = (filters, 4, 1, 1)
    if last_axes:
        shapes |= {name: (shape[0], *shape[2:], shape[1]) for name, shape in shapes.items() if len(shape) == 4}
    attrs = {"kernel": (1, 1), "num_filter": filters, "layout": layout, "no_bias": False}
    backend = backend_for("gpu:0")
    run = Run(Case(op, shapes, attrs, ("float32",)), str(dtype), backend)
    run.forward()
    with watched() as watch:
        gradients = run.backward()
    head = backend.get(run.calls[-1].inputs[0]).astype("d")
    total = head.sum((0, 1, 2) if last_axes else (0, 2, 3))
    near = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    gbias = backend.get(gradients["bias"]).astype("d")
    np.testing.assert_allclose(gbias, total, rtol=near, atol=near * np.abs(head).sum() / filters)
    kernels = [detail for kind, detail in watch.calls.events if kind == "launch" and "bias" in str(detail)]
    assert len(kernels) == (2 if last_axes else 1)


def test_a_type_that_the_library_refuses_goes_in_two_steps() -> None:
    assert agree(numbers("float64")) == [TWO, "launch"]


def test_without_measuring_the_recommended_algorithm_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "off")
    assert agree(numbers("float32")) == [ONE]
    # Winograd's is recommended, which cannot add a bias.
    small = {"kernel": (3, 3), "num_filter": 6}
    assert agree(numbers("float32", ((2, 4, 7, 6), (6, 4, 3, 3), (6,))), small) == [TWO, "launch"]
    monkeypatch.delenv("OPBOX_CUDNN_TUNE")
    off = {**ATTRS, "cudnn_tune": "off"}
    assert agree(numbers("float32"), off) == [ONE]
    assert not list(tmp_path.iterdir())
    assert TWO not in agree(numbers("float32"), {**ATTRS, "cudnn_off": True})


def test_where_no_workspace_is_allowed_it_goes_in_two_steps() -> None:
    assert agree(numbers("float32"), {**ATTRS, "workspace": 0}) == [TWO, "launch"]


def test_what_has_no_bias_is_not_asked_about() -> None:
    assert agree(numbers("float32")[:2], {**ATTRS, "no_bias": True}) == [TWO]


@pytest.mark.usefixtures("in_one_is_fastest")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_and_infinity_stay(dtype: Any) -> None:
    data, weight, bias = numbers(dtype, ((1, 2, 1, 4), (2, 2, 1, 1), (2,)))
    data[0, 0, 0, 0], data[0, 0, 0, 1], bias[1], weight[:, 0] = np.nan, np.inf, np.nan, 1
    got, watch = computed([data, weight, bias], {"kernel": (1, 1), "num_filter": 2})
    assert named(watch) == [ONE]
    assert np.isnan(got[0, :, 0].astype("f")).tolist() == [[True, False, False, False], [True] * 4]
    assert np.isposinf(got[0, 0, 0, 1].astype("f"))


def test_arrays_may_lie_at_odd_addresses(cupy: Any) -> None:
    backend, arrays = backend_for("gpu:0"), numbers("float32")
    expected, _ = computed(arrays, ATTRS)

    def odd(array: Any) -> Any:
        place = cupy.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
        place[...] = cupy.asarray(array)
        return place

    inputs, out = [odd(array) for array in arrays], odd(np.zeros_like(expected))
    with watched() as watch:
        invoke("Convolution", ATTRS, inputs, outputs=[out], backend=backend, random=backend.random(0))
    assert ONE in named(watch)
    np.testing.assert_array_equal(backend.get(out), expected)


def test_another_device_keeps_to_the_workspace_that_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan was made where two steps in no workspace are taken, and is bound where one step would need some."""
    arrays = numbers("float32")
    expected, _ = computed(arrays, ATTRS, "cpu")
    for nbytes, steps in ((0, [TWO, "launch"]), (1 << 20, [ONE])):
        monkeypatch.setattr("opbox_ops.cudnn.convolution._workspace_bytes", lambda ctx, nbytes=nbytes: nbytes)
        forget()
        got, watch = computed(arrays, ATTRS)
        assert named(watch) == steps
        np.testing.assert_array_equal(got, expected)


def network() -> Any:
    x = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(3, 2), stride=(2, 1), name="one")
    x = mx.sym.Convolution(mx.sym.Activation(x, act_type="relu"), num_filter=3, kernel=(1, 1), name="two")
    return mx.sym.MakeLoss(mx.sym.sum(x)), {"data": (2, 3, 6, 6)}


@pytest.mark.parametrize("req", ["write", "add"])
def test_a_captured_plan_has_the_eager_numbers(req: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, eager = replayed_and_eager(network, req, monkeypatch)
    assert ONE not in named(replayed)
    assert ONE in named(eager)
