"""The gradients of a convolution by products in blocks, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.compute import Array
from opbox_ops.cpu.algorithms import blocked_product
from opbox_ops.cpu.computes import by_images, product
from opbox_ops.cpu.computes import weight_gradient as weights
from opbox_ops.cpu.computes.blocked_gradients import BlockedDataGradient, BlockedWeightGradient
from opbox_ops.cpu.computes.data_gradient import WindowedGradient, data_gradient
from opbox_ops.cpu.computes.weight_gradient import weight_gradient
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from tests.allocations import counted
from tests.machine import needs_onednn, needs_vectors
from tests.ops.test_weight_gradient import CASES, expected

BATCH, SIZE = 3, (11, 9)
LAST = (0, 3, 1, 2)
WHOLE = by_images.MAX_PIECE_MULTIPLICATIONS


pytestmark = [needs_onednn, needs_vectors]


@pytest.fixture(autouse=True)
def _in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "has_fast_kernels", lambda: False)
    monkeypatch.setattr(weights, "MIN_WEIGHT_NUMBERS", 1)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def channels_last(shape: tuple[int, ...], dtype: str = "float32") -> MemoryFormat:
    return MemoryFormat.plain(shape, dtype, LAST)


def run_twice(run: Any) -> None:
    run()
    with counted() as sizes:
        run()
    assert not sizes


@pytest.mark.parametrize("last", [False, True], ids=["plain", "last"])
@pytest.mark.parametrize("most", [WHOLE, 20_000], ids=["whole", "pieces"])
@pytest.mark.parametrize("channels", [3, 8, 16])
@pytest.mark.parametrize("name", CASES)
def test_of_the_weight(monkeypatch: pytest.MonkeyPatch, name: str, channels: int, most: int, last: bool) -> None:
    monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", most)
    (kernel, stride, dilate, pad), filters = CASES[name], 10
    sizes = zip(SIZE, kernel, stride, dilate, pad, strict=True)
    out = tuple([(n + 2 * q - d * (k - 1) - 1) // s + 1 for n, k, s, d, q in sizes])
    data, gout = numbers(BATCH, *SIZE, channels), numbers(BATCH, *out, filters)
    window = stride, dilate, pad
    gradient = weight_gradient(
        channels_last(data.shape), channels_last(gout.shape), window, kernel, last, "jit:avx2", 1
    )
    assert isinstance(gradient, BlockedWeightGradient)
    shape = (filters, *kernel, channels) if last else (filters, channels, *kernel)
    weight, bias = np.full(shape, np.nan, np.float32), np.full(filters, np.nan, np.float32)
    temps = [np.full(temp.shape, 0x7F, temp.dtype) for temp in gradient.temps]
    run_twice(gradient.bind(temps, gout, data, weight, bias))
    # float32: sums of up to 300 products of numbers about 1
    plain = weight.transpose(0, 3, 1, 2) if last else weight
    np.testing.assert_allclose(plain, expected(data, gout, *CASES[name]), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(bias, gout.sum(axis=(0, 1, 2), dtype=np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("many", [1, 1 << 20], ids=["packed once", "packed for each block"])
@pytest.mark.parametrize("most", [WHOLE, 20_000, 2500 * 400 * 200], ids=["whole", "pieces", "a small last piece"])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize(("filters", "channels"), [(24, 48), (16, 16), (2500, 400)])
def test_of_the_data_of_1_x_1(
    monkeypatch: pytest.MonkeyPatch,
    filters: int,
    channels: int,
    stride: tuple[int, int],
    contiguous: bool,
    most: int,
    many: int,
) -> None:
    """Whether or not windows jump over data, which gets zeros there."""
    monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", most)
    monkeypatch.setattr(blocked_product, "MANY_ROWS", many)
    size = tuple([(n - 1) // s + 1 for n, s in zip(SIZE, stride, strict=True)])
    gout = numbers(2 * BATCH, *size, filters)[::2]
    gout = gout.copy() if contiguous else gout
    weight, data = numbers(filters, channels, 1, 1), (BATCH, *SIZE, channels)
    window = stride, (1, 1), (0, 0)
    of_weight = MemoryFormat.plain(weight.shape, "float32")
    gradient = data_gradient(channels_last(gout.shape), of_weight, channels_last(data), window, "jit:avx2")
    assert isinstance(gradient, BlockedDataGradient)
    out = np.full(data, np.nan, np.float32)
    run_twice(gradient.bind([np.full(temp.shape, 17, temp.dtype) for temp in gradient.temps], (gout, weight, out)))
    wanted = np.zeros(data)
    wanted[:, :: stride[0], :: stride[1]] = np.einsum("nhwf,fc->nhwc", gout.astype(np.float64), weight[:, :, 0, 0])
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5 * filters**0.5)  # float32: sums over filters


def test_of_few_channels() -> None:
    """By windows that are added up."""
    gout, weight, data = numbers(2, 5, 6, 50), numbers(50, 20, 5, 5), (2, 9, 10, 20)
    of_weight, window = MemoryFormat.plain(weight.shape, "float32"), ((1, 1), (1, 1), (0, 0))
    gradient = data_gradient(channels_last(gout.shape), of_weight, channels_last(data), window, "jit:avx2")
    assert isinstance(gradient, WindowedGradient)
    out = np.full(data, np.nan, np.float32)
    run_twice(gradient.bind([np.full(temp.shape, 17, temp.dtype) for temp in gradient.temps], (gout, weight, out)))
    wanted = np.zeros(data)
    for y, x in np.ndindex(5, 6):
        wanted[:, y : y + 5, x : x + 5] += np.einsum("nf,fchw->nhwc", gout[:, y, x].astype(np.float64), weight)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)  # float32: sums of up to 1,250 products about 1


def test_what_is_left_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights, channels that leave panels empty, arrays whose channels do not lie last, and other types."""
    monkeypatch.setattr(weights, "MIN_WEIGHT_NUMBERS", 128)
    data, window = (2, 8, 8, 16), ((1, 1), (1, 1), (0, 0))

    def of_weight(filters: int, order: Any = LAST, dtype: str = "float32") -> Any:
        memories = [MemoryFormat.plain(shape, dtype, order) for shape in (data, (2, 8, 8, filters))]
        return weight_gradient(*memories, window, (1, 1), False, "jit:avx2", 1)

    assert of_weight(8) is not None
    assert not isinstance(of_weight(7), BlockedWeightGradient)
    assert of_weight(8, order=None) is None
    assert of_weight(8, dtype="float16") is None

    def of_data(filters: int, channels: int) -> Any:
        memories = channels_last((2, 8, 8, filters)), MemoryFormat.plain((filters, channels, 1, 1), "float32")
        return data_gradient(*memories, channels_last((2, 8, 8, channels)), window, "jit:avx2")

    assert isinstance(of_data(16, 16), BlockedDataGradient)
    assert not isinstance(of_data(8, 16), BlockedDataGradient)
    assert not isinstance(of_data(64, 24), BlockedDataGradient)
