"""What stops an emulated kernel: each mistake in a sentence with the kernel, the line, the thread and the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.rtc import building, parse_signature
from opbox_ops.rtc.emulator import EmulatedKernel, EmulatedModule
from opbox_protocol.errors import BadRequestError, UserCodeError

pytestmark = pytest.mark.compiler

SIGNATURE = "float *x, const float *z, int n"
BEFORE = """template <typename T> __device__ T *skip(T *p, int n) { return p + n; }
__device__ void put(float *p, int i) {
  p[i] = 1;
}
struct Row { float *at; };
__constant__ float three[3] = {1, 2, 3};
__device__ float globals[3];
#define AT(p, i) p[i]
extern "C" __global__ void k(float *x, const float *z, int n) {
  int t = threadIdx.x;
  extern __shared__ float dynamic[];
  __shared__ float tile[8];
"""
LINE = BEFORE.count("\n") + 1


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def build(cache: Path, source: str, signature: str = SIGNATURE, name: str = "k") -> EmulatedKernel:
    return EmulatedModule(source, cache=cache).kernel(name, parse_signature(name, signature))


def launch(cache: Path, body: str, threads: int = 4) -> Any:
    x = np.zeros(10, np.float32)
    build(cache, f"{BEFORE}{body}\n}}").launch([x, np.ones(10, np.float32), 4], (1, 1, 1), (threads, 1, 1), 16)
    return x


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("auto *p = x + 2; p[8 + t] = 1;", "index 10 is outside array 'x' of 10 elements, in thread (0, 0, 0)"),
        ("skip(x, 5)[t + 2] = z[0];", "index 10 is outside array 'x' of 10 elements, in thread (3, 0, 0)"),
        ("Row row = {x}; row.at[-1 - t] = 1;", "index -1 is outside array 'x'"),
        ("float *ps[2] = {x, x}, **pp = ps; pp[1][t * 5] = 1;", "index 10 is outside array 'x'"),
        ("x[1 << 28] = 1;", "index 268435456 is outside array 'x'"),
        ("AT(x, 1000000) = 1;", "index 1000000 is outside array 'x'"),
        ("x[0] = __ldg(z + 10);", "index 10 is outside array 'z'"),
        ("memset(x, 0, 11 * sizeof(float));", "index 0 is outside array 'x' of 0 elements"),
        (
            "float a[4]; for (int i = 0; i <= n; ++i) a[i] = i; x[0] = a[t];",
            "index 4 is outside an array of 4 elements",
        ),
        ("x[t] = three[t];", "index 3 is outside an array of 3 elements"),
        ("globals[t] = 1;", "index 3 is outside an array of 3 elements"),
        ("tile[t * 3] = 1;", "index 9 is outside an array of 8 elements"),
        ("dynamic[t + 1] = 1;", "index 4 is outside shared memory of 4 elements, in thread (3, 0, 0)"),
        (
            "float *p = new float[2]; p[t] = x[0]; x[0] = p[0];",
            "index 2 is outside memory of malloc or new of 2 elements",
        ),
        ("float *p = nullptr; p[t + 5] = 1;", "a null pointer is read or written"),
        ("*(float *)(0x123456789abull + 1) = 1;", "an address"),
        ("*reinterpret_cast<float4 *>(x + 1) = make_float4(1, 2, 3, 4);", "is not a multiple of 16 bytes"),
        ("x[0] = 5 / (n - 4);", "an integer is divided by zero"),
        ("((float *)z)[0] = 1;", "array 'z' is written, which the signature says is const"),
        ("assert(t < 2);", "assert(t < 2) fails, in thread (2, 0, 0)"),
        ("if (t == 3) __trap();", "__trap() is called, in thread (3, 0, 0)"),
        (
            "x[0] = __shfl_sync(0x3, t, 0);",
            "a warp function's mask 0x3 lacks the lane that calls it, in thread (2, 0, 0)",
        ),
        (
            "if (t < 2) __syncwarp(0xf); else __syncthreads();",
            "a warp function waits for the lanes 0xf, and thread (3, 0, 0) waits at line",
        ),
    ],
)
def test_a_mistake_is_told(cache: Path, body: str, says: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        launch(cache, body)
    assert str(caught.value).startswith(f"kernel 'k', line {LINE}: ")
    assert says in str(caught.value)
    assert caught.value.detail["line"] == LINE


def test_a_mistake_in_a_function_is_told_by_its_line(cache: Path) -> None:
    with pytest.raises(UserCodeError, match=r"line 3: index 8 is outside array '.*tile' of 8 elements, in thread \(2"):
        launch(cache, "put(tile, t * 4);")


def test_an_array_that_lies_behind_another_is_not_hit(cache: Path) -> None:
    both = np.zeros(20, np.float32)
    kernel = build(cache, 'extern "C" __global__ void k(float *x, float *y) { x[12] = y[0]; }', "float *x, float *y")
    with pytest.raises(UserCodeError, match="index 12 is outside array 'x' of 10 elements"):
        kernel.launch([both[:10], both[10:]], (1, 1, 1), (1, 1, 1))


def test_arrays_that_share_memory(cache: Path) -> None:
    source = 'extern "C" __global__ void k(const float *x, float *y) { y[0] = 5; y[1] = x[2]; }'
    kernel = build(cache, source, "const float *x, float *y")
    x = np.arange(6, dtype=np.float32)
    kernel.launch([x, x[2:]], (1, 1, 1), (1, 1, 1))
    assert x.tolist() == [0, 1, 5, 5, 4, 5]


def test_lanes_that_left_and_shared_memory_without_a_value_are_not_numbers(cache: Path) -> None:
    body = "if (t > 1) return; x[t] = __shfl_down_sync(~0u, 1.0f, 1); if (t == 0) x[2] = dynamic[0];"
    got = launch(cache, body)
    assert got[0] == 1
    assert np.isnan(got[1:3]).all()


def test_kernels_of_a_source_share_its_variables(cache: Path) -> None:
    source = (
        "__device__ int count = 5;\n"
        '__global__ void k(int *x) { count += x[0]; }\nextern "C" __global__ void read(int *x) { x[0] = count; }'
    )
    first, second = build(cache, source, "int *x"), build(cache, source, "int *x", "read")
    x = np.array([2], np.int32)
    first.launch([x], (2, 1, 1), (1, 1, 1))
    second.launch([x], (1, 1, 1), (1, 1, 1))
    assert x.tolist() == [9]


@pytest.mark.parametrize(
    ("source", "signature", "says"),
    [
        ("__global__ void k(float *x, int n) {}", "float *x", "expected a signature of its 2 parameters, got 1"),
        (
            "__global__ void k(float x) {}",
            "int x",
            "the signature says 'int x', the kernel takes a floating number of 4",
        ),
        ("__global__ void k(float *x) {}", "float x", "the signature says 'float x', the kernel takes a pointer"),
        (
            "__global__ void other(float *x) {}",
            "float *x",
            "the source has no kernel of this name, or several: expected one of other",
        ),
        ('extern "C" void k(float *x) {}', "float *x", "expected a kernel, got a function without __global__ before"),
        ("#include <vector>\n", "float *x", "kernel.cu:1: #include <vector>: the emulator of a CPU has cuda_fp16.h"),
        (
            '\n__global__ void k(float *x) { asm volatile("bar.sync 0;"); }',
            "float *x",
            "kernel.cu:2: asm: a CPU runs no",
        ),
    ],
)
def test_a_source_that_does_not_fit(cache: Path, source: str, signature: str, says: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        build(cache, source, signature)
    assert says in str(caught.value)


def test_shared_memory_beyond_a_devices(cache: Path) -> None:
    kernel = build(cache, "__global__ void k(float *x) {}", "float *x")
    with pytest.raises(BadRequestError, match="expected 0 to 232448 bytes of shared memory, got 232449"):
        kernel.launch([np.zeros(1, np.float32)], (1, 1, 1), (1, 1, 1), 232449)


def test_all_the_shared_memory_of_a_device(cache: Path) -> None:
    kernel = build(
        cache,
        "__global__ void k(float *x) { extern __shared__ float y[]; y[(227 << 8) - 1] = 3; x[0] = y[(227 << 8) - 1]; }",
        "float *x",
    )
    x = np.zeros(1, np.float32)
    kernel.launch([x], (1, 1, 1), (1, 1, 1), 232448)
    assert x[0] == 3


def test_what_another_version_of_the_emulator_built_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = building.Build("__global__ void k(float *x) {}", "", (), cache)
    before, _ = build.library("k")
    text = building._runtime_text()
    monkeypatch.setattr(building, "_runtime_text", lambda: f"{text}// another")
    assert build.library("k")[0] != before
