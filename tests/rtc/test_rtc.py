"""`mx.rtc` in both forms, in this process and through a server."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from opbox_protocol import errors
from opbox_service.engine import Engine
from opbox_service.settings import Settings

from .conftest import RUN_ONLY

pytestmark = pytest.mark.compiler

SOFTMAX = """
int i = threadIdx.x + blockIdx.x*blockDim.x;
float max_x = x[i*x_dims[1]];
for (int j = 1; j < x_dims[1]; ++j) {
    if (max_x < x[i*x_dims[1]+j]) {
        max_x = x[i*x_dims[1]+j];
    }
}
float sum = 0.0f;
for (int j = 0; j < x_dims[1]; ++j) {
    sum += expf(x[i*x_dims[1]+j]-max_x);
}
for (int j = 0; j < x_dims[1]; ++j) {
    y[i*x_dims[1]+j] = expf(x[i*x_dims[1]+j]-max_x)/sum;
}
"""
AXPY = """
template<typename DType>
__global__ void axpy(const DType *x, DType *y, DType alpha) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    y[i] += alpha * x[i];
}
"""
DOUBLE = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= N; }'


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    y = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(y / y.sum(axis=1, keepdims=True))


def test_a_body_is_compiled_for_its_arrays_and_again_for_others(mx: ModuleType) -> None:
    values = np.random.default_rng(0).normal(size=(100, 10)).astype(np.float32)
    x, y = mx.nd.array(values), mx.nd.zeros((100, 10))
    kernel = mx.rtc("softmax", [("x", x)], [("y", y)], SOFTMAX)
    kernel.push([x], [y], (1, 1, 1), (100, 1, 1))
    np.testing.assert_allclose(y.asnumpy(), softmax(values), rtol=1e-5)
    fewer = mx.nd.array(values[:, :7])
    z = mx.nd.zeros((100, 7))
    kernel.push([fewer], [z], (10, 1, 1), (10, 1, 1))
    np.testing.assert_allclose(z.asnumpy(), softmax(values[:, :7]), rtol=1e-5)
    assert isinstance(kernel, mx.rtc.Rtc)


def test_a_wrong_index_names_the_kernel_the_line_the_thread_and_the_users_line(mx: ModuleType) -> None:
    x, y = mx.nd.zeros((100, 10)), mx.nd.zeros((100, 10))
    kernel = mx.rtc("softmax", [("x", x)], [("y", y)], SOFTMAX)
    kernel.push([x], [y], (1, 1, 1), (101, 1, 1))
    with pytest.raises(mx.MXNetError) as caught:
        mx.nd.waitall()
    assert type(caught.value).__name__ == "UserCodeError"
    assert str(caught.value).startswith(
        "kernel 'softmax', line 3: index 1000 is outside array 'x' of 1000 elements, in thread (100, 0, 0) of block "
        "(0, 0, 0) (test_rtc.py:"
    )


def test_a_body_that_does_not_compile_is_told_by_its_own_lines(mx: ModuleType) -> None:
    x = mx.nd.zeros((3,))
    mx.rtc("broken", [], [("x", x)], "int i = threadIdx.x;\nx[i] = y;")
    with pytest.raises(mx.MXNetError, match=r"kernel 'broken' does not compile: broken.cu:2:\d+: error: .*y"):
        mx.nd.waitall()
    assert x.asnumpy().tolist() == [0, 0, 0]


@pytest.mark.parametrize(("dtype", "c_type"), [("float32", "float"), ("float64", "double")])
def test_a_template_instance_of_a_module(mx: ModuleType, dtype: str, c_type: str) -> None:
    x, y = mx.nd.ones((10,), dtype=dtype), mx.nd.ones((10,), dtype=dtype)
    module = mx.rtc.CudaModule(AXPY, exports=["axpy<float>", "axpy<double>"])
    kernel = module.get_kernel(f"axpy<{c_type}>", f"const {c_type} *x, {c_type} *y, {c_type} alpha")
    kernel.launch([x, y, 3.0], mx.cpu(), (2, 1, 1), (5, 1, 1))
    assert y.asnumpy().tolist() == [4] * 10


def test_options_reach_the_compiler_and_paths_do_not(mx: ModuleType) -> None:
    x = mx.nd.ones((4,))
    options = ["-DN=6", "-I/usr/local/cuda/include"]
    mx.rtc.CudaModule(DOUBLE, options).get_kernel("twice", "float *x").launch([x], mx.cpu(), (1, 1, 1), (4, 1, 1))
    assert x.asnumpy().tolist() == [6] * 4
    bad = mx.rtc.CudaModule(DOUBLE, ["-I/etc"]).get_kernel("twice", "float *x")
    bad.launch([x], mx.cpu(), (1, 1, 1), (4, 1, 1))
    with pytest.raises(mx.MXNetError, match="option '-I/etc': expected -DNAME"):
        mx.nd.waitall()


def test_included_files_are_not_told(mx: ModuleType) -> None:
    x = mx.nd.ones((4,))
    source = '#include "/etc/passwd"\nextern "C" __global__ void f(float *x) {}'
    mx.rtc.CudaModule(source).get_kernel("f", "float *x").launch([x], mx.cpu(), (1, 1, 1), (4, 1, 1))
    with pytest.raises(mx.MXNetError) as caught:
        mx.nd.waitall()
    assert "root:" not in str(caught.value) + str(caught.value.detail)


def test_half(mx: ModuleType) -> None:
    values = np.random.default_rng(1).normal(size=64).astype(np.float16)
    x, y = mx.nd.array(values, dtype="float16"), mx.nd.zeros((64,), dtype="float16")
    body = "int i = threadIdx.x; y[i] = x[i] * x[i] + __float2half(0.5f);"
    mx.rtc("square", [("x", x)], [("y", y)], body).push([x], [y], (1, 1, 1), (64, 1, 1))
    np.testing.assert_array_equal(y.asnumpy(), values * values + np.float16(0.5))


def test_arguments_are_checked_before_the_launch(mx: ModuleType) -> None:
    x = mx.nd.zeros((4,))
    kernel = mx.rtc.CudaModule(AXPY).get_kernel("axpy<float>", "const float *, float *, float")
    with pytest.raises(mx.MXNetError, match="expected 3 arguments, got 2"):
        kernel.launch([x, x], mx.cpu(), (1, 1, 1), (4, 1, 1))
    with pytest.raises(mx.MXNetError, match=r"argument 1: expected an NDArray, got 1\.0"):
        kernel.launch([x, 1.0, 2.0], mx.cpu(), (1, 1, 1), (4, 1, 1))
    with pytest.raises(mx.MXNetError, match="argument 2: expected a number, got NDArray"):
        kernel.launch([x, x, x], mx.cpu(), (1, 1, 1), (4, 1, 1))
    with pytest.raises(ValueError, match="grid: expected three sizes"):
        kernel.launch([x, x, 2.0], mx.cpu(), (1, 1), (4, 1, 1))
    kernel.launch([x, x.astype("float64"), 2.0], mx.cpu(), (1, 1, 1), (4, 1, 1))
    with pytest.raises(mx.MXNetError, match="argument 'arg1': expected float32, got float64"):
        mx.nd.waitall()


@pytest.mark.parametrize(
    ("signature", "error"), [("float x y", ValueError), ("const *x", ValueError), ("half *x", TypeError)]
)
def test_a_signature_that_mxnet_refuses_too(signature: str, error: type[Exception]) -> None:
    import opbox

    with pytest.raises(error):
        opbox.rtc.CudaModule(AXPY).get_kernel("axpy<float>", signature)


def test_arrays_of_another_number_or_device(mx: ModuleType) -> None:
    x = mx.nd.zeros((4,))
    kernel = mx.rtc("f", [("x", x)], [("y", x)], "")
    with pytest.raises(mx.MXNetError, match=r"inputs: expected 1 arrays \(x\), got 2"):
        kernel.push([x, x], [x], (1, 1, 1), (1, 1, 1))
    with pytest.raises(mx.MXNetError, match=r"expected arrays on gpu\(0\), got one on cpu\(0\)"):
        mx.rtc.CudaModule(AXPY).get_kernel("f", "float *x").launch([x], mx.gpu(0), (1, 1, 1), (1, 1, 1))
    with pytest.raises(mx.MXNetError, match="array names that differ, got x, x"):
        mx.rtc("f", [("x", x)], [("x", x)], "")


def test_a_freed_kernel_is_gone_from_the_session(mx: ModuleType) -> None:
    x = mx.nd.zeros((4,))
    x.wait_to_read()
    session = mx.cpu().session
    path = f"/v1/sessions/{session.id}"
    before = mx.connection.transport().call("GET", path).header["objects"]
    kernel = mx.rtc("f", [("x", x)], [("y", x)], "")
    mx.nd.waitall()
    assert mx.connection.transport().call("GET", path).header["objects"] == before + 1
    del kernel
    gc.collect()
    mx.nd.waitall()
    assert mx.connection.transport().call("GET", path).header["objects"] == before


def test_without_the_scope_nothing_ran(server: str) -> None:
    import opbox as mx

    mx.connect(server, RUN_ONLY)
    try:
        x = mx.nd.ones((4,))
        x.wait_to_read()
        x[:] = 2
        kernel = mx.rtc.CudaModule(DOUBLE, "-DN=2").get_kernel("twice", "float *x")
        kernel.launch([x], mx.cpu(), (1, 1, 1), (4, 1, 1))
        with pytest.raises(mx.MXNetError, match=r"the scope 'upload-cuda', got one with run.*nothing ran") as caught:
            mx.nd.waitall()
        assert caught.value.status == 403
    finally:
        mx.connection.use(None)


COMPILE = {"do": "compile", "id": 2, "kernel": "twice", "source": DOUBLE, "signature": "float *x", "options": ["-DN=2"]}
PUT = {"do": "put", "id": 1, "tensor": "x"}
LAUNCH = {"do": "launch", "kernel": 2, "args": [{"array": 1}], "grid": [1, 1, 1], "block": [4, 1, 1]}
FETCH = {"do": "fetch", "id": 1, "as": "x"}


class Wire:
    """A session by its commands."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.id = engine.call("POST", "/v1/sessions", {})[0]["id"]

    def __call__(self, *commands: dict[str, Any], **more: Any) -> dict[str, Any]:
        header = {"commands": list(commands)}
        tensors = {"x": np.ones(4, np.float32)}
        return self.engine.call("POST", f"/v1/sessions/{self.id}/commands", header, tensors, **more)[1]


@pytest.fixture
def wire() -> Any:
    engine = Engine(Settings())
    yield Wire(engine)
    engine.close()


def test_commands_of_a_kernel(wire: Wire) -> None:
    assert wire(PUT, COMPILE, LAUNCH, LAUNCH, FETCH)["x"].tolist() == [4] * 4


def test_a_batch_without_the_scope_is_refused_whole(wire: Wire) -> None:
    with pytest.raises(errors.ForbiddenError, match="command 1 \\(compile\\)"):
        wire(PUT, COMPILE, scopes=frozenset({"run"}))
    with pytest.raises(errors.NotFoundError, match="array 1: expected one of this session, got nothing"):
        wire(FETCH)


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        ([LAUNCH], "kernel 2: expected one compiled in this session, got nothing"),
        ([PUT, {**LAUNCH, "kernel": 1}], "kernel 1: expected one compiled in this session, got an array"),
        ([COMPILE, {**FETCH, "id": 2}], "array 2: expected one of this session, got a kernel"),
        ([{**COMPILE, "body": "x"}], "expected either a source, or a body"),
        ([PUT, {**COMPILE, "id": 1}], "id 1 is taken"),
        ([{**COMPILE, "source": "x" * ((1 << 20) + 1)}], "a source of at most 1048576 characters"),
        ([{**COMPILE, "options": ["-isystem", "/"]}], "option '-isystem'"),
        ([PUT, COMPILE, {**LAUNCH, "grid": [1, 0, 1]}], "grid.1: expected 1 or more, got 0"),
        ([PUT, COMPILE, {**LAUNCH, "grid": [1, 70000, 1]}], "grid: expected at most"),
        ([PUT, COMPILE, {**LAUNCH, "args": [{"value": 3}]}], "argument 'x': expected an array, got 3"),
    ],
)
def test_commands_that_do_not_fit(wire: Wire, commands: list[Any], says: str) -> None:
    with pytest.raises(errors.MXNetError) as caught:
        wire(*commands)
    assert says in str(caught.value)


def test_what_compiled_once_is_not_compiled_again(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    wire(PUT, COMPILE)
    monkeypatch.setenv("PATH", "")
    assert wire({**COMPILE, "id": 3}, {**LAUNCH, "kernel": 3}, FETCH)["x"].tolist() == [2] * 4
