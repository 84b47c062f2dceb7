"""Convolution by Winograd's algorithm and its gradients, beside the definition in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import Array, Mode
from opbox_ops.cpu.algorithms import winograd as tiles
from opbox_ops.cpu.algorithms.winograd import TEXT
from opbox_ops.cpu.algorithms.winograd import compiled as compiled_text
from opbox_ops.cpu.computes import by_images, convolution, winograd_convolution
from opbox_ops.cpu.computes.relu_epilogue import with_relu
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from opbox_service.executor.passes import PASSES
from tests.allocations import counted
from tests.executor.test_parts import compiled
from tests.machine import needs_onednn, needs_vectors
from tests.switches import switch, switch_off
from tests.vectors_of_8 import with_vectors_of_8
from tests.vectors_of_16 import with_vectors_of_16

from .thread_counts import assert_same_bits

pytestmark = [needs_onednn, needs_vectors]

LAST = (0, 3, 1, 2)
SMALL = "few tiles at a time"
WHOLE = "the whole weight transformed"
OWN = "blocks of a thread's own"
PACKABLE = "packable"


@pytest.fixture
def tiling() -> str:
    """How tiles are put together, unless a test is run for some of these ways."""
    return ""


@pytest.fixture
def worth() -> float | None:
    """How much longer than oneDNN's kernel the algorithm may take; None for the usual limit."""
    return 1e9


@pytest.fixture(autouse=True)
def _of_every_size(tiling: str, worth: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it would take is computed; with SMALL five tiles at a time, and so on."""
    if worth is not None:
        monkeypatch.setattr(winograd_convolution, "WORTH", worth)
    if tiling in (WHOLE, OWN):
        for limit in ("MAX_TILES_ON_THE_FLY", "MAX_TILES_ON_THE_FLY_SMALL", "MAX_TILES_ON_THE_FLY_SUMMED"):
            monkeypatch.setattr(winograd_convolution, limit, 0)
    if tiling == WHOLE:
        monkeypatch.setattr(winograd_convolution, "BLOCK_WEIGHT_BYTES", 0)
    if tiling == OWN:
        monkeypatch.setattr(winograd_convolution, "MAX_BLOCK_TILES", 13)
        monkeypatch.setattr(tiles, "MIN_PART_TILES", 5)
    if tiling in (WHOLE, OWN, PACKABLE):
        monkeypatch.setattr(winograd_convolution, "MIN_TILES_PACKED", 0)
    if tiling in (SMALL, WHOLE):
        for limit in ("TILES", "SUMMED_TILES"):
            monkeypatch.setattr(winograd_convolution, limit, 5)
        for limit in ("TILE_BYTES", "SUMMED_BYTES"):
            monkeypatch.setattr(winograd_convolution, limit, 0)


@dataclass(frozen=True)
class Layer:
    """A convolution: of `batch` images of `size`."""

    batch: int = 1
    size: tuple[int, int] = (8, 8)
    channels: int = 32
    filters: int = 32
    pad: tuple[int, int] = (1, 1)
    taps: int = 3

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.filters, self.channels, self.taps, self.taps)

    @property
    def window(self) -> tuple[tuple[int, ...], ...]:
        return (1, 1), (1, 1), self.pad

    @property
    def data(self) -> tuple[int, ...]:
        return (self.batch, *self.size, self.channels)

    @property
    def out(self) -> tuple[int, ...]:
        height, width = (n + 2 * p + 1 - self.taps for n, p in zip(self.size, self.pad, strict=True))
        return (self.batch, height, width, self.filters)

    @property
    def memories(self) -> tuple[MemoryFormat, MemoryFormat, MemoryFormat]:
        """Data, weight and out."""
        weight = MemoryFormat.plain(self.weight, "float32")
        data, out = (MemoryFormat.plain(shape, "float32", LAST) for shape in (self.data, self.out))
        return data, weight, out

    def arrays(self) -> tuple[Array, Array, Array]:
        """Data, weight and a gradient of out."""
        rng = np.random.default_rng(3)
        shapes = self.data, self.weight, self.out
        data, weight, gout = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
        return data, weight, gout


LAYERS = [
    Layer(),
    Layer(3, (7, 10)),
    Layer(2, (5, 6), pad=(0, 0)),
    Layer(2, (3, 9), pad=(2, 0)),
    Layer(1, (4, 1), pad=(2, 2)),
    Layer(2, (9, 13), 48, 80, pad=(0, 2)),
    Layer(1, (6, 6), 288, 32),
    Layer(1, (6, 6), 32, 288),
    Layer(3, (9, 10), 20, 50, pad=(0, 0)),
    Layer(2, (5, 9), 37, 23),
    Layer(3, (9, 10), 20, 50, pad=(0, 0), taps=5),
    Layer(2, (8, 5), 48, 32, pad=(2, 2), taps=5),
    Layer(1, (3, 7), 33, 21, pad=(4, 1), taps=5),
    Layer(2, (5, 12), 32, 80, pad=(0, 3), taps=5),
]
SIZES = pytest.mark.parametrize("layer", LAYERS, ids=str)
TILINGS = pytest.mark.parametrize("tiling", ["", SMALL, WHOLE, OWN, PACKABLE])


def by_definition(layer: Layer) -> tuple[Array, Array, Array]:
    """Out, and the gradients of data and weight, in float64."""
    data, weight, gout = (array.astype(np.float64) for array in layer.arrays())
    above, before = layer.pad
    padded = np.pad(data, ((0, 0), (above, above), (before, before), (0, 0)))
    height, width = layer.out[1:3]
    out, gpadded, gweight = np.zeros(layer.out), np.zeros_like(padded), np.zeros_like(weight)
    for i in range(layer.taps):
        for j in range(layer.taps):
            part = np.s_[:, i : i + height, j : j + width]
            out += padded[part] @ weight[:, :, i, j].T
            gpadded[part] += gout @ weight[:, :, i, j]
            gweight[:, :, i, j] = np.einsum("nhwk,nhwc->kc", gout, padded[part])
    return out, gpadded[:, above : above + layer.size[0], before : before + layer.size[1]], gweight


def scratch(chosen: Any) -> list[Array]:
    """Temporaries that hold garbage."""
    return [np.full(temp.shape, np.nan, temp.dtype) for temp in chosen.temps]


def assert_close(result: Array, expected: Array) -> None:
    """The matrices multiply rounding by 5 to 10: 2e-6 of the scatter was measured, and 2e-5 at most."""
    error, scatter = np.abs(result - expected), expected.std()
    assert np.sqrt(np.square(error).mean()) < 4e-6 * scatter
    assert error.max() < 5e-5 * scatter


@SIZES
@TILINGS
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("adds", [True, False], ids=["added", "written"])
def test_a_convolution(layer: Layer, tiling: str, bias: bool, adds: bool) -> None:
    data, weight, before = layer.arrays()
    added = np.linspace(-1, 1, layer.filters, dtype=np.float32)
    memory = MemoryFormat.plain(added.shape, "float32") if bias else None
    d, w, o = layer.memories
    chosen = winograd_convolution.winograd_convolution(d, w, memory, o, layer.window, adds)
    assert chosen is not None
    out, packed = (before.copy() if adds else np.full(layer.out, np.nan, np.float32) for _ in range(2))
    rest = [added] if bias else []
    run = chosen.bind(scratch(chosen), (data, weight, out, *rest))
    with counted() as allocated:
        run()
    assert not allocated
    assert_close(out, by_definition(layer)[0] + (added if bias else 0) + (before if adds else 0))
    many = chosen.tiling.all >= winograd_convolution.MIN_TILES_PACKED
    assert bool(chosen.packs) == (tiling in (WHOLE, OWN, PACKABLE) or many)
    if chosen.packs:
        chosen.packed(scratch(chosen), (data, weight, packed, *rest), Mode(parameters=1))()
        np.testing.assert_array_equal(packed, out)
    positive = before.copy()
    rectifying = with_relu(chosen)
    rectifying.bind(scratch(rectifying), (data, weight, positive, *rest))()
    np.testing.assert_array_equal(positive, np.maximum(out, 0))
    check_normalized(chosen, (data, weight, before.copy(), *rest), out)


@SIZES
@TILINGS
def test_the_gradient_of_data(layer: Layer, tiling: str) -> None:
    _, weight, gout = layer.arrays()
    d, w, o = layer.memories
    chosen = winograd_convolution.winograd_data_gradient(o, w, d, layer.window)
    assert chosen is not None
    gdata = np.full(layer.data, np.nan, np.float32)
    run = chosen.bind(scratch(chosen), (gout, weight, gdata))
    with counted() as allocated:
        run()
    assert not allocated
    assert_close(gdata, by_definition(layer)[1])


@SIZES
@TILINGS
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("last", [True, False], ids=["OHWI", "OIHW"])
def test_the_gradient_of_the_weight(layer: Layer, tiling: str, bias: bool, last: bool) -> None:
    data, _, gout = layer.arrays()
    d, w, o = layer.memories
    if last:
        w = MemoryFormat.plain([layer.weight[axis] for axis in (0, 2, 3, 1)], "float32", LAST)
    memory = MemoryFormat.plain((layer.filters,), "float32") if bias else None
    chosen = winograd_convolution.winograd_weight_gradient(o, d, w, memory, layer.window)
    assert chosen is not None
    gweight = np.full([layer.weight[axis] for axis in ((0, 2, 3, 1) if last else range(4))], np.nan, np.float32)
    gbias = np.full(layer.filters, np.nan, np.float32)
    run = chosen.bind(scratch(chosen), (gout, data, gweight, *([gbias] if bias else [])))
    with counted() as allocated:
        run()
    assert not allocated
    assert_close(gweight.transpose(LAST) if last else gweight, by_definition(layer)[2])
    if bias:
        # float32, sums of some hundred numbers about 1
        np.testing.assert_allclose(gbias, gout.sum((0, 1, 2), np.float64), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("layer", [LAYERS[5], LAYERS[-1]], ids=str)
def test_a_weight_with_its_channels_last(layer: Layer) -> None:
    data, weight, _ = layer.arrays()
    d, _, o = layer.memories
    w = MemoryFormat.plain([layer.weight[axis] for axis in (0, 2, 3, 1)], "float32", LAST)
    chosen = winograd_convolution.winograd_convolution(d, w, None, o, layer.window)
    assert chosen is not None
    out = np.empty(layer.out, np.float32)
    chosen.bind(scratch(chosen), (data, np.ascontiguousarray(weight.transpose(0, 2, 3, 1)), out))()
    assert_close(out, by_definition(layer)[0])


def test_a_packed_weight_stays_until_it_may_have_been_written_to() -> None:
    layer = Layer(6)
    data, weight, _ = layer.arrays()
    out, mode = np.zeros(layer.out, np.float32), Mode(parameters=1)
    chosen = winograd_convolution.winograd_convolution(*layer.memories[:2], None, layer.memories[2], layer.window)
    assert chosen is not None
    run = chosen.packed(scratch(chosen), (data, weight, out), mode)
    run()
    first = out.copy()
    weight *= 2
    run()
    np.testing.assert_array_equal(out, first)
    mode.parameters = 2
    run()
    np.testing.assert_array_equal(out, 2 * first)


def test_nan_stays_in_sight() -> None:
    """All outputs that read it are NaN, and no output of another tile is."""
    layer = Layer(size=(12, 12))
    data, weight, _ = layer.arrays()
    data[0, 5, 5, 7] = np.nan
    chosen = winograd_convolution.winograd_convolution(*layer.memories[:2], None, layer.memories[2], layer.window)
    assert chosen is not None
    out = np.empty(layer.out, np.float32)
    chosen.bind(scratch(chosen), (data, weight, out))()
    assert np.isnan(out[0, 4:7, 4:7]).all()
    assert not np.isnan(out[0, 8:]).any()
    assert not np.isnan(out[0, :, 8:]).any()


def taken(
    layer: Layer,
    *,
    dtype: str = "float32",
    order: tuple[int, ...] | None = LAST,
    kernel: Sequence[int] = (3, 3),
    window: tuple[tuple[int, ...], ...] | None = None,
) -> list[bool]:
    """Whether forward, data's gradient and weight's are computed by the algorithm."""
    shapes = layer.data, layer.out
    data, out = (MemoryFormat.plain(s if order else [s[i] for i in LAST], dtype, order) for s in shapes)
    weight, window = MemoryFormat.plain((layer.filters, layer.channels, *kernel), dtype), window or layer.window
    return [
        winograd_convolution.winograd_convolution(data, weight, None, out, window) is not None,
        winograd_convolution.winograd_data_gradient(out, weight, data, window) is not None,
        winograd_convolution.winograd_weight_gradient(out, data, weight, None, window) is not None,
    ]


def test_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    everything, nothing = [True] * 3, [False] * 3
    assert taken(Layer()) == everything
    assert taken(Layer(), dtype="bfloat16") == nothing
    assert taken(Layer(), order=None) == nothing
    assert taken(Layer(), kernel=(3, 1)) == nothing
    assert taken(Layer(), kernel=(4, 4)) == nothing
    assert taken(Layer(), kernel=(7, 7)) == nothing
    assert taken(Layer(), window=((2, 2), (1, 1), (1, 1))) == nothing
    assert taken(Layer(), window=((1, 1), (2, 2), (1, 1))) == nothing
    assert taken(Layer(), window=((1, 1), (1, 1), (3, 3))) == nothing
    assert taken(Layer(taps=5), kernel=(5, 5)) == everything
    assert taken(Layer(pad=(4, 4), taps=5), kernel=(5, 5)) == everything
    assert taken(Layer(pad=(5, 5), taps=5), kernel=(5, 5)) == nothing
    assert taken(Layer(channels=20, filters=33)) == everything
    assert taken(Layer(channels=16)) == nothing
    assert taken(Layer(filters=16)) == nothing
    for name in ("winograd", "c-kernels"):
        switch_off(monkeypatch, name)
        assert taken(Layer()) == nothing
        switch(monkeypatch, name, on=True)


@pytest.mark.parametrize("worth", [None])
def test_what_pays(worth: None) -> None:
    """Images with several tiles do, and for gradients smaller ones; single positions stay with oneDNN.

    A gradient whose windows are over padding for the most part does not, unless it is computed by tiles of gout.
    """
    assert taken(Layer(1, (56, 56), 64, 64)) == [True] * 3
    assert taken(Layer(8, (14, 14), 256, 256)) == [True] * 3
    assert taken(Layer(1, (7, 7), 512, 512)) == [True] * 3
    assert taken(Layer(1, (4, 4), 512, 512)) == [False, True, True]
    assert taken(Layer(9, (1, 1), 512, 512)) == [False] * 3
    lenet = Layer(100, (12, 12), 20, 50, (0, 0), taps=5)
    assert taken(lenet, kernel=(5, 5)) == [True] * 3
    assert isinstance(data_gradient(lenet), winograd_convolution.WinogradDataGradient)
    assert taken(replace(lenet, channels=128, filters=128), kernel=(5, 5)) == [True, False, True]
    assert taken(Layer(100, (2, 2), 20, 20)) == [False] * 3
    assert isinstance(data_gradient(Layer(16, (28, 28), 40, 40)), winograd_convolution.WinogradConvolution)


def data_gradient(layer: Layer) -> Any:
    """The kernel that computes it."""
    d, w, o = layer.memories
    return convolution.backward_data_kernel(o, w, d, layer.window)


def test_a_long_batch_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(5, (8, 8))
    d, w, o = layer.memories
    monkeypatch.setattr(by_images, "MAX_PIECE_MULTIPLICATIONS", 2 * 64 * 32 * 32 * 9)
    data, weight, gout = layer.arrays()
    out, gdata, gweight = by_definition(layer)
    results = [np.empty(shape, np.float32) for shape in (layer.out, layer.data, w.shape)]
    chosen_kernels = (
        convolution.forward_by_images(d, w, None, o, layer.window),
        convolution.backward_data_kernel(o, w, d, layer.window),
        convolution.backward_weight_kernel(o, d, w, layer.window),
    )
    arrays = (data, weight, results[0]), (gout, weight, results[1]), (gout, data, results[2])
    for chosen, of_kernel, result, expected in zip(chosen_kernels, arrays, results, (out, gdata, gweight), strict=True):
        assert isinstance(chosen, by_images.ByImages)
        assert chosen.implementation == "winograd"
        chosen.bind(scratch(chosen), of_kernel)()
        assert_close(result, expected)


def test_of_no_images() -> None:
    """There is no tile then, and no gradient by tiles."""
    layer = Layer(0, (9, 10), 20, 50, pad=(0, 0), taps=5)
    d, w, o = layer.memories
    chosen = winograd_convolution.winograd_data_gradient(o, w, d, layer.window)
    assert not isinstance(chosen, winograd_convolution.WinogradDataGradient)
    executor, grads = compiled(of_few_channels(), {"data": (0, 21, 25, 19)}, PASSES, "write")
    executor.forward(is_train=True)
    executor.backward([np.ones_like(executor.outputs[0])])
    assert not any(grad.any() for grad in grads.values())


THREADS_SCRIPT = """
import sys
import numpy as np
from opbox_ops.cpu.computes import winograd_convolution as w
from tests.ops.test_winograd import Layer, scratch
w.WORTH = 1e9
for name, value in SETTINGS.items():
    setattr(w, name, value)
layer = LAYER
data, weight, gout = layer.arrays()
d, k, o = layer.memories
results = [np.empty(shape, "f4") for shape in (layer.out, layer.data, weight.shape)]
chosen_kernels = (
    w.winograd_convolution(d, k, None, o, layer.window),
    w.winograd_data_gradient(o, k, d, layer.window),
    w.winograd_weight_gradient(o, d, k, None, layer.window),
)
arrays = (data, weight, results[0]), (gout, weight, results[1]), (gout, data, results[2])
for chosen, of_kernel in zip(chosen_kernels, arrays):
    chosen.bind(scratch(chosen), of_kernel)()
sys.stdout.write("".join(result.tobytes().hex() for result in results))
"""


@pytest.mark.parametrize("layer", [Layer(2, (23, 18), 48, 80), Layer(7, (12, 11), 20, 50, (0, 0), taps=5)], ids=str)
@pytest.mark.parametrize("settings", [{}, {"MAX_TILES_ON_THE_FLY_SMALL": 0, "MAX_BLOCK_TILES": 20}], ids=["few", OWN])
def test_threads_give_the_bits_of_one(layer: Layer, settings: dict[str, int]) -> None:
    assert_same_bits(THREADS_SCRIPT.replace("SETTINGS", str(settings)).replace("LAYER", str(layer), 1))


def check_normalized(chosen: Any, arrays: tuple[Any, ...], expected: Any) -> None:
    """Mean, scale and shift as the last step, with ReLU behind it, have the bits of steps of their own."""
    filters = expected.shape[-1]
    norm = np.random.default_rng(5).uniform(-1, 1, (3, filters + 8)).astype(np.float32)
    (mean, scale, shift), rectifying, out = norm[:, :filters], with_relu(chosen), arrays[2]
    rectifying.bind(scratch(rectifying), arrays, norm=norm)()
    np.testing.assert_array_equal(out, np.maximum((expected - mean) * scale + shift, 0))


WIDTHS = {
    16: with_vectors_of_16(TEXT),
    8: with_vectors_of_8(TEXT),
}
"""The text as processors with AVX-512 and without it compile it."""


@pytest.mark.parametrize("layer", [LAYERS[5], LAYERS[6], *LAYERS[-6:]], ids=str)
@pytest.mark.parametrize("tiling", ["", OWN])
@pytest.mark.parametrize("width", WIDTHS)
def test_vectors_of_16_and_of_8(layer: Layer, tiling: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a processor with AVX-512 computes, on one without it too, and the other way round."""
    kernel = compiled_text(WIDTHS[width], layer.taps)
    assert kernel is not None
    assert kernel.width == width
    monkeypatch.setattr(winograd_convolution, "winograd", lambda taps: kernel)
    d, w, o = layer.memories
    data, weight, gout = layer.arrays()
    results = [np.full(shape, np.nan, np.float32) for shape in (layer.out, layer.data, w.shape)]
    chosen_kernels: tuple[Any, ...] = (
        winograd_convolution.winograd_convolution(d, w, None, o, layer.window),
        winograd_convolution.winograd_data_gradient(o, w, d, layer.window),
        winograd_convolution.winograd_weight_gradient(o, d, w, None, layer.window),
    )
    arrays = (data, weight, results[0]), (gout, weight, results[1]), (gout, data, results[2])
    for chosen, of_kernel, result, expected in zip(chosen_kernels, arrays, results, by_definition(layer), strict=True):
        chosen.bind(scratch(chosen), of_kernel)()
        assert_close(result, expected)
    positive, rectifying = np.empty_like(results[0]), with_relu(chosen_kernels[0])
    rectifying.bind(scratch(rectifying), (data, weight, positive))()
    np.testing.assert_array_equal(positive, np.maximum(results[0], 0))
    check_normalized(chosen_kernels[0], (data, weight, positive), results[0])


def network() -> Any:
    """Convolutions with a residual sum and a bias."""

    def convolved(data: Any, name: str, **attrs: Any) -> Any:
        return mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=32, name=name, **attrs)

    stem = mx.sym.relu(convolved(mx.sym.Variable("data"), "stem", no_bias=True))
    body = mx.sym.relu(convolved(stem, "first"))
    return convolved(mx.sym.relu(convolved(body, "second", no_bias=True) + stem), "head")


def of_few_channels() -> Any:
    """Convolutions without padding, of 3 x 3 and 5 x 5, whose channels fill no vector."""
    x = mx.sym.Variable("data")
    for name, kernel, filters in (("stem", 3, 20), ("first", 5, 50), ("second", 5, 23), ("head", 3, 37)):
        x = mx.sym.relu(mx.sym.Convolution(x, kernel=(kernel, kernel), num_filter=filters, name=name))
    return x


@pytest.mark.parametrize(
    ("network", "data"), [(network, (2, 32, 9, 13)), (of_few_channels, (3, 21, 25, 19))], ids=["padded", "not padded"]
)
def test_a_network(monkeypatch: pytest.MonkeyPatch, network: Callable[[], Any], data: tuple[int, ...]) -> None:
    """Outputs and gradients are those of oneDNN's kernels; packed weights change no bit."""
    shapes = {"data": data}
    tested, grads = compiled(network(), shapes, PASSES, "write")
    inferring, _ = compiled(network(), shapes, PASSES, "null")
    assert set(inferring.plan.packed_arguments) >= {"stem_weight", "first_weight", "second_weight", "head_weight"}
    switch_off(monkeypatch, "winograd")
    expected, expected_grads = compiled(network(), shapes, PASSES, "write")
    for executor in (tested, expected):
        executor.forward(is_train=True)
        executor.backward([np.ones_like(executor.outputs[0])])
    assert not np.array_equal(tested.outputs[0], expected.outputs[0])
    # Through four layers, each of whose rounding is 2e-5 of its scatter at most; gradients once more as far.
    for result, other in [(tested.outputs[0], expected.outputs[0]), *((grads[n], expected_grads[n]) for n in grads)]:
        assert np.abs(result - other).max() <= 4e-4 * other.std()
    switch(monkeypatch, "winograd", on=True)
    switch_off(monkeypatch, "packed-weights")
    packing, _ = compiled(network(), shapes, PASSES, "null")
    assert not packing.plan.packed_arguments
    for executor in (inferring, packing):
        executor.forward(parameters=1)
    np.testing.assert_array_equal(inferring.outputs[0], packing.outputs[0])
