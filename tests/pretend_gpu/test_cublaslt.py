"""FullyConnected with its bias in one call of cuBLASLt, on the pretend device, and the reference behind it."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterator
from ctypes import POINTER, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.compute import highest_level
from opbox_ops.cuda import cublas, cublaslt
from opbox_ops.cuda.cublaslt import CONSTANTS, SIGNATURES, BiasedProduct, HeuristicResult, MatmulAlgorithm, planned
from opbox_protocol.errors import MXNetError, QuotaError
from opbox_service.executor import invoke

from .compiler import _includes, shared_library
from .replays import replayed_and_eager
from .spy import watched

TYPES = [np.dtype("float32"), np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
SHAPES = ((4, 3, 5), (7, 15), (7,))
ATTRS = {"num_hidden": 7}


@pytest.fixture(autouse=True)
def anew(gpu: Any) -> Iterator[None]:
    """No algorithm was asked for before, and no handle made."""
    for cached in (cublaslt._planned, cublaslt._handle, cublaslt._library):
        cached.cache_clear()
    yield
    for cached in (cublaslt._planned, cublaslt._handle, cublaslt._library):
        cached.cache_clear()


def numbers(dtype: Any, shapes: Any = SHAPES) -> list[Any]:
    """Whole numbers, whose sums single precision has exactly and half does not."""
    rng = np.random.default_rng(0)
    return [rng.integers(-30, 30, shape).astype(dtype) for shape in shapes]


def computed(arrays: list[Any], attrs: dict[str, Any] = ATTRS, device: str = "gpu:0") -> tuple[Any, Any]:
    """FullyConnected's output by a compute that is chosen anew, and what the device did."""
    backend = backend_for(device)
    calls: Any = importlib.import_module("opbox_service.executor.invoke")
    calls._forms.clear()
    calls._calls.clear()
    inputs, random = [backend.put(array) for array in arrays], backend.random(0)
    with watched() as watch:
        (out,) = invoke("FullyConnected", attrs, inputs, backend=backend, random=random)
    return backend.get(out), watch


def agree(arrays: list[Any], attrs: dict[str, Any] = ATTRS) -> Any:
    """The device's values are the CPU's to the last bit; what the device did."""
    (expected, _), (got, watch) = computed(arrays, attrs, "cpu"), computed(arrays, attrs)
    np.testing.assert_array_equal(got.astype("f"), expected.astype("f"))
    return watch


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("flatten", [True, False])
def test_the_bias_is_added_by_the_product(dtype: Any, flatten: bool) -> None:
    shapes = SHAPES if flatten else (SHAPES[0], (7, 5), (7,))
    watch = agree(numbers(dtype, shapes), {**ATTRS, "flatten": flatten})
    assert watch.calls["lt product"] == watch.calls["product"] == 1
    assert not watch.calls["launch"]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_and_infinity_stay(dtype: Any) -> None:
    data, weight, bias = numbers(dtype, ((3, 4), (2, 4), (2,)))
    data[0, 0], data[1, 0], bias[1], weight[:, 0] = np.nan, np.inf, np.nan, 1
    got, watch = computed([data, weight, bias], {"num_hidden": 2})
    assert watch.calls["lt product"] == 1
    assert np.isnan(got.astype("f")).tolist() == [[True, True], [False, True], [False, True]]
    assert np.isposinf(got.astype("f")[1, 0])


# -- where it does not compute ----------------------------------------------------------------------------------------


def test_what_it_does_not_take_goes_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [
        (numbers("float64"), ATTRS),
        (numbers("float32")[:2], {**ATTRS, "no_bias": True}),
        (numbers("float32", ((0, 15), (7, 15), (7,))), ATTRS),
    ]
    for arrays, attrs in refused:
        assert not agree(arrays, attrs).calls["lt product"]
    assert agree(numbers("float32")).calls["lt product"] == 1
    for name, value in (("OPBOX_DISABLE", "cublaslt"), ("OPBOX_COMPUTE_LEVEL", "reference")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            highest_level.cache_clear()
            for dtype in TYPES:
                watch = agree(numbers(dtype))
                assert not watch.calls["lt product"]
                assert watch.calls["product"] == 1
                assert watch.calls["launch"] == (1 if dtype == np.float32 else 3)
        highest_level.cache_clear()


def test_a_problem_without_an_algorithm_goes_to_the_reference(gpu: Any) -> None:
    gpu.fail_next("cublasLtMatmulAlgoGetHeuristic", gpu.INVALID_VALUE)
    for _ in range(2):
        watch = agree(numbers("float32"))
        assert not watch.calls["lt product"]
        assert watch.calls["product"] == 1
    assert not watch.calls["lt heuristic"], "the answer is kept"


def test_a_library_that_does_not_start_is_said(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    gpu.fail_next("cublasLtCreate", gpu.INVALID_VALUE)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not agree(numbers("float32")).calls["lt product"]
    assert caplog.messages == [
        "gpu:0: biases are added behind their products: cuBLASLt refused a call: cublasLtCreate answered 14"
    ]


def test_a_missing_library_is_said_once(no_libraries: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not agree(numbers("float32")).calls["lt product"]
    assert caplog.messages == [
        "gpu: biases are added behind their products, as there is no cuBLASLt (libcublasLt.so.none: not found by "
        "cuda-pathfinder, the system's loader, in NVIDIA's wheels, or below CUDA_PATH)"
    ]


def test_a_refused_call_is_an_error(gpu: Any) -> None:
    computed(numbers("float32"))
    gpu.fail_next("cublasLtMatmul", gpu.INVALID_VALUE)
    with pytest.raises(MXNetError, match="cuBLASLt refused a call: cublasLtMatmul answered 14"):
        computed(numbers("float32"))


# -- arrays and memory ------------------------------------------------------------------------------------------------


def test_arrays_may_lie_at_odd_addresses(cupy: Any) -> None:
    backend, arrays = backend_for("gpu:0"), numbers("float32")
    expected, _ = computed(arrays)

    def odd(array: Any) -> Any:
        place = cupy.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
        place[...] = cupy.asarray(array)
        return place

    inputs, out = [odd(array) for array in arrays], odd(np.zeros_like(expected))
    with watched() as watch:
        invoke("FullyConnected", ATTRS, inputs, outputs=[out], backend=backend, random=backend.random(0))
    assert watch.calls["lt product"] == 1
    np.testing.assert_array_equal(backend.get(out), expected)


def test_a_problem_is_asked_about_once() -> None:
    for count in (2, 0):
        with watched() as watch:
            assert planned(BiasedProduct.of("float32", 8, 16, 32)) is not None
        assert watch.calls["lt heuristic"] == count
        assert not watch.refused


def test_a_short_quota_means_a_smaller_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_for("gpu:0")
    data, weight, bias = (backend.put(array) for array in numbers("float32", ((2048, 8), (1024, 8), (1024,))))
    out = backend.empty((2048, 1024), "float32")
    product = planned(BiasedProduct.of("float32", 2048, 1024, 8))
    assert product is not None
    best, smallest = product.algorithms
    assert smallest.workspaceSize <= cublas.MIN_WORKSPACE_BYTES < best.workspaceSize

    def admit(nbytes: int, wait: bool = False) -> None:
        if nbytes > cublas.MIN_WORKSPACE_BYTES:
            raise QuotaError("no room")

    stream = backend.xp.cuda.Stream(non_blocking=True)
    cublas.add_workspace(stream.ptr, admit)
    try:
        with stream:
            product.bind(data, weight, bias, out)()
    finally:
        cublas.drop_workspace(stream.ptr)
    expected = backend.get(data) @ backend.get(weight).T + backend.get(bias)
    np.testing.assert_array_equal(backend.get(out), expected)


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_for_who_asks(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_ALLOW_TF32", str(int(allowed)))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype("f") for shape in ((4, 64), (5, 64), (5,))]
    got, watch = computed(arrays, {"num_hidden": 5})
    assert watch.calls["lt product"] == 1
    error = np.abs(got - (arrays[0].astype("d") @ arrays[1].T.astype("d") + arrays[2])).max()
    # Sums of 64 products: single precision has 24 bits, TF32 has 11.
    assert (error > 1e-3) == allowed
    assert (error < 1e-5) == (not allowed)


def perceptron() -> Any:
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=6, name="one")
    x = mx.sym.FullyConnected(mx.sym.Activation(x, act_type="relu"), num_hidden=3, name="two")
    return mx.sym.MakeLoss(mx.sym.sum(x)), {"data": (4, 2, 5)}


@pytest.mark.parametrize("req", ["write", "add"])
def test_a_captured_plan_has_the_eager_numbers(req: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, eager = replayed_and_eager(perceptron, req, monkeypatch)
    assert replayed.calls["lt product"] == 0
    assert eager.calls["lt product"] == 2


def test_descriptions_go_with_the_plan() -> None:
    library: Any = importlib.import_module("pretend_gpu.libraries.cublaslt_library")
    backend = backend_for("gpu:0")
    arrays = [backend.put(array) for array in numbers("float32")]
    product = planned(BiasedProduct.of("float32", 4, 7, 15))
    assert product is not None
    before = set(library._objects)
    run = product.bind(*arrays, backend.empty((4, 7), "float32"))
    assert len(set(library._objects) - before) == 4
    del run
    assert set(library._objects) == before


# -- NVIDIA's header --------------------------------------------------------------------------------------------------

_PROTOTYPE = re.compile(r"cublasStatus_t\s+CUBLASWINAPI\s+(cublasLt\w+)\s*\(([^()]*)\)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SCALARS = {"size_t": c_size_t, "uint64_t": c_uint64, "int64_t": c_int64}
_POINTED = {
    "int": POINTER(c_int),
    "void": c_void_p,
    "cublasLtMatmulAlgo_t": POINTER(MatmulAlgorithm),
    "cublasLtMatmulHeuristicResult_t": POINTER(HeuristicResult),
}
_OBJECTS = re.compile(r"cublasLt(Handle|MatmulDesc|MatrixLayout|MatmulPreference)_t|cudaStream_t")


def include() -> Path | None:
    """The folder of cublasLt.h that NVIDIA's wheels have brought."""
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else spec.submodule_search_locations or []
    folders = [folder for place in places for part in ("cu13", "cublas") if (folder := Path(place, part, "include"))]
    return next((folder for folder in folders if (folder / "cublasLt.h").exists()), None)


def argument(declared: str) -> Any:
    """The ctypes type of a parameter's declaration."""
    name = re.sub(r"\bconst\b", "", declared)
    pointers = name.count("*") + name.count("[")
    [kind, *_] = re.findall(r"\w+", name)
    if _OBJECTS.fullmatch(kind):
        return POINTER(c_void_p) if pointers else c_void_p
    return _POINTED[kind] if pointers else _SCALARS.get(kind, c_int)  # the rest are enumerations


needs_header = pytest.mark.skipif(include() is None, reason="needs the header of nvidia-cublas")


@needs_header
def test_the_binding_has_nvidias_signatures() -> None:
    folder = include()
    assert folder is not None
    text = _COMMENT.sub(" ", (folder / "cublasLt.h").read_text("utf-8"))
    declared = {
        name: tuple(argument(part) for part in parameters.split(","))
        for name, parameters in _PROTOTYPE.findall(text)
        if name in SIGNATURES
    }
    assert declared == SIGNATURES


@needs_header
def test_the_binding_has_nvidias_numbers() -> None:
    asserted = [f"int({name}) == {value}" for name, value in CONSTANTS.items()]
    asserted += [f"offsetof(cublasLtMatmulHeuristicResult_t, {name}) == {getattr(HeuristicResult, name).offset}"
                 for name, _ in HeuristicResult._fields_]  # fmt: skip
    asserted += ["sizeof(cublasLtMatmulHeuristicResult_t) == 96", "int(CUDA_R_32F) == 0 && int(CUDA_R_16F) == 2"]
    asserted += ["int(CUDA_R_16BF) == 14"]
    lines = "".join(f'static_assert({line}, "cublasLt.h");\n' for line in asserted)
    assert shared_library(f"#include <cstddef>\n#include <cublasLt.h>\n{lines}", (f"-I{include()}", *_includes()))
