"""What a process keeps of a device beside arrays: one handle of each library, whatever the thread."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from opbox_ops.backend import backend_for
from opbox_ops.cuda import cublas
from opbox_ops.cudnn import library
from opbox_service.executor import invoke

THREADS = 4


def test_threads_share_a_devices_handles(gpu: Any) -> None:
    backend = backend_for("gpu:0")

    def run(number: int) -> None:
        with backend.scope():
            data, weight = (backend.empty((2, 2, 4, 4), "float32") for _ in range(2))
            convolution = {"kernel": (4, 4), "num_filter": 2, "no_bias": True, "pad": (number, number)}
            invoke("Convolution", convolution, [data, weight], backend=backend, random=backend.random(0))
            matrix = backend.empty((8, 8 + number), "float32")
            product = {"transpose_b": True}
            invoke("dot", product, [matrix, matrix], backend=backend, random=backend.random(0))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(2 * THREADS)))
    assert library._State.handles.keys() <= {0, 1}
    assert library._State.handles[0] is not None
    assert cublas._handles.keys() <= {0, 1}


def test_numbers_are_drawn_without_a_generators_states(gpu: Any, cupy: Any) -> None:
    """CuPy's generator has 17 MB of them, and each seed would make them anew."""
    backend: Any = importlib.import_module("opbox_ops.backend.cupy")
    stream, out = backend.CupyStream(), cupy.empty(1000, "float32")
    before = gpu.state.used[0]
    for seed in range(3):
        stream.seed(seed)
        stream.uniform(out, -1.0, 1.0)
        stream.normal(out, 0.0, 2.0)
    assert stream._generator is None
    assert gpu.state.used[0] - before < 1 << 20
