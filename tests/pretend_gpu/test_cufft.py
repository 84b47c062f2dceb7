"""Fourier transforms by cuFFT on the pretend device: planned memory, recorded, and left to CuPy where it is absent."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.cuda import cufft
from opbox_protocol.errors import MXNetError
from opbox_service.executor import bind, invoke
from opbox_service.graph.json import load
from tests.switches import switch

from .spy import watched

SHAPES = [(1,), (3, 5), (2, 3, 17), (4, 64), (1, 1000)]


@pytest.fixture(autouse=True)
def anew(gpu: Any) -> Iterator[None]:
    """No plan was made before."""
    for cached in (cufft._planned, cufft._library):
        cached.cache_clear()
    yield
    for cached in (cufft._planned, cufft._library):
        cached.cache_clear()


def computed(name: str, array: Any) -> tuple[Any, Any]:
    """An operator's output by a compute that is chosen anew, and what the device did."""
    backend = backend_for("gpu:0")
    calls: Any = importlib.import_module("opbox_service.executor.invoke")
    calls._forms.clear()
    calls._calls.clear()
    data, random = backend.put(array), backend.random(0)
    with watched() as watch:
        (out,) = invoke(name, {}, [data], backend=backend, random=random)
    return backend.get(out), watch


def numbers(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype("f")


def paired(array: Any) -> Any:
    """Complex numbers as pairs on the last axis."""
    return np.ascontiguousarray(array, np.complex64).view(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_transforms_are_cuffts(shape: tuple[int, ...]) -> None:
    data = numbers(shape)
    pairs, watch = computed("_contrib_fft", data)
    np.testing.assert_allclose(pairs, paired(np.fft.fft(data.astype("d"))), rtol=1e-5, atol=1e-5)
    assert watch.calls["transform"] == 1
    assert not watch.calls["cufft"]  # CuPy's
    back, watch = computed("_contrib_ifft", pairs)
    np.testing.assert_allclose(back / shape[-1], data, rtol=1e-5, atol=1e-5)
    assert watch.calls["transform"] == 1


def executor_of(backend: Any, data: Any, head: Any) -> tuple[Any, Any]:
    """A transform and back, two plans for it, with the data's gradient."""
    symbol = mx.sym.contrib.ifft(mx.sym.contrib.fft(mx.sym.Variable("x")) * mx.sym.Variable("head"))
    symbol = mx.sym.MakeLoss(symbol)
    args = {"x": backend.put(data), "head": backend.put(head)}
    grads = {"x": backend.put(np.zeros_like(data))}
    executor = bind(
        load(symbol.tojson()),
        args=args,
        grads=grads,
        grad_req={"x": "write"},
        backend=backend,
        random=backend.random(0),
    )
    return executor, grads["x"]


def test_a_plan_with_transforms_is_recorded_and_has_the_eager_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    data, head = numbers((3, 6)), numbers((3, 12))
    results = []
    for setting in ("1", "0"):
        switch(monkeypatch, "cuda-graphs", on=setting == "1")
        backend = backend_for("gpu:0")
        executor, gradient = executor_of(backend, data, head)
        for _ in range(3):
            with watched() as watch:
                executor.forward(is_train=True)
                executor.backward()
        assert watch.calls["graphLaunch"] == 2 * int(setting)
        assert not watch.allocations
        results.append([backend.get(executor.outputs[0]), backend.get(gradient)])
    for replayed, eager in zip(*results, strict=True):
        np.testing.assert_array_equal(replayed, eager)
    product = np.fft.fft(data.astype("d")).view("d") * head
    expected = 6 * np.fft.ifft(product.view("D")).real
    np.testing.assert_allclose(results[0][0], expected, rtol=1e-4, atol=1e-4)


def test_plans_on_two_streams_use_one_of_cuffts(gpu: Any) -> None:
    sessions = [backend_for("gpu:0").for_session() for _ in range(2)]
    try:
        executors = []
        for k, backend in enumerate(sessions):
            with backend.scope():
                executors.append(executor_of(backend, numbers((3, 6)) + k, np.ones((3, 12), "f"))[0])
        for _ in range(2):
            for k, (backend, executor) in enumerate(zip(sessions, executors, strict=True)):
                with backend.scope():
                    executor.forward(is_train=False)
                    out = backend.get(executor.outputs[0])
                np.testing.assert_allclose(out, 6 * (numbers((3, 6)) + k), rtol=1e-5, atol=1e-5)
        assert cufft._planned.cache_info().currsize == 1
    finally:
        for backend in sessions:
            backend.close()


def test_an_output_at_an_odd_address_has_its_numbers(cupy: Any) -> None:
    backend = backend_for("gpu:0")
    padded, head = cupy.zeros(13, "f"), numbers((6,))
    executor = bind(
        load(mx.sym.contrib.ifft(mx.sym.Variable("x")).tojson()),
        args={"x": backend.put(numbers((12,)))},
        grads={"x": padded[1:]},
        grad_req={"x": "write"},
        backend=backend,
        random=backend.random(0),
    )
    executor.forward(is_train=True)
    executor.backward([backend.put(head)])
    np.testing.assert_allclose(padded.get()[1:], paired(np.fft.fft(head)), rtol=1e-5, atol=1e-5)


def test_without_the_library_cupy_transforms_and_the_log_says_so_once(
    no_libraries: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            pairs, watch = computed("_contrib_fft", numbers((3, 5)))
    assert watch.calls["cufft"] == 1
    np.testing.assert_allclose(pairs, paired(np.fft.fft(numbers((3, 5)))), rtol=1e-5, atol=1e-5)
    assert [record.getMessage() for record in caplog.records] == [
        "gpu: Fourier transforms are left to CuPy, as cuFFT was not found (libcufft.so.none: not found by "
        "cuda-pathfinder, the system's loader, in NVIDIA's wheels, or below CUDA_PATH)"
    ]


def test_what_it_has_no_plan_for_is_cupys(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    gpu.fail_next("cufftMakePlanMany", 2)
    with caplog.at_level(logging.WARNING):
        _, watch = computed("_contrib_fft", numbers((3, 5)))
    assert watch.calls["cufft"] == 1
    assert "rows of 5 are left to CuPy: cuFFT refused a call: cufftMakePlanMany answered" in caplog.text


def test_a_call_that_it_refuses_is_an_error_with_its_status(gpu: Any) -> None:
    gpu.fail_next("cufftExecC2C", 2)
    with pytest.raises(MXNetError, match="cuFFT refused a call: cufftExecC2C answered"):
        computed("_contrib_fft", numbers((3, 5)))
