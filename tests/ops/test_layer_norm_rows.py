"""LayerNorm by rows in C, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.compute import Array
from opbox_ops.nn.layer_norm_rows import LayerNormRows, layer_norm_rows, scratch_of
from tests.machine import needs_vectors

from .thread_counts import assert_same_bits

pytestmark = needs_vectors

EPS = 1e-5
SHAPES = [(1, 1), (3, 7), (2, 5, 16), (33, 64), (70, 100), (4, 1000), (200, 333)]
"""Rows shorter than a vector, of whole vectors and with a rest; fewer than a block, more, and for several threads."""


@pytest.fixture
def kernel() -> LayerNormRows:
    functions = layer_norm_rows()
    assert functions is not None
    return functions


def numbers(*shape: int, seed: int = 0, offset: float = 0.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) + offset).astype(np.float32)


def defined(data: Array) -> tuple[Array, Array, Array]:
    """The standardised data, mean and std."""
    wide = data.astype(np.float64)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    std = np.sqrt(variance + EPS)
    return (wide - mean) / std, mean, std


def gradients(gout: Array, data: Array, gamma: Array) -> tuple[Array, Array, Array]:
    x, _, std = defined(data)
    g, leading = gout.astype(np.float64) * gamma, tuple(range(data.ndim - 1))
    gdata = (g - g.mean(-1, keepdims=True) - x * (g * x).mean(-1, keepdims=True)) / std
    return gdata, (gout * x).sum(leading), gout.astype(np.float64).sum(leading)


def empty(*shapes: tuple[int, ...]) -> list[Array]:
    return [np.full(shape, np.nan, np.float32) for shape in shapes]


def near(out: Array, expected: Array) -> None:
    """float32: sums of up to a thousand numbers about 1."""
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(kernel: LayerNormRows, shape: tuple[int, ...]) -> None:
    """With mean and std, and each of the three alone."""
    data, gamma, beta = numbers(*shape, offset=3), numbers(shape[-1], seed=1), numbers(shape[-1], seed=2)
    statistic = (*shape[:-1], 1)
    outputs = empty(shape, statistic, statistic)
    kernel.forward([data, gamma, beta], outputs, EPS)()
    x, mean, std = defined(data)
    for out, expected in zip(outputs, (x * gamma + beta, mean, std), strict=True):
        near(out, expected)
    for k in range(3):
        alone: list[Any] = [None, None, None]
        (alone[k],) = empty(outputs[k].shape)
        kernel.forward([data, gamma, beta], alone, EPS)()
        np.testing.assert_array_equal(alone[k], outputs[k])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(kernel: LayerNormRows, shape: tuple[int, ...]) -> None:
    """All three, and each alone."""
    size = shape[-1]
    gout, data, gamma = numbers(*shape), numbers(*shape, seed=1, offset=-2), numbers(size, seed=2)
    scratch = numbers(scratch_of(data.size // size, size), seed=3)
    outputs = empty(shape, (size,), (size,))
    kernel.gradient([gout, data, gamma], outputs, scratch, EPS)()
    for out, expected in zip(outputs, gradients(gout, data, gamma), strict=True):
        near(out, expected)
    for k in range(3):
        alone: list[Any] = [None, None, None]
        (alone[k],) = empty(outputs[k].shape)
        kernel.gradient([gout, data, gamma], alone, scratch, EPS)()
        np.testing.assert_array_equal(alone[k], outputs[k])


def test_rows_far_from_zero_and_rows_of_one_number(kernel: LayerNormRows) -> None:
    """The variance is that of distances from the mean: it does not vanish beside its square."""
    data = numbers(3, 50, offset=1000)
    data[1] = 7
    out, ones = np.empty_like(data), np.ones(50, np.float32)
    kernel.forward([data, ones, np.zeros(50, np.float32)], [out, None, None], EPS)()
    assert (out[1] == 0).all()
    np.testing.assert_allclose(out[0], defined(data)[0][0], atol=2e-3)  # a float32 near 1,000 is 6e-5 from the next


def test_what_is_not_a_number_stays_in_its_row(kernel: LayerNormRows) -> None:
    data, ones = numbers(3, 40), np.ones(40, np.float32)
    data[1, 39] = np.nan
    out = np.zeros_like(data)
    kernel.forward([data, ones, ones], [out, None, None], EPS)()
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()


BITS = """
import sys
import numpy as np
from opbox_ops.nn.layer_norm_rows import layer_norm_rows, scratch_of
from opbox_ops.cpu.onednn.library import library
library()
kernel = layer_norm_rows()
rng = np.random.default_rng(0)
gout, data, gamma = (rng.standard_normal(shape).astype(np.float32) for shape in ((500, 200), (500, 200), (200,)))
outputs = [np.empty_like(array) for array in (data, data, gamma, gamma)]
kernel.forward([data, gamma, gamma], [outputs[0], None, None], 1e-5)()
kernel.gradient([gout, data, gamma], outputs[1:], np.empty(scratch_of(500, 200), np.float32), 1e-5)()
sys.stdout.write("".join(array.tobytes().hex() for array in outputs))
"""


def test_bits_do_not_depend_on_threads() -> None:
    assert_same_bits(BITS)
