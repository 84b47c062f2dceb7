"""The gradient of a 1 x 1 convolution's data by a matrix product, beside the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.onednn.data_gradient import data_gradient
from opbox_ops.onednn.library import library
from opbox_ops.onednn.primitive import MemoryFormat
from tests.allocations import counted

WINDOW = ((1, 1), (1, 1), (0, 0))
BATCH, SIZE, CHANNELS, FILTERS = 2, (3, 2), 40, 24


def gradient_of(window=WINDOW, kernel=(1, 1), size=SIZE, dtype="float32", order=(0, 3, 1, 2)):
    shapes = [(BATCH, *size, count) for count in (FILTERS, CHANNELS)]
    if order is None:
        shapes = [(n, c, h, w) for n, h, w, c in shapes]
    gout, data = (MemoryFormat.plain(shape, dtype, order) for shape in shapes)
    return data_gradient(gout, MemoryFormat.plain((FILTERS, CHANNELS, *kernel), dtype), data, window)


@pytest.mark.skipif(library() is None, reason="the product is oneDNN's")
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
