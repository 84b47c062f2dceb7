"""CUDA source on the CPU: right values, and an error with line, thread and index for every wrong access."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.rtc import decorate, parse_signature
from opbox_ops.rtc.emulator import EmulatedKernel, EmulatedModule
from opbox_protocol.errors import BadRequestError, DTypeError, UnsupportedError, UserCodeError

pytestmark = pytest.mark.compiler

RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def build(cache: Path, source: str, name: str, signature: str, *options: str) -> EmulatedKernel:
    return EmulatedModule(source, options, cache).kernel(name, parse_signature(name, signature))


def old_form(cache: Path, name: str, inputs: dict[str, Any], outputs: dict[str, Any], body: str) -> EmulatedKernel:
    described = [[(n, a.shape, a.dtype) for n, a in arrays.items()] for arrays in (inputs, outputs)]
    source, arguments = decorate(name, *described, body)
    return EmulatedModule(source, cache=cache).kernel(name, arguments)


def test_softmax_forward_and_backward_in_the_old_form(cache: Path) -> None:
    x = RNG.normal(size=(100, 10)).astype(np.float32)
    label = RNG.integers(0, 10, 100).astype(np.float32)
    y, dx = np.empty_like(x), np.empty_like(x)
    forward = old_form(
        cache,
        "softmax",
        {"x": x},
        {"y": y},
        """int row = threadIdx.x + blockIdx.x * blockDim.x;
        const float *mine = x + row * x_dims[1];
        float top = mine[0], sum = 0;
        for (int j = 1; j < x_dims[1]; ++j) top = max(top, mine[j]);
        for (int j = 0; j < x_dims[1]; ++j) sum += expf(mine[j] - top);
        for (int j = 0; j < x_dims[1]; ++j) y[row * y_dims[1] + j] = expf(mine[j] - top) / sum;""",
    )
    forward.launch([x, y], (1, 1, 1), (100, 1, 1))
    want = np.exp(x - x.max(axis=1, keepdims=True))
    want /= want.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-5)
    backward = old_form(
        cache,
        "softmax_grad",
        {"y": y, "l": label},
        {"dx": dx},
        """int k = static_cast<int>(l[blockIdx.x]), at = blockIdx.x * dx_dims[1] + threadIdx.x;
        dx[at] = y[at] - (threadIdx.x == k ? 1.0f : 0.0f);""",
    )
    backward.launch([y, label, dx], (100, 1, 1), (10, 1, 1))
    want[np.arange(100), label.astype(int)] -= 1
    np.testing.assert_allclose(dx, want, rtol=1e-5, atol=1e-6)


REDUCE = """
template <typename T> __device__ T load(const T *p, int i) { return p[i]; }  // float *not_code;
extern "C" __global__ void reduce(const float *__restrict__ x, float *out, int n) {
  extern __shared__ float partial[];
  const float *mine = x + blockIdx.x * blockDim.x, *all = x;
  int t = threadIdx.x;
  partial[t] = mine - all + t < n ? load(mine, t) : 0;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (t < k) partial[t] += partial[t + k];
    __syncthreads();
  }
  if (t == 0) {
    atomicAdd(&out[0], partial[0]);
    atomicMax((int *)&out[1], __float_as_int(partial[0]));
  }
}
"""


def test_shared_memory_barriers_and_atomics(cache: Path) -> None:
    kernel = build(cache, REDUCE, "reduce", "const float *x, float *out, int n")
    x = RNG.random(1000).astype(np.float32)
    out = np.zeros(2, np.float32)
    kernel.launch([x, out, 1000], (8, 1, 1), (128, 1, 1), 512)
    blocks = np.pad(x, (0, 24)).reshape(8, 128).sum(axis=1)
    np.testing.assert_allclose(out, [x.sum(), blocks.max()], rtol=1e-5)


def test_dynamic_shared_memory_is_checked(cache: Path) -> None:
    kernel = build(cache, REDUCE, "reduce", "const float *x, float *out, int n")
    with pytest.raises(
        UserCodeError, match=r"line 7: index 64 is outside shared memory of 64 elements, in thread \(64"
    ):
        kernel.launch([np.zeros(1000, np.float32), np.zeros(2, np.float32), 1000], (8, 1, 1), (128, 1, 1), 256)


def test_three_dimensions_and_fixed_shared_arrays(cache: Path) -> None:
    source = """extern "C" __global__ void transpose(const double *in, double *out, int rows, int columns) {
      __shared__ double tile[4][5];
      int c = blockIdx.x * 4 + threadIdx.x, r = blockIdx.y * 4 + threadIdx.y;
      if (c < columns && r < rows) tile[threadIdx.y][threadIdx.x] = in[r * columns + c];
      __syncthreads();
      c = blockIdx.y * 4 + threadIdx.x; r = blockIdx.x * 4 + threadIdx.y;
      if (c < rows && r < columns) out[r * rows + c] = tile[threadIdx.x][threadIdx.y];
    }"""
    kernel = build(cache, source, "transpose", "const double *in, double *out, int rows, int columns")
    matrix, got = RNG.random((6, 10)), np.empty((10, 6))
    kernel.launch([matrix, got, 6, 10], (3, 2, 1), (4, 4, 1))
    np.testing.assert_array_equal(got, matrix.T)
    with pytest.raises(
        UserCodeError, match=r"line 4: index 4 is outside an array of 4 elements \(double ?\[4\]\[5\]\)"
    ):
        kernel.launch([matrix, got, 6, 10], (3, 2, 1), (4, 5, 1))


def test_a_template_instance_by_its_name(cache: Path) -> None:
    source = "template <class T> __global__ void axpy(const T *x, T *y, T a) { y[threadIdx.x] += a * x[threadIdx.x]; }"
    x, y = np.arange(4, dtype=np.float64), np.ones(4)
    build(cache, source, "axpy<double>", "const double *x, double *y, double a").launch(
        [x, y, 2.5], (1, 1, 1), (4, 1, 1)
    )
    np.testing.assert_array_equal(y, [1, 3.5, 6, 8.5])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x[threadIdx.x + 8] = 1;", "line 3: index 10 is outside array 'x' of 10 elements, in thread (2, 0, 0)"),
        ("x[-1] = 1;", "line 3: index -1 is outside array 'x'"),
        ("float *p = x + 3; p += 90; *p = 1;", "line 3: index 93 is outside array 'x'"),
        ("float *p = &x[4]; p[6] = 1;", "line 3: index 10 is outside array 'x'"),
        ("atomicAdd(x + 10, 1.0f);", "line 3: index 10 is outside array 'x'"),
        ("reinterpret_cast<double *>(x)[5] = 1;", "line 3: index 5 is outside array 'x' of 5 elements"),
        ("float *p = nullptr; p[0] = 1;", "line 3: a null pointer is read or written"),
    ],
)
def test_every_wrong_access_is_told(cache: Path, line: str, says: str) -> None:
    source = f'extern "C" __global__ void f(float *x) {{\n/* two\n lines */ {line}\n}}'
    kernel = build(cache, source, "f", "float *x")
    with pytest.raises(UserCodeError) as caught:
        kernel.launch([np.zeros(10, np.float32)], (1, 1, 1), (5, 1, 1))
    assert says in str(caught.value)
    assert str(caught.value).startswith("kernel 'f', ")


def test_threads_at_different_barriers(cache: Path) -> None:
    source = 'extern "C" __global__ void f(float *x) {\nif (threadIdx.x)\n__syncthreads();\nelse\n__syncthreads();\n}'
    with pytest.raises(UserCodeError, match=r"wait at different __syncthreads\(\), lines 5 and 3"):
        build(cache, source, "f", "float *x").launch([np.zeros(1, np.float32)], (1, 1, 1), (2, 1, 1))


def test_the_compiler_speaks_of_the_users_lines(cache: Path) -> None:
    with pytest.raises(
        BadRequestError, match=r"'f' does not compile: kernel.cu:2:\d+: error: .*y.*not declared"
    ) as caught:
        build(cache, 'extern "C" __global__ void f(float *x) {\nx[0] = y;\n}', "f", "float *x")
    assert "opbox::" not in caught.value.detail["log"]


def test_definitions_reach_the_compiler(cache: Path) -> None:
    x = np.zeros(1, np.float32)
    build(cache, 'extern "C" __global__ void f(float *x) { x[0] = N; }', "f", "float *x", "-DN=3").launch(
        [x], (1, 1, 1), (1, 1, 1)
    )
    assert x.tolist() == [3]


def test_a_kernel_is_compiled_once(cache: Path) -> None:
    source = 'extern "C" __global__ void once(float *x) { x[0] = 41; }'
    build(cache, source, "once", "float *x")
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    build(cache, source, "once", "float *x")
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


@pytest.mark.parametrize(
    ("args", "grid", "block", "error", "says"),
    [
        (
            [np.zeros(2, np.float32)],
            (1, 1, 1),
            (1, 1, 1),
            BadRequestError,
            "expected 2 arguments (float *x, int n), got 1",
        ),
        ([np.zeros(2), 1], (1, 1, 1), (1, 1, 1), DTypeError, "argument 'x': expected float32, got float64"),
        ([3, 1], (1, 1, 1), (1, 1, 1), BadRequestError, "argument 'x': expected an array, got 3"),
        ([np.zeros((4, 4), np.float32)[:, 1], 1], (1, 1, 1), (1, 1, 1), BadRequestError, "expected a contiguous array"),
        (
            [np.zeros(2, np.float32), "a"],
            (1, 1, 1),
            (1, 1, 1),
            DTypeError,
            "argument 'n': expected a number that fits int, got 'a'",
        ),
        ([np.zeros(2, np.float32), 1], (1, 1), (1, 1, 1), BadRequestError, "grid: expected three sizes"),
        ([np.zeros(2, np.float32), 1], (1, 1, 1), (0, 1, 1), BadRequestError, "block: expected three sizes"),
        ([np.zeros(2, np.float32), 1], (1, 1, 1), (1025, 1, 1), BadRequestError, "at most 1024 threads a block"),
    ],
)
def test_a_launch_that_does_not_fit(
    cache: Path, args: list[Any], grid: Any, block: Any, error: type[Exception], says: str
) -> None:
    kernel = build(cache, 'extern "C" __global__ void f(float *x, int n) { x[0] = n; }', "f", "float *x, int n")
    with pytest.raises(error) as caught:
        kernel.launch(args, grid, block)
    assert says in str(caught.value)


@pytest.mark.parametrize("signature", ["floot *x", "float x y z", "float **x", ","])
def test_a_signature_that_cannot_be_read(signature: str) -> None:
    with pytest.raises(BadRequestError, match=r"argument 0 of the signature: expected \[const\] TYPE"):
        parse_signature("f", signature)


def test_old_form_names_and_types() -> None:
    with pytest.raises(BadRequestError, match="identifiers and differ, got 'x y'"):
        decorate("f", [("x y", (1,), np.float32)], [], "")
    with pytest.raises(BadRequestError, match=r"array 'x': expected one of float32.*got complex64"):
        decorate("f", [("x", (1,), np.dtype(np.complex64))], [], "")


def test_without_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match=r"found none of g\+\+, c\+\+, clang\+\+: install one"):
        build(cache, 'extern "C" __global__ void g(float *x) { x[0] = 5; }', "g", "float *x")
