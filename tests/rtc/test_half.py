"""__half in the emulator: every value converted both ways, every operation rounded, as numpy's float16 does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbox_ops.rtc import parse_signature
from opbox_ops.rtc.emulator import EmulatedKernel, EmulatedModule

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def build(cache: Path, body: str, signature: str) -> EmulatedKernel:
    source = f'#include <cuda_fp16.h>\nextern "C" __global__ void f({signature}) {{\n{body}\n}}'
    return EmulatedModule(source, cache=cache).kernel("f", parse_signature("f", signature))


def test_every_half_as_a_float(cache: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    floats = np.empty(halves.shape, np.float32)
    kernel = build(cache, "int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i];", "const __half *x, float *y")
    kernel.launch([halves, floats], (64, 1, 1), (1024, 1, 1))
    np.testing.assert_array_equal(floats, halves.astype(np.float32))


def test_floats_are_rounded_to_the_nearest_even_half(cache: Path) -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    near = np.nextafter(middles, np.float32(np.inf)), np.nextafter(middles, np.float32(0))
    edges = np.array([65519.996, 65520, 1e9, np.inf, np.nan, 1e-10, 0], np.float32)
    floats = np.concatenate([halves, middles, *near, edges])
    floats = np.concatenate([floats, -floats])
    floats = np.pad(floats, (0, -len(floats) % 1024))
    got = np.empty(floats.shape, np.float16)
    kernel = build(
        cache, "int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = __float2half(x[i]);", "const float *x, __half *y"
    )
    kernel.launch([floats, got], (len(floats) // 1024, 1, 1), (1024, 1, 1))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, floats.astype(np.float16))


def test_arithmetic_shared_memory_and_atomics(cache: Path) -> None:
    random = np.random.default_rng(0)
    x, a = random.normal(size=256).astype(np.float16), np.float16(0.7)
    y, total = np.empty_like(x), np.zeros(1, np.float16)
    body = """__shared__ __half held[256];
    const __half *p = x;
    held[threadIdx.x] = p[threadIdx.x] * a;
    __syncthreads();
    __half h = held[255 - threadIdx.x];
    y[threadIdx.x] = __hmax(h, -h) + hexp(h) / __float2half(3.0f);
    if (h > __float2half(0.0f)) atomicAdd(&total[0], __float2half(1.0f));"""
    build(cache, body, "const __half *x, __half *y, __half *total, __half a").launch(
        [x, y, total, 0.7], (1, 1, 1), (256, 1, 1)
    )
    h = (x * a)[::-1]
    np.testing.assert_array_equal(y, np.abs(h) + np.exp(h.astype(np.float32)).astype(np.float16) / np.float16(3))
    assert total[0] == (h > 0).sum()
