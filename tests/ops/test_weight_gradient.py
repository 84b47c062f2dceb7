"""The gradient of a convolution's weight by matrix products, beside the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.cpu.computes import weight_gradient as module
from opbox_ops.cpu.computes.weight_gradient import weight_gradient
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from tests.allocations import counted

CASES = {
    "1x1": ((1, 1), (1, 1), (1, 1), (0, 0)),
    "1x1, stride 2": ((1, 1), (2, 2), (1, 1), (0, 0)),
    "3x3, padded": ((3, 3), (1, 1), (1, 1), (1, 1)),
    "3x3, stride 2, padded": ((3, 3), (2, 2), (1, 1), (1, 1)),
    "3x2, no padding": ((3, 2), (1, 1), (1, 1), (0, 0)),
    "5x3, more padding than the data is read": ((5, 3), (3, 2), (1, 1), (2, 2)),
    "3x3, dilated": ((3, 3), (1, 2), (2, 1), (2, 1)),
}
CHANNELS, FILTERS, BATCH, SIZE = 8, 5, 3, (11, 9)
NEAR = {"rtol": 1e-4, "atol": 1e-4}
"""float32: sums of up to 300 products of numbers about 1."""


@pytest.fixture(autouse=True)
def _of_onednn(monkeypatch):
    """Products in blocks are tested in `test_blocked_gradients.py`."""
    monkeypatch.setattr(module, "blocked_kernel", lambda: None)
    monkeypatch.setattr(module, "MIN_WEIGHT_NUMBERS", 1)


def expected(data, gout, kernel, stride, dilate, pad):
    padded = np.pad(data.astype(np.float64), ((0, 0), (pad[0],) * 2, (pad[1],) * 2, (0, 0)))
    _, height, width, _ = gout.shape
    weight = np.zeros((gout.shape[3], data.shape[3], *kernel))
    for i, j in np.ndindex(*kernel):
        rows = slice(i * dilate[0], i * dilate[0] + (height - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilate[1], j * dilate[1] + (width - 1) * stride[1] + 1, stride[1])
        weight[:, :, i, j] = np.einsum("nhwf,nhwc->fc", gout, padded[:, rows, columns])
    return weight


def gradient_of(window, last=False, own="jit:avx2", channels=CHANNELS, threads=1):
    kernel, stride, dilate, pad = window
    sizes = zip(SIZE, kernel, stride, dilate, pad, strict=True)
    out = tuple((n + 2 * q - d * (k - 1) - 1) // s + 1 for n, k, s, d, q in sizes)
    shapes = (BATCH, *SIZE, channels), (BATCH, *out, FILTERS)
    memories = [MemoryFormat.plain(shape, "float32", (0, 3, 1, 2)) for shape in shapes]
    return weight_gradient(*memories, (stride, dilate, pad), kernel, last, own, threads), shapes


@pytest.mark.parametrize("last", [False, True], ids=["plain", "last"])
@pytest.mark.parametrize("chunk", [1, 6000, 4 << 20], ids=["rows", "images", "whole"])
@pytest.mark.parametrize("name", CASES)
def test_the_definition(name, chunk, last, monkeypatch):
    """In chunks of single rows, of some images, and in one."""
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    gradient, (of_data, of_out) = gradient_of(CASES[name], last)
    rng = np.random.default_rng(1)
    data, gout = (rng.normal(size=shape).astype(np.float32) for shape in (of_data, of_out))
    kernel = CASES[name][0]
    weight = np.full((FILTERS, *kernel, CHANNELS) if last else (FILTERS, CHANNELS, *kernel), np.nan, np.float32)
    bias = np.full(FILTERS, np.nan, np.float32)
    temps = [np.full(temp.shape, 0x7F, temp.dtype) for temp in gradient.temps]
    run = gradient.bind(temps, gout, data, weight, bias)
    run()
    with counted() as sizes:
        run()
    assert not sizes
    plain = weight.transpose(0, 3, 1, 2) if last else weight
    np.testing.assert_allclose(plain, expected(data, gout, *CASES[name]), **NEAR)
    np.testing.assert_allclose(bias, gout.sum(axis=(0, 1, 2), dtype=np.float64), **NEAR)


def test_arrays_that_are_not_contiguous():
    gradient, (of_data, of_out) = gradient_of(CASES["3x3, padded"])
    rng = np.random.default_rng(2)
    data = rng.normal(size=(*of_data[:3], 2 * CHANNELS)).astype(np.float32)[..., ::2]
    gout = rng.normal(size=(2 * BATCH, *of_out[1:])).astype(np.float32)[::2]
    weight = np.empty((FILTERS, CHANNELS, 3, 3), np.float32)
    gradient.bind([np.empty(temp.shape, temp.dtype) for temp in gradient.temps], gout, data, weight, None)()
    np.testing.assert_allclose(weight, expected(data, gout, *CASES["3x3, padded"]), **NEAR)


def test_where_onednn_has_the_better_kernel():
    """With tiles, where there are few channels, and with AVX-512 by images that stay in the cache."""
    assert gradient_of(CASES["1x1"])[0] is not None
    assert gradient_of(CASES["1x1"], own="brgconv_bwd_w:avx512_core_amx")[0] is None
    assert gradient_of(CASES["1x1"], channels=3)[0] is None
    avx512 = "jit:avx512_core"
    assert gradient_of(CASES["3x3, padded"], own=avx512)[0] is None
    assert gradient_of(CASES["3x3, stride 2, padded"], own=avx512)[0] is not None
    assert gradient_of(CASES["1x1"], own=avx512)[0] is not None
    assert of_images((1, 64, 112, 112), avx512) is not None
    assert of_images((8, 64, 28, 28), avx512) is None
    assert of_images((1, 512, 7, 7), avx512) is not None


def test_small_weights_stay_with_onednn(monkeypatch):
    monkeypatch.setattr(module, "MIN_WEIGHT_NUMBERS", 9 * 64 * 64)
    assert of_images((1, 64, 14, 14), "jit:avx2") is not None
    monkeypatch.setattr(module, "MIN_WEIGHT_NUMBERS", 9 * 64 * 64 + 1)
    assert of_images((1, 64, 14, 14), "jit:avx2") is None


def test_several_threads_share_onednns_kernel_and_not_the_windows():
    avx512 = "jit:avx512_core"
    for shape in ((1, 64, 112, 112), (1, 512, 7, 7)):
        assert of_images(shape, avx512, threads=2) is None
        assert of_images(shape, "jit:avx2", threads=2) is not None
    assert gradient_of(CASES["3x3, stride 2, padded"], own=avx512, threads=2)[0] is None
    assert gradient_of(CASES["1x1"], own=avx512, threads=2)[0] is not None


def of_images(shape, own, threads=1):
    """The gradient of 3 x 3 windows, padded, over data and out of one shape, in oneDNN's order, channels last."""
    batch, channels, *size = shape
    memory = MemoryFormat.plain((batch, *size, channels), "float32", (0, 3, 1, 2))
    return weight_gradient(memory, memory, ((1, 1), (1, 1), (1, 1)), (3, 3), False, own, threads)
