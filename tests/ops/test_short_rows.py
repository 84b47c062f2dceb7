"""Gradients of weights whose windows have short rows, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import Array
from opbox_ops.cpu.algorithms.short_rows import LONGEST, short_rows
from opbox_ops.cpu.algorithms.window_sizes import WindowSizes
from opbox_ops.cpu.computes import by_images
from opbox_ops.cpu.computes import short_rows as computes
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from opbox_service.executor.passes import PASSES
from tests.allocations import counted
from tests.executor.test_parts import compiled
from tests.machine import needs_onednn, needs_vectors

from .thread_counts import assert_same_bits

pytestmark = [needs_onednn, needs_vectors]

# batch, height, width, channels; filters; kernel, stride, rows skipped, pad
LAYERS: list[Any] = [
    ((2, 21, 18, 3), 64, (7, 7), (2, 2), 1, (3, 3)),
    ((2, 9, 11, 3), 33, (3, 3), (1, 1), 1, (1, 1)),
    ((1, 12, 9, 1), 20, (5, 5), (1, 1), 1, (0, 0)),
    ((3, 7, 8, 8), 17, (3, 3), (1, 2), 1, (1, 0)),
    ((1, 10, 30, 4), 5, (1, 6), (3, 1), 1, (0, 5)),
    ((1, 14, 9, 2), 1, (3, 2), (1, 1), 3, (2, 1)),
    ((2, 2, 40, 1), 9, (2, 24), (1, 3), 1, (1, 2)),
    ((5, 1, 1, 1), 3, (1, 1), (1, 1), 1, (0, 0)),
]
EVERY = pytest.mark.parametrize("layer", LAYERS, ids=str)
LAST = (0, 3, 1, 2)


def windows_of(layer: Any) -> WindowSizes:
    data, _, kernel, stride, skipped, pad = layer
    reach = (kernel[0] - 1) * skipped + 1, kernel[1]
    out = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(data[1:3], pad, reach, stride, strict=True)]
    return WindowSizes(data, (out[0], out[1]), kernel, stride, (skipped, 1), pad)


def arrays(layer: Any) -> tuple[Array, Array]:
    """A gradient of out, and data."""
    rng, windows = np.random.default_rng(0), windows_of(layer)
    gout = rng.normal(size=(windows.data[0], *windows.out, layer[1])).astype(np.float32)
    return gout, rng.normal(size=windows.data).astype(np.float32)


def by_definition(layer: Any, gout: Array, data: Array) -> Array:
    """(filters, channels, *kernel)"""
    windows = windows_of(layer)
    (above, before), (down, right), (height, width) = windows.pad, windows.stride, windows.out
    padded = np.pad(data.astype(np.float64), ((0, 0), (above, above), (before, before), (0, 0)))
    gweight = np.empty((layer[1], windows.data[3], *windows.kernel))
    for i, j in np.ndindex(windows.kernel):
        top = i * windows.dilate[0]
        part = padded[:, top : top + (height - 1) * down + 1 : down, j : j + (width - 1) * right + 1 : right]
        gweight[:, :, i, j] = np.einsum("nyxf,nyxc->fc", gout, part)
    return gweight


def near(result: Array, expected: Array, layer: Any) -> None:
    """float32: the rounding of sums of so many products about 1."""
    terms = layer[0][0] * np.prod(windows_of(layer).out)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6 * float(terms) ** 0.5)


@EVERY
@pytest.mark.parametrize("last", [False, True], ids=["OIHW", "OHWI"])
def test_the_definition(layer: Any, last: bool) -> None:
    kernel, windows = short_rows(), windows_of(layer)
    assert kernel is not None
    assert windows.kernel[1] * windows.data[3] <= LONGEST
    gout, data = arrays(layer)
    expected = by_definition(layer, gout, data)
    gweight = np.full(expected.shape, np.nan, np.float32)
    if last:
        gweight = np.full((layer[1], *windows.kernel, windows.data[3]), np.nan, np.float32).transpose(LAST)
    scratch = [np.full(size, np.nan, np.float32) for size in kernel.scratch(windows, layer[1])]
    run = kernel.gradient(windows, (gout, data, gweight), (scratch[0], scratch[1]))
    with counted() as allocated:
        run()
    assert not allocated
    near(gweight, expected, layer)


@pytest.mark.parametrize("place", [(0, 0), (3, 17), (20, 5)])
def test_what_is_not_a_number_stays_in_its_taps(place: tuple[int, int]) -> None:
    """A NaN at the edge of a row is in the windows over it alone, not in the vectors' ends."""
    kernel, layer = short_rows(), LAYERS[0]
    assert kernel is not None
    windows, (gout, data) = windows_of(layer), arrays(layer)
    data[0, place[0], place[1], 1] = np.nan
    gweight = np.zeros((64, 3, 7, 7), np.float32)
    scratch = [np.zeros(size, np.float32) for size in kernel.scratch(windows, 64)]
    kernel.gradient(windows, (gout, data, gweight), (scratch[0], scratch[1]))()
    np.testing.assert_array_equal(np.isnan(gweight), np.isnan(by_definition(layer, gout, data)))
    assert not np.isnan(gweight[:, [0, 2]]).any()


THREADS_SCRIPT = """
import sys
import numpy as np
from opbox_ops.cpu.algorithms.short_rows import short_rows
from opbox_ops.cpu.algorithms.window_sizes import WindowSizes
kernel, rng = short_rows(), np.random.default_rng(0)
windows = WindowSizes((1, 40, 41, 3), (20, 21), (7, 7), (2, 2), (1, 1), (3, 3))
gout, data = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 20, 21, 64), (1, 40, 41, 3)))
gweight = np.empty((64, 3, 7, 7), np.float32)
scratch = [np.empty(size, np.float32) for size in kernel.scratch(windows, 64)]
kernel.gradient(windows, (gout, data, gweight), tuple(scratch))()
sys.stdout.write(gweight.tobytes().hex())
"""


def test_threads_give_the_bits_of_one() -> None:
    assert_same_bits(THREADS_SCRIPT)


def memories(shape: tuple[int, ...], filters: int, kernel: int, dtype: str = "float32", last: bool = True) -> Any:
    """Of gout, data and weight, of a convolution without padding and stride."""
    batch, height, width, channels = shape
    out = batch, height - kernel + 1, width - kernel + 1, filters
    shapes = [size if last else (size[0], size[3], *size[1:3]) for size in (out, shape)]
    order = LAST if last else None
    weight = MemoryFormat.plain((filters, channels, kernel, kernel), dtype)
    return *[MemoryFormat.plain(size, dtype, order) for size in shapes], weight


def test_which_gradients_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few channels, with long rows of out, in float32, where oneDNN has no kernels for AVX-512."""
    monkeypatch.setattr(computes, "has_fast_kernels", lambda: False)
    window = (1, 1), (1, 1), (0, 0)

    def chosen(*sizes: Any, window: Any = window, **kinds: Any) -> bool:
        gout, data, weight = memories(*sizes, **kinds)
        return computes.short_rows_gradient(gout, data, weight, None, window) is not None

    assert chosen((1, 70, 70, 3), 64, 3)
    assert chosen((1, 70, 70, 8), 64, 3)
    assert not chosen((1, 70, 70, 9), 64, 3)
    assert not chosen((1, 70, 70, 3), 48, 3)
    assert not chosen((1, 70, 70, 3), 64, 3, last=False)
    assert not chosen((1, 70, 70, 3), 64, 3, dtype="bfloat16")
    assert not chosen((1, 70, 70, 3), 64, 3, window=((1, 1), (1, 2), (0, 0)))
    monkeypatch.setattr(computes, "has_fast_kernels", lambda: True)
    assert not chosen((1, 70, 70, 3), 64, 3)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_network(bias: bool, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training's gradients are those of oneDNN's kernel; a long batch comes in pieces."""
    monkeypatch.setattr(computes, "has_fast_kernels", lambda: False)
    symbol = mx.sym.Convolution(
        mx.sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=16, no_bias=not bias, name="first"
    )
    symbol = mx.sym.Convolution(mx.sym.relu(symbol), kernel=(3, 3), num_filter=8, no_bias=True, name="second")
    shapes = {"data": (3, 3, 8, 10)}
    results = []
    for long in (1, 1 << 30):
        monkeypatch.setattr(computes, "LONG", long)
        with monkeypatch.context() as context:
            if pieces > 1:
                context.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", 3 * 9 * 16 * 80 + 1)
            executor, grads = compiled(mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(symbol))), shapes, PASSES)
        executor.forward(is_train=True)
        executor.backward()
        results.append({name: grads[name].copy() for name in grads})
    assert not np.array_equal(results[0]["first_weight"], results[1]["first_weight"])
    for name, array in results[1].items():
        scale = float(np.abs(array).max())
        # float32: sums of 240 products in another order
        np.testing.assert_allclose(results[0][name] / scale, array / scale, rtol=1e-5, atol=2e-6, err_msg=name)
