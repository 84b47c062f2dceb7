"""Few numbers are sampled by dense matrices, many by a sparse one: both are the same function."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from opbox_ops.nn import sampling


@pytest.mark.parametrize("clamp", [False, True])
def test_dense_and_sparse_matrices_agree(monkeypatch: pytest.MonkeyPatch, clamp: bool) -> None:
    random, (height, width) = np.random.default_rng(0), (4, 6)
    # Between elements, on them, on the edges, and outside.
    y = np.concatenate(
        [random.uniform(-2, height + 1, (2, 20)), np.tile([0.0, 2, 3, 3.5, 4, -0.5, -1, 1e30], (2, 1))], 1
    )
    x = np.concatenate([random.uniform(-2, width + 1, (2, 20)), np.tile([1.0, 0, 5, 5.5, 2, 2.5, 3, 1], (2, 1))], 1)
    images, gsamples = random.normal(size=(2, 3, height * width)), random.normal(size=(2, 3, y.shape[1]))

    def results(few: int) -> list[Any]:
        monkeypatch.setattr(sampling, "FEW", few)
        met = sampling.corners(SimpleNamespace(xp=np), y, x, height, width, clamp=clamp)
        assert isinstance(met, sampling.FewCorners if few else sampling.Corners)
        return [met.sample(np, images), met.spread(np, gsamples), *met.slopes(np, images, gsamples)]

    for dense, sparse in zip(results(2**14), results(0), strict=True):
        np.testing.assert_allclose(dense, sparse, rtol=1e-12, atol=1e-12)
