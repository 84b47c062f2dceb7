"""Users' kernels at the limits of a block: registers and shared memory, and the sentence beyond them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import lost
from opbox_protocol.errors import BadRequestError

ADD = 'extern "C" __global__ void heavy(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }'
LAST = """extern "C" __global__ void last(float *x, int n) {
  extern __shared__ float values[];
  values[n - 1] = 7;
  __syncthreads();
  x[threadIdx.x] = values[n - 1];
}
"""
KIB = 1 << 10
MAX_SHARED_BYTES = 227 * KIB
"""Bytes of shared memory of a block on an H100, which the pretend device is."""


@pytest.mark.parametrize("ctx", [mx.gpu(0), mx.gpu(1)], ids=str)
def test_a_block_for_which_there_are_no_registers(gpu: Any, ctx: Any) -> None:
    gpu.registers["heavy"] = 128
    x = mx.nd.zeros((1024,), ctx)
    kernel = mx.rtc.CudaModule(ADD).get_kernel("heavy", "float *x")
    kernel.launch([x], ctx, (2, 1, 1), (512, 1, 1))
    kernel.launch([x], ctx, (1, 1, 1), (32, 32, 1))
    with pytest.raises(
        BadRequestError,
        match=r"^kernel 'heavy': expected at most 512 threads a block on this GPU, as a thread takes 128 registers, "
        r"got \(32, 32, 1\): use smaller blocks, or --maxrregcount",
    ):
        mx.nd.waitall()
    assert lost() is None
    np.testing.assert_array_equal((x + 1).asnumpy(), 2)


@pytest.mark.parametrize("nbytes", [48 * KIB, 48 * KIB + 4, 100 * KIB, MAX_SHARED_BYTES])
def test_shared_memory_that_a_kernel_asks_for(gpu: Any, nbytes: int) -> None:
    x = mx.nd.zeros((4,), mx.gpu(0))
    kernel = mx.rtc.CudaModule(LAST).get_kernel("last", "float *x, int n")
    for size in (nbytes, 1024):  # what it has asked for once is enough for less
        kernel.launch([x, size // 4], mx.gpu(0), (1, 1, 1), (4, 1, 1), size)
    np.testing.assert_array_equal(x.asnumpy(), 7)


def test_more_shared_memory_than_a_block_may_have(gpu: Any) -> None:
    x = mx.nd.zeros((4,), mx.gpu(0))
    kernel = mx.rtc.CudaModule(LAST).get_kernel("last", "float *x, int n")
    kernel.launch([x, 1], mx.gpu(0), (1, 1, 1), (4, 1, 1), MAX_SHARED_BYTES + 4)
    sentence = rf"^kernel 'last': expected 0 to {MAX_SHARED_BYTES} bytes of shared memory, got"
    with pytest.raises(BadRequestError, match=sentence):
        mx.nd.waitall()
    np.testing.assert_array_equal(x.asnumpy(), 0)
