"""The gradient of a convolution's data by matrix products, beside the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.cache import CACHE_BYTES
from opbox_ops.cpu.algorithms import window_sums
from opbox_ops.cpu.computes import product
from opbox_ops.cpu.computes.data_gradient import WindowedGradient, data_gradient
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from tests.allocations import counted
from tests.machine import needs_onednn
from tests.switches import set_c_kernels

OWN = "brg_fwd:avx512_core"
WINDOW = ((1, 1), (1, 1), (0, 0))
BATCH, SIZE, CHANNELS, FILTERS = 2, (3, 2), 40, 24


@pytest.fixture(autouse=True)
def _of_onednn(monkeypatch):
    """Products in blocks are tested in `test_blocked_gradients.py`."""
    monkeypatch.setattr("opbox_ops.cpu.computes.data_gradient.blocked_kernel", lambda: None)


def gradient_of(window=WINDOW, kernel=(1, 1), size=SIZE, dtype="float32", order=(0, 3, 1, 2)):
    shapes = [(BATCH, *size, count) for count in (FILTERS, CHANNELS)]
    if order is None:
        shapes = [(n, c, h, w) for n, h, w, c in shapes]
    gout, data = (MemoryFormat.plain(shape, dtype, order) for shape in shapes)
    return data_gradient(gout, MemoryFormat.plain((FILTERS, CHANNELS, *kernel), dtype), data, window, OWN)


@needs_onednn
@pytest.mark.parametrize("contiguous", [True, False])
def test_the_definition(contiguous):
    rng = np.random.default_rng(1)
    gout = rng.normal(size=(2 * BATCH, *SIZE, FILTERS)).astype(np.float32)
    gout = gout[:BATCH].copy() if contiguous else gout[::2]
    weight = rng.normal(size=(FILTERS, CHANNELS, 1, 1)).astype(np.float32)
    out = np.full((BATCH, *SIZE, CHANNELS), np.nan, np.float32)
    gradient = gradient_of()
    assert not gradient.temps
    run = gradient.bind((), (gout, weight, out))
    run()
    with counted() as sizes:
        run()
    assert not sizes
    expected = np.einsum("nhwf,fc->nhwc", gout.astype(np.float64), weight[:, :, 0, 0])
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)  # float32: sums of 24 products about 1


def test_where_onednn_has_the_better_kernel():
    """By other windows, of arrays that lie otherwise or are larger than the weight, and in other types."""
    assert gradient_of() is not None
    assert gradient_of(window=((2, 2), (1, 1), (0, 0))) is None
    assert gradient_of(window=((1, 1), (1, 1), (1, 1))) is None
    assert gradient_of(kernel=(1, 3)) is None
    assert gradient_of(size=(30, 20)) is None
    assert gradient_of(dtype="float16") is None
    assert gradient_of(order=None) is None


def windowed(kernel=(3, 3), stride=(1, 1), channels=5, filters=16, size=(5, 6), order=(0, 3, 1, 2), **window):
    """The gradient by windows for these shapes, and those of gout and data as they lie."""
    height, width = (s * (n - 1) + k for n, s, k in zip(size, stride, kernel, strict=True))
    gout, data = (3, *size, filters), (3, height, width, channels)
    weight = MemoryFormat.plain((filters, channels, *kernel), "float32")
    if order is None:
        weight = MemoryFormat.plain((filters, *kernel, channels), "float32", (0, 3, 1, 2))
    memories = [MemoryFormat.plain(shape, "float32", (0, 3, 1, 2)) for shape in (gout, data)]
    geometry = (stride, window.get("dilate", (1, 1)), window.get("pad", (0, 0)))
    own = window.get("own", OWN)
    return data_gradient(memories[0], weight, memories[1], geometry, own), gout, data


def by_windows(monkeypatch, mode, cache_bytes=CACHE_BYTES, **shapes):
    """What it computes, and the definition in float64."""
    set_c_kernels(monkeypatch, mode)
    monkeypatch.setattr(window_sums, "_KERNEL", window_sums.new_kernel())
    monkeypatch.setattr("opbox_ops.cpu.computes.data_gradient.CACHE_BYTES", cache_bytes)
    gradient, gout_shape, data_shape = windowed(**shapes)
    assert isinstance(gradient, WindowedGradient)
    rng = np.random.default_rng(2)
    gout, weight = (
        rng.normal(size=shape).astype(np.float32) for shape in (gout_shape, (gout_shape[3], *gradient.weight.shape[1:]))
    )
    stored = weight if shapes.get("order", ()) is not None else weight.transpose(0, 2, 3, 1).copy()
    out = np.full(data_shape, np.nan, np.float32)
    temps = [np.full(temp.shape, 17, temp.dtype) for temp in gradient.temps]
    run = gradient.bind(temps, (gout, stored, out))
    run()
    if mode != "now":
        with counted() as sizes:
            run()
        assert not sizes
    expected = np.zeros(data_shape)
    (kh, kw), (sh, sw) = gradient.kernel, gradient.stride
    for y in range(gout_shape[1]):
        for x in range(gout_shape[2]):
            share = np.einsum("nf,fchw->nhwc", gout[:, y, x].astype(np.float64), weight)
            expected[:, y * sh : y * sh + kh, x * sw : x * sw + kw] += share
    return out, expected


@needs_onednn
@pytest.mark.parametrize(
    "shapes",
    [{}, {"kernel": (5, 2), "channels": 20}, {"stride": (2, 1)}, {"stride": (3, 4)}, {"order": None}],
    ids=str,
)
def test_windows_are_added_up(monkeypatch, folder, shapes):
    """By NumPy and by the C kernel, to the same bits; all images at once, or one by one.

    Without AVX-512, with which alone a plan computes this, oneDNN's sums in a product depend on the number of rows.
    """
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))
    results = [
        by_windows(monkeypatch, mode, cache_bytes, **shapes)
        for mode in ("0", "now")
        for cache_bytes in (CACHE_BYTES, 1)
    ]
    for k, (out, expected) in enumerate(results):
        # float32: sums of 16 filters and some taps, products about 1
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-5)
        np.testing.assert_array_equal(out, results[0 if product.has_fast_kernels() else k % 2][0])


def test_where_windows_are_not_for_products():
    """Channels that fill vectors, many channels, few filters or taps, padding, and what skips data."""
    assert isinstance(windowed()[0], WindowedGradient)
    for shapes in (
        {"channels": 16},
        {"channels": 40},
        {"filters": 8},
        {"kernel": (2, 2)},
        {"pad": (1, 1)},
        {"dilate": (2, 2)},
        {"own": "jit:avx2"},
    ):
        assert windowed(**shapes)[0] is None
