"""Running sums on the device: one launch, and few long sums in pieces, along each axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import cumsum
from opbox_ops.reduce.cumsum import CumsumParams
from opbox_service.executor import invoke

SHAPES: list[tuple[tuple[int, ...], int | None]] = [
    ((3, 70), 1),
    ((130, 40), 0),
    ((2, 1000, 33), 1),
    ((2, 9000), 1),
    ((9001, 3), 0),
    ((50, 500), None),
]


@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_running_sums_are_the_cpus(gpu: Any, shape: tuple[int, ...], axis: int | None) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    results = []
    for device in ("cpu", "gpu:0", "gpu:0"):
        backend = backend_for(device)
        inputs = [backend.put(x)]
        [out] = invoke("_np_cumsum", {"axis": str(axis)}, inputs, backend=backend, random=backend.random(0))
        results.append(backend.get(out))
    np.testing.assert_array_equal(results[2], results[1])
    # Sums of up to 25,000 numbers around 1, in another order.
    np.testing.assert_allclose(results[1].reshape(-1), results[0].reshape(-1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(1 << 24,), (1 << 20, 16), (4, 1 << 20), (1 << 20, 64), (1 << 29,), (8, 1 << 27)])
def test_few_long_sums_are_cut_into_pieces(shape: tuple[int, ...]) -> None:
    split = cumsum._split(CumsumParams(axis=shape.index(max(shape))), shape)
    assert split.pieces <= 4096
    assert split.piece * split.pieces >= split.length
    workers = split.sums * split.pieces
    assert (workers if split.by_block else workers / 256) >= 132
