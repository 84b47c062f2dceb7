"""Steps on a device: graphs, several sessions, large copies, all shared memory. No device is pretended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import Backend, backend_for
from opbox_ops.backend.staging import COPY_BYTES
from opbox_service.executor import bind, invoke
from opbox_service.graph.json import load
from tests.executor.test_allocations import lenet, recurrent, residual
from tests.switches import switch

MODELS = {"lenet": lenet, "residual": residual, "recurrent": recurrent}
LARGE = 5 * COPY_BYTES // 8 + 3
"""Elements of an array that takes more than half of the ring for uploads, and ends within a chunk."""


def run(backend: Backend, name: str, req: str) -> list[Any]:
    """What some steps show of a network, and its gradients and states behind them."""
    symbol, data_shapes = MODELS[name]()
    shapes, _, states = symbol.infer_shape(**data_shapes)
    rng = np.random.default_rng(0)
    with backend.scope():
        args = {}
        for argument, shape in zip(symbol.list_arguments(), shapes, strict=True):
            words = argument in data_shapes and len(shape) == 2
            args[argument] = backend.put(
                (rng.integers(0, 5, shape) if words else rng.uniform(-0.5, 0.5, shape)).astype("f")
            )
        aux = {n: backend.put(np.ones(s, "f")) for n, s in zip(symbol.list_auxiliary_states(), states, strict=True)}
        grads = {n: backend.put(np.ones(a.shape, "f")) for n, a in args.items() if n not in data_shapes}
        executor = bind(
            load(symbol.tojson()),
            args=args,
            grads=grads,
            grad_req=dict.fromkeys(grads, req),
            aux=aux,
            backend=backend,
            random=backend.random(3),
        )
        shown = []
        for is_train in (True, True, False, True, True):
            executor.forward(is_train=is_train)
            shown += [backend.get(out).copy() for out in executor.outputs]
            if is_train:
                executor.backward()
        return [*shown, *(backend.get(array).copy() for array in (*grads.values(), *aux.values()))]


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("name", MODELS)
def test_graphs_have_the_numbers_of_eager_runs(
    backend: Backend, name: str, req: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for on in (True, False):
        switch(monkeypatch, "cuda-graphs", on=on)
        results.append(run(backend, name, req))
    for replayed, eager in zip(*results, strict=True):
        np.testing.assert_array_equal(replayed, eager)


def test_sessions_at_once_have_the_numbers_of_one_alone(backend: Backend) -> None:
    alone = {name: run(backend, name, "write") for name in MODELS}

    def session(name: str) -> list[Any]:
        own: Any = backend.for_session()
        try:
            return [run(own, name, "write") for _ in range(3)]
        finally:
            own.close()

    names = [*MODELS] * 2
    with ThreadPoolExecutor(len(names)) as pool:
        for name, runs in zip(names, pool.map(session, names), strict=True):
            for arrays in runs:
                for array, expected in zip(arrays, alone[name], strict=True):
                    np.testing.assert_array_equal(array, expected, err_msg=name)


def test_large_arrays_are_written_behind_what_reads_them(backend: Backend) -> None:
    own: Any = backend.for_session()
    random = own.random(0)
    try:
        with own.scope():
            feed = own.put(np.zeros(LARGE, "f"))
            results = []
            for step in range(6):
                host = np.arange(step, step + LARGE, dtype="f")
                own.write(feed, host)
                host[...] = -1  # the caller's memory may go once write has returned
                [doubled] = invoke("_mul_scalar", {"scalar": "2"}, [feed], backend=own, random=random)
                results.append(doubled)
            for step, array in enumerate(results):
                np.testing.assert_array_equal(own.get(array), 2 * np.arange(step, step + LARGE, dtype="f"))
    finally:
        own.close()


LAST = """extern "C" __global__ void last(float *x, int n) {
  extern __shared__ float values[];
  values[n - 1] = 7;
  __syncthreads();
  x[threadIdx.x] = values[n - 1];
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_a_users_kernel_has_all_shared_memory_of_a_block(device: str) -> None:
    cupy: Any = backend_for("gpu:0").xp
    limit = cupy.cuda.Device(0).attributes["MaxSharedMemoryPerBlockOptin"]
    context = mx.gpu(0)
    kernel = mx.rtc.CudaModule(LAST).get_kernel("last", "float *x, int n")
    for nbytes in (48 << 10, limit, 1 << 10):
        x = mx.nd.zeros((32,), context)
        kernel.launch([x, nbytes // 4], context, (1, 1, 1), (32, 1, 1), nbytes)
        np.testing.assert_array_equal(x.asnumpy(), 7)
    kernel.launch([x, 1], context, (1, 1, 1), (32, 1, 1), limit + 4)
    with pytest.raises(mx.MXNetError, match=rf"^kernel 'last': expected 0 to {limit} bytes of shared memory, got"):
        mx.nd.waitall()
    np.testing.assert_array_equal((x + 1).asnumpy(), 8)
