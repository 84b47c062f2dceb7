"""The pretend device does what a device does: memory, barriers, warp functions, capture, errors."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

REVERSE = """
extern "C" __global__ void reverse(float *x, int n) {
  extern __shared__ float held[];
  const int t = threadIdx.x;
  held[t] = x[t];
  __syncthreads();
  x[t] = held[n - 1 - t];
}
"""
WARPS = """
extern "C" __global__ void sums(const int *x, int *total, unsigned *odd) {
  int value = x[threadIdx.x];
  for (int by = 16; by; by /= 2) value += __shfl_down_sync(0xffffffffu, value, by);
  const unsigned ballot = __ballot_sync(0xffffffffu, x[threadIdx.x] & 1);
  __shared__ int parts[32];
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  // One warp meets more often than the others before all meet.
  if (threadIdx.x < 32) for (int i = 0; i < 5; ++i) __syncwarp();
  __syncthreads();
  if (threadIdx.x == 0) {
    int all = 0;
    for (int i = 0; i < blockDim.x / 32; ++i) all += parts[i];
    *total = all;
    *odd = ballot;
  }
}
"""
ADD = 'extern "C" __global__ void add(float *x, float by) { x[threadIdx.x] += by; }'


def test_memory_is_never_zero_by_luck(cupy: Any) -> None:
    assert (cupy.ndarray(64, "uint8", cupy.cuda.memory._malloc(64)) == 0xAB).all()


def test_shared_memory_of_a_size_that_the_launch_says(cupy: Any) -> None:
    x = cupy.arange(64, dtype="f")
    cupy.RawKernel(REVERSE, "reverse")((1,), (64,), (x, np.int32(64)), shared_mem=256)
    assert cupy.asnumpy(x).tolist() == list(range(63, -1, -1))


def test_more_shared_memory_than_there_is(cupy: Any) -> None:
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        cupy.RawKernel(REVERSE, "reverse")((1,), (4,), (cupy.zeros(4, "f"), np.int32(4)), shared_mem=1 << 20)


def test_a_backend_leaves_the_current_device_as_it_was(cupy: Any) -> None:
    backend: Any = importlib.import_module("opbox_ops.backend.cupy")
    before = cupy.cuda.runtime.getDevice()
    assert backend.CupyBackend(1 - before).device.id == 1 - before
    assert cupy.cuda.runtime.getDevice() == before


def test_warps(cupy: Any) -> None:
    x, total, odd = cupy.arange(128, dtype="i"), cupy.zeros(1, "i"), cupy.zeros(1, "u4")
    cupy.RawKernel(WARPS, "sums")((1,), (128,), (x, total, odd))
    assert int(total[0]) == 127 * 64
    assert int(odd[0]) == 0xAAAAAAAA


def test_scans_of_many_elements(cupy: Any) -> None:
    assert (cupy.arange(5000).cumsum() == cupy.asarray(np.arange(5000).cumsum())).all()


def test_a_kernel_that_does_not_compile(cupy: Any) -> None:
    with pytest.raises(cupy.cuda.compiler.CompileException, match=r"kernel.cu\(1\).*error"):
        cupy.RawModule(code='extern "C" __global__ void f(int *x) { x[0] = y; }').get_function("f")


def test_writing_outside_an_allocation_shows(gpu: Any, cupy: Any) -> None:
    x = cupy.cuda.memory._malloc(1024)
    gpu.state.live[x.mem.ptr]  # an allocation of its own
    kernel = cupy.RawKernel('extern "C" __global__ void f(char *x) { x[1024] = 1; }', "f")
    kernel((1,), (1,), (x.ptr,))
    with pytest.raises(AssertionError, match="behind an allocation of 1024 bytes on device 0"):
        gpu.check_guards()
    kernel = cupy.RawKernel('extern "C" __global__ void f(unsigned char *x) { x[1024] = 0xef; }', "f")
    kernel((1,), (1,), (x.ptr,))


def test_out_of_memory_is_cupys_error(gpu: Any, cupy: Any) -> None:
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.cuda.MemoryPool().malloc(1 << 40)
    gpu.fail_next("malloc", gpu.OUT_OF_MEMORY)
    # CuPy gives back what its pool has to spare and asks again.
    assert cupy.empty(3 << 20, "uint8").nbytes == 3 << 20


def test_an_error_of_a_call_is_cupys(gpu: Any, cupy: Any) -> None:
    gpu.fail_next("deviceSynchronize", 999)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as raised:
        cupy.cuda.runtime.deviceSynchronize()
    assert raised.value.status == 999
    cupy.cuda.runtime.deviceSynchronize()


def test_after_a_sticky_error_every_call_fails(gpu: Any, cupy: Any) -> None:
    x = cupy.zeros(4, "f")
    kernel = cupy.RawKernel('extern "C" __global__ void f(float *x) { x[1LL << 44] = 1; }', "f")
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        kernel((1,), (1,), (x,))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as raised:
        x.get()
    assert raised.value.status == gpu.ILLEGAL_ADDRESS


def test_memory_of_another_device(gpu: Any, cupy: Any) -> None:
    with cupy.cuda.Device(1):
        x = cupy.zeros(4, "f")
    assert x.device.id == 1
    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        cupy.RawKernel(ADD, "add")((1,), (4,), (x, np.float32(1)))


def test_a_captured_launch_runs_when_it_is_replayed(cupy: Any) -> None:
    x = cupy.zeros(4, "f")
    kernel = cupy.RawKernel(ADD, "add")
    kernel((1,), (4,), (x, np.float32(1)))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        kernel((1,), (4,), (x, np.float32(2)))
        graph = stream.end_capture()
        assert x.tolist() == [1] * 4
        for _ in range(3):
            graph.launch(stream)
    assert x.tolist() == [7] * 4


def test_what_capture_refuses(gpu: Any, cupy: Any) -> None:
    x = cupy.zeros(4, "f")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as raised:
            stream.synchronize()
        assert raised.value.status == gpu.CAPTURE_UNSUPPORTED
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as raised:
            stream.end_capture()
        assert raised.value.status == gpu.CAPTURE_INVALIDATED
    assert x.tolist() == [0] * 4


@pytest.mark.parametrize(("mode", "refused"), [(0, True), (1, False)])
def test_a_capture_concerns_other_threads_by_its_mode(cupy: Any, mode: int, refused: bool) -> None:
    x, elsewhere = cupy.zeros(4, "f"), cupy.zeros(4, "f")
    x += 1

    def work() -> Any:
        nonlocal elsewhere
        elsewhere += cupy.ndarray(4, "f", cupy.cuda.MemoryPool().malloc(1 << 20)).fill(1) or 1
        return elsewhere.tolist()

    with cupy.cuda.Stream(non_blocking=True) as stream, ThreadPoolExecutor(1) as other:
        stream.begin_capture(mode)
        x += 1
        result = other.submit(work)
        if refused:
            with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
                result.result()
            with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
        else:
            assert result.result() == [1] * 4
            stream.end_capture().launch(stream)
    assert x.tolist() == [1 if refused else 2] * 4


def test_a_record_of_calls(gpu: Any, cupy: Any) -> None:
    x = cupy.arange(4)
    with gpu.recorded() as calls:
        x += 1
        x.get()
    assert calls["launch"] == 1
    assert calls["transfer"] == 1


@pytest.mark.parametrize("status", [0, 3])
def test_the_exit_status_is_the_programs(status: int) -> None:
    program = f"import sys, cupy; x = cupy.arange(9).sum(); sys.exit({status})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (status, "")
