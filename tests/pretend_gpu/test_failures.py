"""A device that has no memory left, or fails: what users read, and what goes on."""

from __future__ import annotations

import importlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for, failure
from opbox_ops.cuda import cublas, shared_libraries
from opbox_protocol.errors import LimitError, MXNetError, UnsupportedError, WorkerDiedError
from opbox_service.executor import invoke
from tests.contract.live import Live
from tests.switches import switch_off

from .compiler import cuda_headers


@pytest.fixture(autouse=True)
def _found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "_lost", [])


def test_too_little_memory_says_what_holds_the_rest(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    array = backend.put(np.arange(1 << 20, dtype="f"))
    with pytest.raises(LimitError) as raised:
        backend.empty((1 << 40,), "uint8")
    assert raised.value.message.startswith("gpu:0 has not enough memory: 1,099,511,627,776 bytes asked for, ")
    assert "in arrays of this worker" in raised.value.message
    # Nothing is lost.
    assert float(backend.get(array[-1:])[0]) == (1 << 20) - 1


def test_too_little_memory_in_an_operator_names_it(gpu: Any, cupy: Any) -> None:
    backend = backend_for("gpu:0")
    x = backend.put(np.arange(1 << 22, dtype="f")[::-1].copy())
    random = backend.random(0)
    backend.give_back()
    real = gpu.BYTES
    gpu.BYTES = gpu.state.used[0]
    try:
        with pytest.raises(MXNetError, match=r"^sort: gpu:0 has not enough memory: [\d,]+ bytes asked for"):
            invoke("sort", {}, [x], backend=backend, random=random, outputs=[x])
    finally:
        gpu.BYTES = real
        gpu.reset()
    (sorted_x,) = invoke("sort", {}, [x], backend=backend, random=backend.random(0))
    assert float(backend.get(sorted_x)[-1]) == (1 << 22) - 1


def test_memory_goes_back_to_the_device(gpu: Any, cupy: Any) -> None:
    backend = backend_for("gpu:0")
    backend.give_back()
    before = gpu.state.used[0]
    nbytes = before + (1 << 24)  # more than could be free in what the pool has, beside arrays that are still used
    array = backend.empty((nbytes,), "u1")
    assert gpu.state.used[0] >= before + nbytes
    del array
    backend.give_back()
    assert gpu.state.used[0] == before


def test_a_sticky_error_in_an_operator(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    x = backend.put(np.ones(4, "f"))
    gpu.fail_next("launchKernel", gpu.ILLEGAL_ADDRESS)
    with pytest.raises(WorkerDiedError, match=r"^exp: the GPU failed, CUDA error 700: a kernel accessed memory"):
        invoke("exp", {}, [x], backend=backend, random=backend.random(0))
    assert failure.lost() is not None


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(9, ""), (701, r" \(a kernel needs more registers than the GPU has for a block of so many")],
)
def test_another_error_of_the_device_is_no_end(gpu: Any, status: int, sentence: str) -> None:
    backend = backend_for("gpu:0")
    x = backend.put(np.ones(4, "f"))
    gpu.fail_next("launchKernel", status)
    with pytest.raises(MXNetError, match=rf"^exp: the GPU refused a call: CUDA error {status}{sentence}"):
        invoke("exp", {}, [x], backend=backend, random=backend.random(0))
    assert failure.lost() is None
    (y,) = invoke("exp", {}, [x], backend=backend, random=backend.random(0))
    np.testing.assert_allclose(backend.get(y), np.e, rtol=1e-6)


@pytest.mark.parametrize("file", ["driver_types.h", "cuda.h"])
def test_the_errors_that_end_a_process_are_those_of_cuda_s_headers(file: str) -> None:
    """The runtime's header and the driver's: what they say of each number, and that the two agree."""
    text = (Path(cuda_headers()) / file).read_text("utf-8")
    ends = set()
    for comment, name, number in re.findall(r"/\*\*((?:(?!\*/).)*)\*/\s*(\w+)\s*=\s*(\d+)", text, re.DOTALL):
        words = re.sub(r"[\s*]+", " ", comment)
        corrupted = name.upper().endswith("UNCORRECTABLE")  # of which it says no more than that
        if "the process must be terminated and relaunched" in words or (corrupted and "error was detected" in words):
            ends.add(int(number))
    if file == "cuda.h":
        ends.add(710)  # whose text there says the same in other words
    assert ends == set(failure._LOST)


@pytest.mark.parametrize("op", ["dot", "FullyConnected", "Convolution"])
def test_a_library_that_is_not_installed(
    gpu: Any, op: str, no_libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the step is bound or runs when it is first wanted."""
    monkeypatch.setattr(cublas, "_library", cublas._library.__wrapped__)
    monkeypatch.setattr(cublas, "_handles", {})
    switch_off(monkeypatch, "cublaslt")
    matrix, image = mx.nd.ones((2, 2), mx.gpu(0)), mx.nd.ones((1, 2, 2, 2), mx.gpu(0))
    calls = {
        "dot": lambda: mx.nd.dot(matrix, matrix),
        "FullyConnected": lambda: mx.nd.FullyConnected(matrix, matrix, num_hidden=2, no_bias=True),
        "Convolution": lambda: mx.nd.Convolution(
            image, image, kernel=(2, 2), num_filter=1, no_bias=True, cudnn_off=True
        ),
    }
    sentence = (
        r"a library of CUDA is missing \(libcublas.so.none: not found by cuda-pathfinder, .* below CUDA_PATH\): "
        r"install all of them \(pip"
    )
    with pytest.raises(UnsupportedError, match=sentence) as raised:
        calls[op]().asnumpy()
    assert raised.value.status == 501
    assert "\n" not in raised.value.message


def test_products_without_cuda_pathfinder(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's loader finds the library by its name."""
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    file = pathfinder.load_nvidia_dynamic_lib("cublas").abs_path
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.setattr(shared_libraries, "_files", lambda name: [file])
    monkeypatch.setattr(cublas, "_library", cublas._library.__wrapped__)
    monkeypatch.setattr(cublas, "_handles", {})
    switch_off(monkeypatch, "cublaslt")
    x = np.arange(12, dtype="f").reshape(3, 4)
    factors = [mx.nd.array(array, mx.gpu(0)) for array in (x, x.T.copy())]
    np.testing.assert_array_equal(mx.nd.dot(*factors).asnumpy(), x @ x.T)


def test_a_library_that_cupy_is_linked_to_is_not_installed(gpu: Any) -> None:
    error = ImportError("libcusolver.so.12: cannot open shared object file: No such file or directory")
    sentence = (
        "a library of CUDA is missing (libcusolver.so.12: cannot open shared object file: No such file or directory)"
    )
    assert str(failure.device_error(error)).startswith(sentence)
    headers = failure.device_error(RuntimeError("Failed to find CUDA headers. Please install CUDA toolkit headers"))
    assert isinstance(headers, UnsupportedError)
    assert headers.message.startswith("CUDA's headers are missing")
    assert failure.device_error(ImportError("cannot import name 'x' from 'users_own'")) is None


# -- through HTTP -----------------------------------------------------------------------------------------------------


def put(id: int) -> dict[str, Any]:
    return {"do": "put", "id": id, "tensor": "x"}


def call(op: str, result: int) -> dict[str, Any]:
    return {"do": "invoke", "op": op, "inputs": [1], "outputs": [result]}


def test_a_launch_without_registers_ends_no_session(tmp_path: Path) -> None:
    """CUDA's error 701 is no end of the device's context: the worker goes on, with all its sessions."""
    server = Live("process", tmp_path, OPBOX_DEVICES='["gpu:0"]', PRETEND_GPU_FAULT="cupy_sum=701")
    try:
        workers = server.workers()
        sessions = [server.session(device="gpu:0") for _ in range(2)]
        x = np.full((2, 2), 0.5, "f")
        for session in sessions:
            assert session.run(put(1), x=x).status == 200
        refusal = sessions[0].run(call("_linalg_sumlogdiag", 3))
        assert (refusal.status, refusal.header["type"]) == (500, "MXNetError")
        assert "CUDA error 701 (a kernel needs more registers than the GPU has" in refusal.error
        for session in sessions:
            answer = session.run(call("exp", 2), {"do": "fetch", "id": 2, "as": "y"})
            assert answer.status == 200
            np.testing.assert_allclose(answer.tensors["y"], np.exp(x), rtol=1e-6)
        assert server.workers() == workers
    finally:
        assert server.stop() == 0


def test_a_lost_device_ends_its_worker_and_no_other(tmp_path: Path) -> None:
    settings = {"OPBOX_WORKERS": "2", "OPBOX_DEVICES": '["gpu:0", "gpu:1"]', "PRETEND_GPU_FAULT": "cupy_sum"}
    server = Live("process", tmp_path, **settings)
    try:
        # Workers take turns.
        sessions = [server.session(device=device) for device in ("gpu:0", "gpu:1", "gpu:1", "gpu:0")]
        x = np.full((2, 2), 0.5, "f")
        for session in sessions:
            assert session.run(put(1), call("exp", 2), x=x).status == 200
        refusal = sessions[0].run(call("_linalg_sumlogdiag", 3))  # whose sum is CuPy's
        assert (refusal.status, refusal.header["type"]) == (503, "WorkerDiedError")
        assert "_linalg_sumlogdiag: the GPU failed, CUDA error 700: a kernel accessed memory" in refusal.error
        lost = time.monotonic()
        fetch = {"do": "fetch", "id": 2, "as": "y"}
        while (first := sessions[0].run(fetch)).status == 503:  # it is about to end
            assert time.monotonic() < lost + 30
        gone = [first, *[session.run(fetch) for session in sessions[1:]]]
        assert [answer.status for answer in gone] == [410, 200, 410, 200]
        assert "ended (its GPU failed); make a new session" in gone[0].error
        np.testing.assert_allclose(gone[1].tensors["y"], np.exp(x), rtol=1e-6)
        while (
            len(server.workers()) < 2 or server.session(device="gpu:1").run(put(1), call("exp", 2), x=x).status != 200
        ):
            assert time.monotonic() < lost + 30, "no worker has come up"
            time.sleep(0.05)
    finally:
        server.stop()


def test_too_little_memory_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    settings = {"PRETEND_GPU_BYTES": str(8 << 20), "OPBOX_MAX_SESSION_BYTES": str(256 << 20)}
    server = Live("process", tmp_path, OPBOX_DEVICES='["gpu:0"]', **settings)
    try:
        session = server.session(device="gpu:0")
        x = np.arange(1 << 18, dtype="f")
        assert session.run(put(1), x=x).status == 200
        zeros = {"do": "invoke", "op": "_zeros", "attrs": {"shape": "(10, 1024, 256)"}, "inputs": [], "outputs": [2]}
        refusal = session.run(zeros)
        assert refusal.status == 429, "no session may have what the device has not"
        assert "expected at most 6291456 bytes" in refusal.error
        # The device gives each 512 bytes: what is beyond an array's own is in no quota.
        refusal = session.run({"do": "zeros", "ids": list(range(4, 20_000)), "shape": [1], "dtype": "float32"})
        assert refusal.status == 413
        assert "gpu:0 has not enough memory: " in refusal.error
        free = {"do": "free", "ids": list(range(4, 8000))}
        answer = session.run(free, call("exp", 3), {"do": "fetch", "id": 1, "as": "y"})
        assert answer.status == 200
        assert answer.tensors["y"][-1] == x[-1]
    finally:
        server.stop()
