"""Convolutions of few positions by products over windows that are laid out, beside the definition in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from opbox_ops.compute import Array, Mode
from opbox_ops.cpu.algorithms.blocked_product import blocked_product
from opbox_ops.cpu.computes import window_products
from opbox_ops.cpu.computes.convolution import backward_data_kernel, backward_weight_kernel, forward_by_images
from opbox_ops.cpu.computes.window_products import data_by_windows, forward_by_windows, weight_by_windows
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from tests.allocations import counted
from tests.machine import needs_onednn, needs_vectors

from .convolution_layer import LAST, Layer
from .thread_counts import assert_same_bits

pytestmark = [needs_onednn, needs_vectors]


@pytest.fixture
def usual_limits() -> bool:
    """Whether few numbers and many positions are left to others, as they usually are."""
    return False


@pytest.fixture(autouse=True)
def _in_blocks(usual_limits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in blocks whatever the processor, and of few numbers and any positions too."""
    monkeypatch.setattr(window_products, "blocked_kernel", blocked_product)
    if not usual_limits:
        monkeypatch.setattr(window_products, "FILTERS", 0)
        monkeypatch.setattr(window_products, "MIN_WEIGHT_NUMBERS", 0)


LAYERS = [
    Layer((1, 7, 7, 16), 24),
    Layer((3, 6, 9, 5), 33, (3, 2), (2, 1), (1, 1), (1, 0)),
    Layer((2, 5, 5, 7), 8, (1, 3), (1, 1), (1, 2), (0, 2)),
    Layer((1, 9, 8, 3), 40, (5, 4), (3, 2), (1, 2), (2, 3)),
    Layer((2, 11, 11, 4), 6, (2, 2), (5, 5), (1, 1), (0, 0)),
    Layer((1, 14, 14, 64), 96),
]
SIZES = pytest.mark.parametrize("layer", LAYERS, ids=str)


def by_definition(layer: Layer) -> tuple[Array, Array, Array]:
    """Out, and the gradients of data and weight, in float64."""
    data, weight, gout = (array.astype(np.float64) for array in layer.arrays())
    above, before = layer.pad
    padded = np.pad(data, ((0, 0), (above, above), (before, before), (0, 0)))
    height, width = layer.out[1:3]
    out, gpadded, gweight = np.zeros(layer.out), np.zeros_like(padded), np.zeros_like(weight)
    for i, j in itertools.product(*map(range, layer.kernel)):
        y, x = i * layer.dilate[0], j * layer.dilate[1]
        (down, across) = layer.stride
        part = np.s_[:, y : y + (height - 1) * down + 1 : down, x : x + (width - 1) * across + 1 : across]
        out += padded[part] @ weight[:, :, i, j].T
        gpadded[part] += gout @ weight[:, :, i, j]
        gweight[:, :, i, j] = np.einsum("nhwk,nhwc->kc", gout, padded[part])
    return out, gpadded[:, above : above + layer.data[1], before : before + layer.data[2]], gweight


def scratch(kernel: Any) -> list[Array]:
    """Temporaries that hold garbage."""
    return [np.full(temp.shape, np.nan, temp.dtype) for temp in kernel.temps]


def close(result: Array, expected: Array) -> None:
    """float32: the rounding of sums of a few hundred products about 1."""
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * expected.std() + 1e-5)


def without_allocation(run: Any) -> None:
    with counted() as allocated:
        run()
    assert not allocated


@SIZES
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("adds", [True, False], ids=["added", "written"])
def test_a_convolution(layer: Layer, bias: bool, adds: bool) -> None:
    data, weight, before = layer.arrays()
    added = np.linspace(-1, 1, layer.filters, dtype=np.float32)
    d, w, o = layer.memories
    memory = MemoryFormat.plain(added.shape, "float32") if bias else None
    kernel = forward_by_windows(d, w, memory, o, layer.window, adds)
    assert kernel is not None
    outs = [before.copy() if adds else np.full(layer.out, np.nan, np.float32) for _ in range(2)]
    rest = [added] if bias else []
    without_allocation(kernel.bind(scratch(kernel), (data, weight, outs[0], *rest)))
    close(outs[0], by_definition(layer)[0] + (added if bias else 0) + (before if adds else 0))
    kernel.packed(scratch(kernel), (data, weight, outs[1], *rest), Mode(parameters=1))()
    np.testing.assert_array_equal(*outs)


@SIZES
def test_the_gradient_of_data(layer: Layer) -> None:
    _, weight, gout = layer.arrays()
    d, w, o = layer.memories
    kernel = data_by_windows(o, w, d, layer.window)
    assert kernel is not None
    gdata = np.full(layer.data, np.nan, np.float32)
    without_allocation(kernel.bind(scratch(kernel), (gout, weight, gdata)))
    close(gdata, by_definition(layer)[1])


@SIZES
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_gradient_of_the_weight(layer: Layer, bias: bool) -> None:
    data, _, gout = layer.arrays()
    d, w, o = layer.memories
    memory = MemoryFormat.plain((layer.filters,), "float32") if bias else None
    kernel = weight_by_windows(o, d, w, memory, layer.window)
    assert kernel is not None
    gweight, gbias = np.full(layer.weight, np.nan, np.float32), np.full(layer.filters, np.nan, np.float32)
    without_allocation(kernel.bind(scratch(kernel), (gout, data, gweight, *([gbias] if bias else []))))
    close(gweight, by_definition(layer)[2])
    if bias:
        close(gbias, gout.sum((0, 1, 2), np.float64))


def taken(
    layer: Layer, *, dtype: str = "float32", order: tuple[int, ...] | None = LAST, weight_format: Any = None
) -> list[bool]:
    """Whether forward, data's gradient and weight's are computed so."""
    data, out = (
        MemoryFormat.plain(shape if order else [shape[i] for i in LAST], dtype, order)
        for shape in (layer.data, layer.out)
    )
    weight = MemoryFormat.plain(layer.weight, dtype) if weight_format is None else weight_format
    kernels = (
        forward_by_images(data, weight, None, out, layer.window),
        backward_data_kernel(out, weight, data, layer.window),
        backward_weight_kernel(out, data, weight, layer.window),
    )
    return [kernel is not None and kernel.implementation == window_products.IMPLEMENTATION for kernel in kernels]


@pytest.mark.parametrize("usual_limits", [True])
def test_what_it_computes(usual_limits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    everything, nothing = [True] * 3, [False] * 3
    layer = Layer((1, 14, 14, 256), 256)
    assert taken(layer) == everything
    assert taken(Layer((3, 14, 14, 256), 256)) == nothing, "positions are many"
    assert taken(Layer((1, 14, 14, 128), 256)) == nothing, "the weight is small"
    assert taken(Layer((1, 7, 7, 256), 256, stride=(1, 1))) == nothing, "Winograd's algorithm takes it"
    assert taken(Layer((1, 14, 14, 1024), 1024, (1, 1), pad=(0, 0))) == nothing
    assert taken(layer, order=None) == nothing
    assert taken(layer, dtype="bfloat16") == nothing
    last = MemoryFormat.plain((256, 3, 3, 256), "float32", LAST)
    assert taken(layer, weight_format=last) == nothing
    monkeypatch.setattr(window_products, "blocked_kernel", lambda: None)
    assert taken(layer) == nothing


THREADS_SCRIPT = """
import sys
import numpy as np
from opbox_ops.cpu.algorithms.blocked_product import blocked_product
from opbox_ops.cpu.computes import window_products as w
from tests.ops.test_window_products import LAYERS, scratch
w.blocked_kernel, w.FILTERS, w.MIN_WEIGHT_NUMBERS = blocked_product, 0, 0
layer = LAYERS[5]
data, weight, gout = layer.arrays()
d, k, o = layer.memories
results = [np.empty(shape, "f4") for shape in (layer.out, layer.data, layer.weight)]
kernels = (
    w.forward_by_windows(d, k, None, o, layer.window),
    w.data_by_windows(o, k, d, layer.window),
    w.weight_by_windows(o, d, k, None, layer.window),
)
arrays = (data, weight, results[0]), (gout, weight, results[1]), (gout, data, results[2])
for kernel, of_kernel in zip(kernels, arrays):
    kernel.bind(scratch(kernel), of_kernel)()
sys.stdout.write("".join(result.tobytes().hex() for result in results))
"""


def test_threads_give_the_bits_of_one() -> None:
    assert_same_bits(THREADS_SCRIPT)
