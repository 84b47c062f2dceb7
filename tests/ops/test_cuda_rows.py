"""Kernels for rows of several blocks and slices, on the emulator: the reference's values, and nothing beyond arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbox_ops.backend import Backend, backend_for
from opbox_ops.compute import ArraySpec, OpContext
from opbox_ops.cuda.bias import bias_gradient, bias_parts
from opbox_ops.cuda.channel_slices import ChannelSlices
from opbox_ops.cuda.division import divisors
from opbox_ops.cuda.row_blocks import RowBlocks
from tests.cases.case import Case

from .harness import Run
from .long_rows import LONG_ROWS
from .test_cuda_kernels import Emulated, compare_with_the_reference

PROCESSORS = 132
"""Those of an H100."""


@pytest.mark.compiler
@pytest.mark.parametrize("case", LONG_ROWS, ids=[f"{case.op}-{k}" for k, case in enumerate(LONG_ROWS)])
def test_long_rows_have_the_references_values(case: Case, folder: Path) -> None:
    compare_with_the_reference(case, folder)


@pytest.mark.compiler
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 70, 70), (40, 300, 2)])
def test_the_gradient_of_a_bias_of_channels_second(shape: tuple[int, ...], folder: Path) -> None:
    gout = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    temp = bias_parts(ArraySpec(shape, gout.dtype))
    parts, gbias = np.full(temp.shape, 7, temp.dtype), np.full(shape[1], 7, np.float32)
    context = OpContext(Emulated(folder), None, None, backend_for("cpu"))
    bias_gradient(context, gout, parts, gbias)()
    total = gout.sum((0, *range(2, len(shape))), dtype=np.float64)
    np.testing.assert_allclose(gbias, total, rtol=1e-5, atol=1e-4)  # sums of 9,800 numbers


@pytest.mark.parametrize(
    ("outer", "n", "inner"),
    [
        (1, 1 << 20, 2),
        (8, 1000, 4096),
        (1 << 20, 10, 1),
        (4096, 768, 1),
        (3, 1 << 22, 1),
        (32, 3136, 256),
        (1, 4096, 768),
    ],
)
def test_rows_keep_a_device_busy(outer: int, n: int, inner: int) -> None:
    blocks = RowBlocks(outer, n, inner)
    assert blocks.row_blocks * blocks.slices >= PROCESSORS
    assert n / (blocks.lanes * blocks.slices) <= 4096
    assert blocks.width * blocks.lanes <= 256
    assert blocks.slices * blocks.lanes <= n


@pytest.mark.parametrize("number", [1, 2, 3, 7, 10, 641, 1 << 16, (1 << 30) + 1, (1 << 31) - 1])
def test_a_multiplication_divides(number: int) -> None:
    factor, shift = (int(np.uint32(value)) for value in divisors(number))
    for n in {
        0,
        1,
        number - 1,
        number,
        min(2 * number - 1, (1 << 31) - 1),
        (1 << 31) - 1,
        ((1 << 31) - 1) // number * number,
    }:
        assert ((n * factor >> 32) + n) >> shift == n // number


@pytest.mark.parametrize("sizes", [(32, 3, 224 * 224), (32, 64, 112 * 112), (128, 2048, 49), (64, 1, 28 * 28 * 64)])
def test_channels_keep_a_device_busy(sizes: tuple[int, int, int]) -> None:
    slices = ChannelSlices(*sizes)
    assert slices.channels * slices.slices >= PROCESSORS
    assert slices.before * slices.after / slices.slices / 512 <= 4096


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_rows_far_from_zero_are_normalised_to_their_last_digits(backend: Backend) -> None:
    data = np.random.default_rng(0).normal(10_000, 1, (50, 768)).astype(np.float32)
    arrays = {"data": data, "gamma": np.ones(768, np.float32), "beta": np.zeros(768, np.float32)}
    case = Case("LayerNorm", {name: array.shape for name, array in arrays.items()})
    out = backend.get(Run(case, "float32", backend, arrays).forward()[0])
    wide = data.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, expected, atol=4e-6)  # some roundings of numbers up to 4


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("case", LONG_ROWS, ids=[f"{case.op}-{k}" for k, case in enumerate(LONG_ROWS)])
def test_two_runs_on_a_gpu_have_the_same_bits(case: Case, backend: Backend) -> None:
    runs = [Run(case, "float32", place) for place in (backend, backend, backend_for("cpu"))]
    results = []
    for run in runs:
        run.forward()
        if run.wanted():
            run.backward()
        results.append([run.backend.get(array) for call in run.calls for array in call.outputs])
    for first, second, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, expected, rtol=case.rtol or 0, atol=case.atol or 0)
