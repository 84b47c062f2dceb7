"""Convolution by windows of 1 x 1 as a product, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import Array, Mode, highest_level
from opbox_ops.cpu.algorithms import blocked_product
from opbox_ops.cpu.algorithms.blocked_product import ProductSizes
from opbox_ops.cpu.computes import pointwise_convolution as pointwise
from opbox_ops.cpu.computes import product
from opbox_ops.cpu.computes.blocked_product_kernel import BlockedKernel
from opbox_ops.cpu.computes.pointwise_convolution import PointwiseConvolution, pointwise_convolution
from opbox_ops.cpu.onednn.primitive import PrimitiveKernel
from opbox_ops.cpu.runtime.memory_format import MemoryFormat
from opbox_service.executor.passes import PASSES
from tests.allocations import counted
from tests.executor.test_parts import compiled

pytestmark = pytest.mark.usefixtures("product_kernels")

BATCH, SIZE, CHANNELS, FILTERS = 3, (5, 7), 18, 33
WINDOW = ((1, 1), (1, 1), (0, 0))
LAST = (0, 3, 1, 2)
SHAPES = {"data": (2, 8, 6, 5)}


WHAT_PAYS = pointwise._is_for_blocks


@pytest.fixture(autouse=True)
def _of_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MIN_MULTIPLICATIONS", "MIN_SIDE"):
        monkeypatch.setattr(product, limit, 1)
    monkeypatch.setattr(pointwise, "_is_for_blocks", lambda sizes: True)


def sizes(stride: tuple[int, int]) -> tuple[int, ...]:
    """Height and width of the output."""
    return tuple([(n - 1) // s + 1 for n, s in zip(SIZE, stride, strict=True)])


def kernel_of(
    stride: tuple[int, int] = (1, 1),
    kernel: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dtype: str = "float32",
    order: tuple[int, ...] | None = LAST,
    bias: bool = False,
    adds: bool = False,
    groups: bool = False,
) -> PointwiseConvolution | None:
    shapes = [(BATCH, *SIZE, CHANNELS), (BATCH, *sizes(stride), FILTERS)]
    if order is None:
        shapes = [(n, c, h, w) for n, h, w, c in shapes]
    data, out = (MemoryFormat.plain(shape, dtype, order) for shape in shapes)
    weight = MemoryFormat.plain((*([1] if groups else []), FILTERS, CHANNELS, *kernel), dtype)
    added = MemoryFormat.plain((FILTERS,), dtype) if bias else None
    return pointwise_convolution(data, weight, added, out, (stride, (1, 1), pad), adds)


def scratch(chosen: PointwiseConvolution) -> list[Array]:
    return [np.zeros(temp.shape, temp.dtype) for temp in chosen.temps]


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_the_definition(stride: tuple[int, int], bias: bool, adds: bool) -> None:
    rng = np.random.default_rng(1)
    data = rng.normal(size=(BATCH, *SIZE, CHANNELS)).astype(np.float32)
    weight = rng.normal(size=(FILTERS, CHANNELS, 1, 1)).astype(np.float32)
    added = rng.normal(size=FILTERS).astype(np.float32)
    chosen = kernel_of(stride, bias=bias, adds=adds)
    assert chosen is not None
    before = rng.normal(size=(BATCH, *sizes(stride), FILTERS)).astype(np.float32)
    expected = np.einsum("nhwc,fc->nhwf", data[:, :: stride[0], :: stride[1]].astype(np.float64), weight[:, :, 0, 0])
    expected = expected + (added if bias else 0) + (before if adds else 0)
    unpacked, packed = before.copy(), before.copy()
    scratches, rest = scratch(chosen), [added] if bias else []
    run = chosen.bind(scratches, (data, weight, unpacked, *rest))
    run()
    # float32: sums of 18 products about 1
    np.testing.assert_allclose(unpacked, expected, rtol=1e-5, atol=1e-5)
    chosen.packed(scratch(chosen), (data, weight, packed, *rest), Mode(parameters=1))()
    np.testing.assert_array_equal(packed, unpacked)
    with counted() as allocated:
        run()
    assert not allocated


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("adds", [True, False])
def test_a_weight_packed_for_many_positions_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, product_kernels: str, bias: bool, adds: bool
) -> None:
    """Packed anew in each run: an update may have written to it."""
    rng = np.random.default_rng(2)
    data, weight = rng.normal(size=(BATCH, *SIZE, CHANNELS)), rng.normal(size=(FILTERS, CHANNELS, 1, 1))
    before, added = rng.normal(size=(BATCH, *SIZE, FILTERS)), rng.normal(size=FILTERS)
    data, weight, before, added = (array.astype(np.float32) for array in (data, weight, before, added))
    chosen, rest = kernel_of(bias=bias, adds=adds), [added] if bias else []
    assert chosen is not None
    outs = []
    for rows in (blocked_product.MANY_ROWS, 1):
        monkeypatch.setattr(blocked_product, "MANY_ROWS", rows)
        scratches, out = [np.full(temp.shape, 17, temp.dtype) for temp in chosen.temps], before.copy()
        run = chosen.bind(scratches, (data, weight, out, *rest))
        for factor in (1, 2, 0.5):
            weight *= np.float32(factor)
            out[...] = before
            run()
            outs.append(out.copy())
        packs = product_kernels == "blocks" and rows == 1
        assert np.array_equal(scratches[1].view(np.uint8), np.full_like(scratches[1], 17).view(np.uint8)) != packs
    np.testing.assert_array_equal(outs[3:], outs[:3])
    np.testing.assert_array_equal(outs[2], outs[0])
    assert not np.array_equal(outs[1], outs[0])


def test_a_packed_weight_stays_until_it_may_have_been_written_to() -> None:
    data = np.ones((BATCH, *SIZE, CHANNELS), np.float32)
    weight, out = np.ones((FILTERS, CHANNELS, 1, 1), np.float32), np.zeros((BATCH, *SIZE, FILTERS), np.float32)
    chosen, mode = kernel_of(), Mode(parameters=1)
    assert chosen is not None
    run = chosen.packed(scratch(chosen), (data, weight, out), mode)
    run()
    weight[:] = 2
    run()
    assert out.max() == CHANNELS
    mode.parameters = 2
    run()
    assert out.min() == 2 * CHANNELS


def test_where_a_convolution_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other windows, groups, types and layouts, and products too small for oneDNN."""
    assert kernel_of() is not None
    assert kernel_of(kernel=(1, 3)) is None
    assert kernel_of(pad=(1, 1)) is None
    assert kernel_of(groups=True) is None
    assert kernel_of(dtype="float16") is None
    assert kernel_of(order=None) is None
    monkeypatch.setattr(product, "MIN_SIDE", CHANNELS + 1)
    assert kernel_of() is None


def test_what_pays_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where panels stay empty, nor without AVX-512 over many channels of some hundred positions, unless it adds."""
    monkeypatch.setattr(blocked_product, "has_matrix_unit", lambda: False)
    sides = (False, True)
    monkeypatch.setattr(pointwise, "has_fast_kernels", lambda: False)
    assert WHAT_PAYS(ProductSizes(25_088, 256, 64, sides))
    assert not WHAT_PAYS(ProductSizes(25_088, 256, 24, sides))
    assert not WHAT_PAYS(ProductSizes(784, 512, 128, sides))
    assert WHAT_PAYS(ProductSizes(1_568, 1024, 256, sides))
    assert WHAT_PAYS(ProductSizes(49, 2048, 512, sides))
    monkeypatch.setattr(pointwise, "has_fast_kernels", lambda: True)
    assert WHAT_PAYS(ProductSizes(784, 512, 128, sides))
    assert WHAT_PAYS(ProductSizes(392, 1024, 256, sides))
    assert not WHAT_PAYS(ProductSizes(784, 512, 24, sides))


def test_what_does_not_pay_is_left_to_onednn(monkeypatch: pytest.MonkeyPatch, product_kernels: str) -> None:
    """By its matmul where that has kernels for AVX-512, else by its convolution."""
    monkeypatch.setattr(pointwise, "_is_for_blocks", lambda sizes: False)
    left, adding = kernel_of(), kernel_of(adds=True)
    assert (left is None) == (not product.has_fast_kernels())
    assert left is None or isinstance(left.unpacked, PrimitiveKernel)
    assert isinstance(adding.unpacked, BlockedKernel if product_kernels == "blocks" else PrimitiveKernel)


def convolved(data: Any, name: str, kernel: int, filters: int, **attrs: Any) -> Any:
    pad = (kernel // 2, kernel // 2)
    return mx.sym.Convolution(data, kernel=(kernel, kernel), pad=pad, num_filter=filters, name=name, **attrs)


def test_training_and_inference_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between other convolutions: training reads the weights as they lie, inference packs them."""
    net = convolved(mx.sym.relu(convolved(mx.sym.Variable("data"), "stem", 3, 16)), "narrow", 1, 24)
    net = convolved(mx.sym.relu(net), "jumps", 1, 40, stride=(2, 2), no_bias=True)
    net = convolved(mx.sym.relu(net), "head", 3, 8)
    monkeypatch.setenv("OPBOX_COMPUTE_LEVEL", "reference")
    highest_level.cache_clear()
    try:
        expected, expected_grads = compiled(net, SHAPES, PASSES)
    finally:
        monkeypatch.delenv("OPBOX_COMPUTE_LEVEL")
        highest_level.cache_clear()
    tested, grads = compiled(net, SHAPES, PASSES, "write")
    inferring, _ = compiled(net, SHAPES, PASSES, "null")
    assert set(inferring.plan.packed_arguments) >= {"narrow_weight", "jumps_weight"}
    for executor in (expected, tested):
        executor.forward(is_train=True)
        executor.backward([np.ones_like(executor.outputs[0])])
    for _ in range(2):
        inferring.forward(parameters=1)
        np.testing.assert_array_equal(inferring.outputs[0], tested.outputs[0])
    # float32, sums of some hundred products in another order, through four layers.
    np.testing.assert_allclose(tested.outputs[0], expected.outputs[0], rtol=2e-4, atol=2e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, expected_grads[name], rtol=2e-3, atol=2e-4)
