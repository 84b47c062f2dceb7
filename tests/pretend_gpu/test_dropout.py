"""Dropout on the device has the CPU's masks, for any number of elements and wherever the arrays lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor import invoke


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("size", [1, 7, 1023, 2048, 2049, 5001])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_cpus_masks(gpu: Any, dtype: str, size: int, start: int) -> None:
    host = np.random.default_rng(0).normal(size=size + start).astype(numpy_dtype(dtype))
    results = []
    for device in ("cpu", "gpu:0", "gpu:0"):
        backend = backend_for(device)
        random, data = backend.random(7), backend.put(host)[start:]
        outputs = [
            invoke("Dropout", {"p": "0.3", "mode": "always"}, [data], backend=backend, random=random)[0]
            for _ in range(2)
        ]
        results.append([backend.get(out).astype("d") for out in outputs])
    expected, once, again = results
    # A second call begins a block of the stream on the device, and goes on within one on the CPU.
    np.testing.assert_array_equal(once[0], expected[0])
    np.testing.assert_array_equal(again, once)
