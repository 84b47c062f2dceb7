"""softmax of rows in registers: the CPU's numbers for any length, with infinities and NaN, and the same bits twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_service.executor import invoke

NEAR = {"float32": 2e-6, "float16": 2e-3, "float64": 1e-12}
"""Sums of up to 1,024 numbers in another order, and a rounding to the type."""


@pytest.mark.parametrize("n", [129, 1000, 1001])
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_rows(gpu: Any, name: str, dtype: str, n: int) -> None:
    host = np.random.default_rng(0).normal(scale=3, size=(1057, n)).astype(dtype)
    host[1], host[2, 5], host[3, n - 1], host[4, 7], host[5, : n - 1] = -np.inf, np.nan, np.inf, -np.inf, -np.inf
    results = []
    for device in ("cpu", "gpu:0", "gpu:0"):
        backend = backend_for(device)
        with np.errstate(all="ignore"):
            (out,) = invoke(name, {}, [backend.put(host)], backend=backend, random=backend.random(0))
        results.append(backend.get(out))
    expected, once, again = results
    np.testing.assert_array_equal(again, once)
    np.testing.assert_allclose(once.astype("d"), expected.astype("d"), rtol=NEAR[dtype], atol=NEAR[dtype])
