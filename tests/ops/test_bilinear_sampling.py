"""Samples between the elements of images, and their gradients, are those of the formula, in pieces of any size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opbox_ops.nn import sampling
from tests.switches import set_c_kernels

HEIGHT, WIDTH = 4, 6


def by_formula(y: Any, x: Any, *, clamp: bool) -> Any:
    """The weight of each element (m, n, HEIGHT, WIDTH) in the samples, and its derivatives by y and x."""
    weights = np.zeros((3, *y.shape, HEIGHT, WIDTH))
    for at in np.ndindex(y.shape):
        if clamp and not (0 <= y[at] < HEIGHT and 0 <= x[at] < WIDTH):
            continue
        if abs(y[at]) > 100 or abs(x[at]) > 100:
            continue
        top, left = math.floor(y[at]), math.floor(x[at])
        for row, near_y, down in ((top, top + 1 - y[at], -1), (top + 1, y[at] - top, 1)):
            for column, near_x, right in ((left, left + 1 - x[at], -1), (left + 1, x[at] - left, 1)):
                place = (min(row, HEIGHT - 1), min(column, WIDTH - 1)) if clamp else (row, column)
                if 0 <= place[0] < HEIGHT and 0 <= place[1] < WIDTH:
                    weights[(slice(None), *at, *place)] += near_y * near_x, down * near_x, near_y * right
    return weights.reshape(3, *y.shape, -1)


@pytest.mark.parametrize("kernels", ["0", "now"])
@pytest.mark.parametrize("most", [1, 12, 64, 10_000])
@pytest.mark.parametrize("clamp", [False, True])
def test_samples_and_gradients_are_those_of_the_formula(
    monkeypatch: pytest.MonkeyPatch, clamp: bool, most: int, kernels: str
) -> None:
    set_c_kernels(monkeypatch, kernels)
    monkeypatch.setattr(sampling, "elements", lambda size: most)
    monkeypatch.setattr("opbox_ops.index.weighted_rows.CACHE_BYTES", 64 * most)
    monkeypatch.setattr("opbox_ops.index.weighted_rows.SMALL", 0)
    random = np.random.default_rng(0)
    # Between elements, on them, on the edges, and outside.
    y = np.concatenate(
        [random.uniform(-2, HEIGHT + 1, (2, 20)), np.tile([0.0, 2, 3, 3.5, 4, -0.5, -1, 1e30], (2, 1))], 1
    )
    x = np.concatenate([random.uniform(-2, WIDTH + 1, (2, 20)), np.tile([1.0, 0, 5, 5.5, 2, 2.5, 3, 1], (2, 1))], 1)
    images, gsamples = random.normal(size=(2, 3, HEIGHT * WIDTH)), random.normal(size=(2, 3, y.shape[1]))
    weights, down, right = by_formula(y, x, clamp=clamp)

    def temps(*, gradients: bool) -> list[Any]:
        asked = sampling.sampling_temps(
            "cpu", 2, y.shape[1], (HEIGHT, WIDTH), 3, np.dtype("float64"), gradients=gradients
        )
        return [np.full(temp.shape, 77, temp.dtype) for temp in asked]

    out = np.empty_like(gsamples)
    sampling.sample(np, images, y, x, (HEIGHT, WIDTH), out, temps(gradients=False), clamp=clamp)
    np.testing.assert_allclose(out, np.einsum("mnk,mck->mcn", weights, images), rtol=1e-12, atol=1e-12)

    gimages, gy, gx = np.empty_like(images), np.empty_like(y), np.empty_like(x)
    scratch = temps(gradients=True)
    sampling.sample_gradients(np, images, y, x, (HEIGHT, WIDTH), gsamples, gimages, (gy, gx), scratch, clamp=clamp)
    np.testing.assert_allclose(gimages, np.einsum("mnk,mcn->mck", weights, gsamples), rtol=1e-12, atol=1e-12)
    for slope, rises in ((gy, down), (gx, right)):
        np.testing.assert_allclose(slope, np.einsum("mnk,mck,mcn->mn", rises, images, gsamples), rtol=1e-11, atol=1e-12)
