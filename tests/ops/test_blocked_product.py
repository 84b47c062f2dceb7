"""Matrix products in blocks, beside the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.compute import Array
from opbox_ops.cpu.algorithms import blocked_product as blocked_product_module
from opbox_ops.cpu.algorithms.blocked_product import TEXT, BlockedProduct, ProductSizes, compiled
from opbox_ops.cpu.algorithms.column_sums import column_sums, new_kernel
from opbox_ops.cpu.algorithms.window_sizes import WindowSizes
from opbox_ops.cpu.runtime.processor import has_avx512
from tests.allocations import counted
from tests.machine import needs_vectors
from tests.switches import set_c_kernels, switch_off
from tests.vectors_of_8 import with_vectors_of_8

from .product_factors import bits_of, factors, numbers
from .thread_counts import assert_same_bits

pytestmark = needs_vectors

SIZES = [
    (1, 1, 1),
    (5, 7, 3),
    (6, 320, 16),
    (33, 1000, 17),
    (97, 321, 65),
    (128, 784, 128),
    (500, 9, 100),
    (150, 15, 1100),
    (130, 2, 531),
    (7, 5000, 40),
    (40, 9000, 33),
    (155, 1030, 20),
    (150, 1024, 70),  # rows of a that are copied
    (20, 600, 200),  # panels of b that are packed beside the first rows
    (13, 2100, 32),  # many terms of a narrow panel
    (20, 682, 45),  # as many as there is room for, and a number that is none of vectors
    (290, 530, 130),  # a's next rows, fetched to their end
]
SIDES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.fixture(params=["vectors of the processor", "vectors of 8"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BlockedProduct:
    """Those that are run without a matrix unit, and on a processor with AVX-512 those of others too."""
    monkeypatch.setattr(blocked_product_module, "has_matrix_unit", lambda: False)
    text = TEXT if request.param == "vectors of the processor" else with_vectors_of_8(TEXT)
    if text != TEXT and not has_avx512():
        pytest.skip("its vectors are of 8")
    functions = compiled(text)
    assert functions is not None
    return functions


def defined(sizes: ProductSizes, a: Array, b: Array) -> Array:
    left, right = (
        x.astype(np.float64).T if transposed else x for x, transposed in zip((a, b), sizes.transposed, strict=True)
    )
    return left @ right.astype(np.float64)


def near(out: Array, expected: Array, terms: int) -> None:
    """float32: the rounding of sums of so many products about 1."""
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * terms**0.5)


@pytest.mark.parametrize("rows", range(1, 20))
def test_a_row_has_its_bits_in_tiles_of_any_height(kernel: BlockedProduct, rows: int) -> None:
    """Where rows end, tiles are lower: the same sums in the same order."""
    a, b = numbers(20, 530), numbers(40, 530, seed=1)
    outs = [np.full((count, 40), np.nan, np.float32) for count in (20, rows)]
    for out in outs:
        kernel.product(ProductSizes(len(out), 530, 40, (False, True)), (a[: len(out)], b, None, out))()
    np.testing.assert_array_equal(outs[1], outs[0][:rows])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_definition(
    kernel: BlockedProduct, shape: tuple[int, int, int], sides: tuple[bool, bool], bias: bool
) -> None:
    sizes = ProductSizes(*shape, sides)
    a, b = factors(sizes)
    added = numbers(sizes.columns, seed=2) if bias else None
    out, sums = np.full((sizes.rows, sizes.columns), np.nan, np.float32), numbers(sizes.sums)
    run = kernel.product(sizes, (a, b, added, out), sums=sums)
    run()
    expected = defined(sizes, a, b) + (0 if added is None else added)
    near(out, expected, sizes.terms)

    packed, target = np.full(sizes.packed, np.nan, np.float32), np.full_like(out, np.nan)
    kernel.pack(sizes, b, packed)()
    kernel.product(sizes, (a, b, added, target), packed=packed, sums=sums)()
    np.testing.assert_array_equal(target, out)
    target.fill(np.nan)
    kernel.rebound(sizes, sums)(a, b, added, target)
    np.testing.assert_array_equal(target, out)

    kernel.product(sizes, (a, b, added, target), sums=sums, adds=True)()
    near(target, 2 * expected, sizes.terms)
    apart = np.full_like(out, np.nan)
    kernel.product(sizes, (a, b, added, apart), sums=sums, addend=out)()
    np.testing.assert_array_equal(apart, target)
    if sizes.slabs == 1 and not sides[0]:
        kernel.product(sizes, (a, b, added, target), sums=sums, relu=True)()
        np.testing.assert_array_equal(target, np.maximum(out, 0))
        kernel.product(sizes, (a, b, added, target), packed=packed, sums=sums, addend=out, relu=True)()
        np.testing.assert_array_equal(target, np.maximum(apart, 0))
        norm = numbers(3, sizes.padded, seed=3)
        mean, scale, shift = norm[:, : sizes.columns]
        kernel.product(sizes, (a, b, added, target), sums=sums, norm=norm)()
        np.testing.assert_array_equal(target, (out - mean) * scale + shift)
        kernel.product(sizes, (a, b, added, target), packed=packed, addend=out, norm=norm, relu=True)()
        np.testing.assert_array_equal(target, np.maximum((apart - mean) * scale + shift, 0))
    with counted() as allocated:
        run()
    assert not allocated


def test_what_is_not_a_number_stays_where_a_product_rectifies(kernel: BlockedProduct) -> None:
    """In whole panels and in the narrow one; infinities are as NumPy's."""
    sizes = ProductSizes(7, 300, 21, (False, True))
    a, b = factors(sizes)
    a[2, 5], a[4, 280], b[20, 7] = np.nan, np.inf, np.nan
    out, target = np.empty((7, 21), np.float32), np.empty((7, 21), np.float32)
    kernel.product(sizes, (a, b, None, out))()
    kernel.product(sizes, (a, b, None, target), relu=True)()
    np.testing.assert_array_equal(target, np.maximum(out, 0))
    assert np.isnan(target[2]).all()
    assert np.isnan(target[:, 20]).all()
    assert np.isinf(target[4]).any()


@pytest.mark.parametrize("terms", [1, 3])
@pytest.mark.parametrize("off", [0, 1], ids=["aligned", "not aligned"])
def test_a_large_result_of_few_terms(kernel: BlockedProduct, terms: int, off: int) -> None:
    """It is written past the caches where it lies for that; of one term the products are NumPy's."""
    sizes = ProductSizes(2100, terms, 2048, (True, False))
    a, b = factors(sizes)
    memory = np.full(sizes.rows * sizes.columns + 32, 7, np.float32)
    start = -(memory.ctypes.data // 4) % 16 + off
    out = memory[start : start + sizes.rows * sizes.columns].reshape(sizes.rows, sizes.columns)
    kernel.product(sizes, (a, b, None, out))()
    near(out, defined(sizes, a, b), terms)
    if terms == 1:
        np.testing.assert_array_equal(out, a.T * b)
    assert (memory[:start] == 7).all()
    assert (memory[start + out.size :] == 7).all()


def test_slabs_are_for_small_results_of_many_terms() -> None:
    """Of gradients of weights: the pieces of other products have fewer rows, and would want other room."""
    sides = (True, False)
    assert [ProductSizes(64, terms, 64, sides).slabs for terms in (1000, 1024, 3000, 100_000)] == [1, 1, 2, 8]
    assert ProductSizes(1024, 100_000, 1024, sides).slabs == 1
    assert ProductSizes(64, 1000, 64, sides).sums == 0
    assert ProductSizes(64, 3000, 64, sides).sums == 64 * 64
    assert ProductSizes(64, 3000, 64).slabs == 1


def test_what_is_not_a_number_stays(kernel: BlockedProduct) -> None:
    sizes = ProductSizes(7, 40, 18)
    a, b = factors(sizes)
    a[3, 20], b[5, 17] = np.nan, np.inf
    out = np.zeros((7, 18), np.float32)
    kernel.product(sizes, (a, b, None, out))()
    expected = a @ b
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(expected))
    assert np.isnan(out[3]).all()
    assert np.isinf(out[0, 17])


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("shape", [(1, 16, 1), (20, 30, 65), (33, 300, 130)], ids=str)
def test_a_batch(kernel: BlockedProduct, shape: tuple[int, int, int], sides: tuple[bool, bool]) -> None:
    """Each product of it has the bits that it has alone."""
    one, many = ProductSizes(*shape, sides), ProductSizes(*shape, sides, batch=5)
    a, b = (np.stack([factors(one)[k] * (i - 2) for i in range(5)]) for k in (0, 1))
    out, alone = np.full((5, one.rows, one.columns), np.nan, np.float32), np.zeros((one.rows, one.columns), np.float32)
    kernel.product(many, (a, b, None, out))()
    for i in range(5):
        kernel.product(one, (a[i], b[i], None, alone), sums=numbers(one.sums))()
        np.testing.assert_array_equal(out[i], alone)


def test_very_small_numbers_are_zero(kernel: BlockedProduct) -> None:
    """Below 2^-126, of factors and of sums; who calls still computes with them."""
    least = np.finfo(np.float32).smallest_normal
    a, b = np.full((8, 40), least, np.float32), np.ones((40, 20), np.float32)
    a[:4] /= 2
    b[:, 10:] /= 64
    out = np.full((8, 20), np.nan, np.float32)
    kernel.product(ProductSizes(8, 40, 20), (a, b, None, out))()
    expected = np.zeros((8, 20), np.float32)
    expected[4:, :10] = 40 * least
    np.testing.assert_array_equal(out, expected)
    assert (a[:4] * np.float32(0.5) > 0).all()


def test_numbers_that_do_not_fill_vectors_are_refused(kernel: BlockedProduct) -> None:
    sizes = ProductSizes(8, 16, 20, (False, True))
    a, b = factors(sizes)
    with pytest.raises(AssertionError):
        kernel.product(sizes, (a, b, None, np.zeros((8, 20), np.float32)), norm=numbers(3, 20))


def test_room_for_slabs_that_is_missing_is_refused(kernel: BlockedProduct) -> None:
    sizes = ProductSizes(8, 4096, 8, (True, False))
    a, b = factors(sizes)
    with pytest.raises(AssertionError):
        kernel.product(sizes, (a, b, None, np.zeros((8, 8), np.float32)))


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    switch_off(monkeypatch, "matrix-unit")
    printed = assert_same_bits(bits_of((64, 9000, 48), (300, 700, 200), (1, 3000, 33), (1000, 64, 64))).split()
    assert printed[::2] == [b"False"] * 4


KERNELS = [(1, 1), (3, 3), (5, 2)]
STRIDES = [(1, 1), (2, 1), (3, 2)]
GEOMETRY = [((1, 1), (0, 0)), ((2, 3), (1, 2)), ((1, 1), (4, 3))]
"""Dilation and padding."""


@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
@pytest.mark.parametrize("stride", STRIDES, ids=str)
@pytest.mark.parametrize("window", KERNELS, ids=str)
@pytest.mark.parametrize("channels", [1, 3, 16, 20])
def test_windows(
    kernel: BlockedProduct,
    channels: int,
    window: tuple[int, int],
    stride: tuple[int, int],
    geometry: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    """By one element, by four and by a whole panel at a time, and positions that begin amid a row."""
    (dilate, pad), size, filters = geometry, (11, 13), 5
    height, width = (
        (n + 2 * q - d * (k - 1) - 1) // s + 1 for n, q, d, k, s in zip(size, pad, dilate, window, stride, strict=True)
    )
    data, positions = numbers(2, *size, channels), 2 * height * width
    gout = numbers(positions, filters, seed=1)
    windows = WindowSizes(data.shape, (height, width), window, stride, dilate, pad)
    padded = np.pad(data.astype(np.float64), ((0, 0), (pad[0],) * 2, (pad[1],) * 2, (0, 0)))
    taps = [
        padded[:, i : i + (height - 1) * stride[0] + 1 : stride[0], j : j + (width - 1) * stride[1] + 1 : stride[1]]
        for i in range(0, window[0] * dilate[0], dilate[0])
        for j in range(0, window[1] * dilate[1], dilate[1])
    ]
    matrix = np.stack(taps, 3).reshape(positions, windows.columns)
    for first in (0, 8):
        at = WindowSizes(data.shape, (height, width), window, stride, dilate, pad, first)
        sizes = ProductSizes(filters, positions - first, windows.columns, (True, False))
        out = np.full((filters, windows.columns), np.nan, np.float32)
        kernel.product(sizes, (gout[first:], data, None, out), sums=numbers(sizes.sums), windows=at)()
        near(out, gout[first:].T.astype(np.float64) @ matrix[first:], positions)


@pytest.mark.parametrize("shape", [(1, 5), (3, 32), (5000, 20), (70, 100), (0, 4)], ids=str)
def test_sums_of_columns(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    """By NumPy and by the C kernel, to the same bits."""
    x, results = numbers(*shape), []
    for mode in ("0", "now"):
        set_c_kernels(monkeypatch, mode)
        monkeypatch.setattr("opbox_ops.cpu.algorithms.column_sums._KERNEL", new_kernel())
        out = np.full(shape[1], np.nan, np.float32)
        column_sums(x, out)()
        results.append(out)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], x.sum(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-3)
