"""Convolutions and gradients of data by the matrix unit, and by its instructions in C, beside the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.compute import Array, Mode
from opbox_ops.cpu.algorithms import blocked_product as blocks
from opbox_ops.cpu.algorithms.blocked_product import TEXT, blocked_product, compiled
from opbox_ops.cpu.computes import split_convolution as module
from opbox_ops.cpu.computes.convolution import backward_data_kernel, forward_by_images
from opbox_ops.cpu.computes.relu_epilogue import with_relu
from opbox_ops.cpu.computes.split_convolution import SplitConvolution, split_convolution, split_data_gradient
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from tests.allocations import counted
from tests.machine import has_matrix_unit, needs_avx512_words, needs_onednn
from tests.matrix_unit_in_c import with_unit_in_c

from .convolution_layer import LAST, Layer

pytestmark = [needs_onednn, needs_avx512_words]


@pytest.fixture(params=["the unit", "in C"])
def unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit's products, where there is one, and those in C: beside few positions and of few filters too."""
    if request.param == "the unit" and not has_matrix_unit():
        pytest.skip("no matrix unit")
    functions = compiled(TEXT if request.param == "the unit" else with_unit_in_c(TEXT))
    monkeypatch.setattr(module, "blocked_kernel", lambda: functions)
    for name in ("MANY_SPLIT", "MIN_COLUMNS"):
        monkeypatch.setattr(module, name, 0)
    for name in ("MIN_SPLIT_MULTIPLICATIONS", "MIN_SPLIT_ROWS", "MIN_PACKED_SPLIT_ROWS"):
        monkeypatch.setattr(blocks, name, 0)
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: True)


LAYERS = [
    Layer((2, 12, 13, 32), 24),
    Layer((1, 9, 9, 64), 40, kernel=(5, 2), stride=(1, 3), pad=(2, 0)),
    Layer((3, 10, 7, 32), 17, stride=(1, 1), dilate=(2, 1), pad=(0, 2)),
]
BACKWARD = [
    Layer((2, 12, 13, 40), 32, stride=(1, 1)),
    Layer((1, 9, 9, 24), 64, kernel=(5, 2), stride=(1, 1), pad=(2, 0)),
    Layer((3, 10, 7, 32), 32, stride=(1, 1), dilate=(2, 1), pad=(0, 2)),
]


def scratch(kernel: SplitConvolution) -> list[Array]:
    return [np.full(temp.shape, np.nan, np.float32) for temp in kernel.temps]


def near(out: Array, expected: Array, terms: int) -> None:
    """float32: the rounding of sums of so many products about 1."""
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * terms**0.5)


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_forward(layer: Layer, bias: bool) -> None:
    """Written, added, rectified and normalized; with the weight packed in each run, and for the runs to come."""
    data, weight, _ = layer.arrays()
    more = np.random.default_rng(6).normal(size=layer.filters).astype(np.float32)
    added = MemoryFormat.plain(more.shape, "float32") if bias else None
    memories = (*layer.memories[:2], added, layer.memories[2], layer.window)
    padded, expected = layer.padded(), np.zeros(layer.out)
    layer.inside(padded)[...] = data
    for i, j, rows, columns in layer.places():
        expected += padded[:, rows, columns] @ weight[:, :, i, j].T.astype(np.float64)
    expected += more if bias else 0
    arrays = (data, weight, *([more] if bias else []))

    def computed(kernel: Any, start: Array, **norm: Array) -> Array:
        out = start.copy()
        run = kernel.bind(scratch(kernel), (*arrays[:2], out, *arrays[2:]), **norm)
        run()
        with counted() as allocated:
            np.copyto(out, start)
            run()
        assert not allocated
        other, temps = start.copy(), scratch(kernel)
        packed = kernel.packed(temps, (*arrays[:2], other, *arrays[2:]), Mode(parameters=1), **norm)
        packed()
        np.testing.assert_array_equal(other, out)
        return out

    kernel = split_convolution(*memories)
    assert kernel is not None
    assert kernel.implementation == "split"
    assert kernel.packs == ((1, 0),)
    empty = np.full(layer.out, np.nan, np.float32)
    out = computed(kernel, empty)
    near(out, expected, weight[0].size)
    adding = split_convolution(*memories, adds=True)
    near(computed(adding, np.full(layer.out, 2, np.float32)), expected + 2, weight[0].size)
    np.testing.assert_array_equal(computed(with_relu(kernel), empty), np.maximum(out, 0))
    norm = np.random.default_rng(7).normal(size=(3, kernel.sizes.padded)).astype(np.float32)
    mean, scale, shift = norm[:, : layer.filters]
    whole = np.maximum((out - mean) * scale + shift, 0)
    np.testing.assert_array_equal(computed(with_relu(kernel), empty, norm=norm), whole)


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("layer", BACKWARD, ids=str)
def test_the_gradient_of_data(layer: Layer) -> None:
    data, weight, gout = layer.arrays()
    kernel = split_data_gradient(layer.memories[2], layer.memories[1], layer.memories[0], layer.window)
    assert kernel is not None
    gdata = np.full(layer.data, np.nan, np.float32)
    kernel.bind(scratch(kernel), (gout, weight, gdata))()
    padded = layer.padded()
    for i, j, rows, columns in layer.places():
        padded[:, rows, columns] += gout @ weight[:, :, i, j].astype(np.float64)
    near(gdata, layer.inside(padded), layer.filters * weight[0, 0].size)
    assert data.shape == gdata.shape


@pytest.mark.usefixtures("unit")
def test_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    def kinds(layer: Layer, **others: MemoryFormat) -> list[bool]:
        """Whether there is a kernel: of forward, and of data's gradient."""
        data, weight, out = layer.memories
        data, weight, out = (others.get(n, m) for n, m in (("data", data), ("weight", weight), ("out", out)))
        forward = split_convolution(data, weight, None, out, layer.window)
        return [forward is not None, split_data_gradient(out, weight, data, layer.window) is not None]

    layer = Layer((2, 12, 13, 32), 64, stride=(1, 1))
    assert kinds(layer) == [True, True]
    assert kinds(Layer((2, 12, 13, 32), 64)) == [True, False]
    assert kinds(Layer((2, 12, 13, 40), 64, stride=(1, 1))) == [False, True]
    assert kinds(Layer((2, 12, 13, 32), 40, stride=(1, 1))) == [True, False]
    assert kinds(Layer((2, 12, 13, 32), 64, kernel=(1, 1), stride=(1, 1), pad=(0, 0))) == [False, False]
    assert kinds(Layer((2, 40, 40, 32), 64, kernel=(33, 1), stride=(1, 1), pad=(0, 0))) == [False, False]
    assert kinds(Layer((2, 12, 13, 32), 64, stride=(1, 1), pad=(3, 3))) == [True, False]
    half = MemoryFormat.plain(layer.data, "bfloat16", LAST)
    first = MemoryFormat.plain((2, 32, 12, 13), "float32")
    last = MemoryFormat.plain((64, 3, 3, 32), "float32", LAST)
    groups = MemoryFormat.plain((64, 16, 3, 3), "float32")
    for others in ({"data": half}, {"data": first}, {"weight": last}, {"weight": groups}):
        assert kinds(layer, **others) == [False, False]
    monkeypatch.setattr(module, "MANY_SPLIT", 2 * 12 * 13 + 1)
    assert kinds(layer) == [False, False]
    monkeypatch.setattr(module, "MANY_SPLIT", 0)
    monkeypatch.setattr(module, "MIN_COLUMNS", 65)
    assert kinds(layer) == [False, False]
    monkeypatch.setattr(module, "MIN_COLUMNS", 0)
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: False)
    assert kinds(layer) == [False, False]


def test_which_convolutions_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of windows that jump, and others that Winograd's algorithm does not take; of many positions and filters."""
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: True)
    monkeypatch.setattr(module, "blocked_kernel", blocked_product)

    def kind(layer: Layer) -> str:
        data, weight, out = layer.memories
        kernel = forward_by_images(data, weight, None, out, layer.window)
        return "" if kernel is None else kernel.implementation

    assert kind(Layer((1, 28, 28, 64), 64)) == "split"
    assert kind(Layer((8, 28, 28, 64), 63)) != "split"
    assert kind(Layer((8, 28, 28, 64), 64, stride=(1, 1))) != "split"
    assert kind(Layer((1, 28, 28, 64), 64, kernel=(5, 5), stride=(1, 1), pad=(2, 2))) != "split"
    assert kind(Layer((1, 28, 28, 64), 64, kernel=(7, 7), stride=(1, 1), pad=(3, 3))) == "split"
    assert kind(Layer((1, 14, 14, 512), 512)) != "split"
    layer = Layer((1, 28, 28, 64), 64, kernel=(7, 7), stride=(1, 1), pad=(3, 3))
    data, weight, out = layer.memories
    gradient = backward_data_kernel(out, weight, data, layer.window)
    assert gradient is not None
    assert gradient.implementation == "split"
