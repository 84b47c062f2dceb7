"""Products by the matrix unit, and by its instructions in C, beside the definition in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from opbox_ops.compute import Array
from opbox_ops.cpu.algorithms import blocked_product as blocks
from opbox_ops.cpu.algorithms.blocked_product import TEXT, BlockedProduct, ProductSizes, compiled
from opbox_ops.cpu.algorithms.window_sizes import WindowSizes
from tests.allocations import counted
from tests.machine import has_matrix_unit, needs_avx512_words
from tests.matrix_unit_in_c import with_unit_in_c
from tests.switches import switch, switch_off

from .product_factors import bits_of, factors, numbers
from .thread_counts import assert_same_bits

pytestmark = needs_avx512_words

SIZES = [
    (1, 16, 16),
    (15, 31, 17),
    (16, 32, 32),
    (17, 33, 33),
    (49, 530, 70),  # rows of tiles that are not full
    (100, 64, 600),  # more panels than stay in the cache
    (130, 1100, 48),  # slices of terms
    (257, 40, 64),  # a second block of rows
    (300, 513, 290),
    (70, 5000, 40),  # slabs, where a is transposed
]
SIDES = list(itertools.product((False, True), repeat=2))
MAX_ERROR = 2.0**-21
"""Of the sum of products' magnitudes: three products of parts are left out, 2^-25 of a product together, and sums of 16
are rounded, and those of them. With the parts' three largest products alone it would be 2^-16."""


@pytest.fixture(params=["the unit", "in C"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BlockedProduct:
    """The unit's, where there is one, and that in C: of all sizes."""
    if request.param == "the unit" and not has_matrix_unit():
        pytest.skip("no matrix unit")
    for name in ("MIN_SPLIT_MULTIPLICATIONS", "MIN_SPLIT_ROWS", "MIN_PACKED_SPLIT_ROWS", "MIN_COLUMNS"):
        monkeypatch.setattr(blocks, name, 0)
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: True)
    functions = compiled(TEXT if request.param == "the unit" else with_unit_in_c(TEXT))
    assert functions is not None
    return functions


def matrices(sizes: ProductSizes, a: Array, b: Array) -> tuple[Array, Array]:
    left, right = (
        x.astype(np.float64).T if transposed else x for x, transposed in zip((a, b), sizes.transposed, strict=True)
    )
    return left, right.astype(np.float64)


def near(out: Array, left: Array, right: Array, added: Array | float = 0) -> None:
    magnitude = np.abs(left) @ np.abs(right) + np.abs(added)
    assert (np.abs(out - (left @ right + added)) <= MAX_ERROR * magnitude).all()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_definition(
    kernel: BlockedProduct, shape: tuple[int, int, int], sides: tuple[bool, bool], bias: bool
) -> None:
    sizes = ProductSizes(*shape, sides)
    assert sizes.splits
    a, b = factors(sizes)
    added = numbers(sizes.columns, seed=2) if bias else None
    out, sums = np.full((sizes.rows, sizes.columns), np.nan, np.float32), numbers(sizes.sums)
    run = kernel.product(sizes, (a, b, added, out), sums=sums)
    run()
    left, right = matrices(sizes, a, b)
    near(out, left, right, 0 if added is None else added)

    packed, target = np.full(sizes.packed, np.nan, np.float32), np.full_like(out, np.nan)
    kernel.pack(sizes, b, packed)()
    if not sides[0]:  # where a is transposed too, a slice of the terms is half as deep
        kernel.product(sizes, (a, b, added, target), packed=packed, sums=sums)()
        near(target, left, right, 0 if added is None else added)
    kernel.rebound(sizes, sums)(a, b, added, target)
    np.testing.assert_array_equal(target, out)

    kernel.product(sizes, (a, b, added, target), sums=sums, adds=True)()
    near(target, left, right, out.astype(np.float64) + (0 if added is None else added))
    apart = np.full_like(out, np.nan)
    kernel.product(sizes, (a, b, added, apart), sums=sums, addend=out)()
    np.testing.assert_array_equal(apart, target)
    if sizes.slabs == 1 and not sides[0]:
        kernel.product(sizes, (a, b, added, target), sums=sums, relu=True)()
        np.testing.assert_array_equal(target, np.maximum(out, 0))
        norm = numbers(3, sizes.padded, seed=3)
        mean, scale, shift = norm[:, : sizes.columns]
        kernel.product(sizes, (a, b, added, target), sums=sums, norm=norm)()
        np.testing.assert_array_equal(target, (out - mean) * scale + shift)
        kernel.product(sizes, (a, b, added, target), addend=out, norm=norm, relu=True)()
        np.testing.assert_array_equal(target, np.maximum((apart - mean) * scale + shift, 0))
    with counted() as allocated:
        run()
    assert not allocated


def large(value: float) -> Callable[[ProductSizes, Array, Array], None]:
    """Puts it in one row of a and one column of b."""

    def put(sizes: ProductSizes, a: Array, b: Array) -> None:
        x, y = (matrix.T if transposed else matrix for matrix, transposed in zip((a, b), sizes.transposed, strict=True))
        x[3, sizes.terms - 1] = value
        y[5, sizes.columns - 2] = value

    return put


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 3.3999e38], ids=str)
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_numbers_whose_parts_are_not_finite(
    kernel: BlockedProduct, sides: tuple[bool, bool], packs: bool, value: float
) -> None:
    """Their rows and columns are as float32 has them, all others as before; into an array that is added to as well."""
    sizes = ProductSizes(300, 700, 90, sides)
    a, b = factors(sizes)
    start = numbers(300, 90, seed=4)
    before, out, added = np.zeros((300, 90), np.float32), np.zeros((300, 90), np.float32), start.copy()
    kernel.product(sizes, (a, b, None, before))()
    large(value)(sizes, a, b)
    packed = numbers(sizes.packed) if packs and not sides[0] else None
    if packed is not None:
        kernel.pack(sizes, b, packed)()
    kernel.product(sizes, (a, b, None, out), packed=packed)()
    kernel.product(sizes, (a, b, None, added), packed=packed, adds=True)()
    left, right = matrices(sizes, a, b)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = (left @ right).astype(np.float32)
    others = np.ones((300, 90), bool)
    others[3], others[:, 88] = False, False
    np.testing.assert_allclose(out[others], before[others], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(added[others], (before + start)[others], rtol=1e-5, atol=1e-4)
    for result in (out, added):
        # Sums of numbers near the largest one depend on their order: they are infinite in one and not in the other.
        least = np.abs(expected) < 1e38 if np.isfinite(value) else np.ones((300, 90), bool)
        np.testing.assert_array_equal(np.isnan(result)[least], np.isnan(expected)[least])
        np.testing.assert_array_equal(np.isinf(result)[least], np.isinf(expected)[least])
    finite = ~others & np.isfinite(expected) & (np.abs(expected) < 1e38)
    assert finite.any() == np.isfinite(value)
    np.testing.assert_allclose(out[finite], expected[finite], rtol=1e-5)


def test_what_is_not_a_number_stays_where_a_product_rectifies(kernel: BlockedProduct) -> None:
    sizes = ProductSizes(40, 300, 70, (False, True))
    a, b = factors(sizes)
    a[2, 5], b[20, 7] = np.nan, np.nan
    out, target = np.empty((40, 70), np.float32), np.empty((40, 70), np.float32)
    kernel.product(sizes, (a, b, None, out))()
    kernel.product(sizes, (a, b, None, target), relu=True)()
    np.testing.assert_array_equal(target, np.maximum(out, 0))
    assert np.isnan(target[2]).all()
    assert np.isnan(target[:, 20]).all()
    assert np.isfinite(np.delete(np.delete(target, 2, 0), 20, 1)).all()


def test_numbers_of_any_size_have_float32s_accuracy(kernel: BlockedProduct) -> None:
    """Down to those whose low parts are below 2^-126; what is below that itself is zero."""
    sizes = ProductSizes(64, 64, 64)
    a, b = factors(sizes)
    for exponent in (-100, -60, 0, 60, 120):
        scaled = np.ldexp(a, exponent).astype(np.float32)
        out = np.zeros((64, 64), np.float32)
        kernel.product(sizes, (scaled, b, None, out))()
        near(out, *matrices(sizes, scaled, b))
    out.fill(np.nan)
    kernel.product(sizes, (np.full_like(a, 2.0**-127), np.ones_like(b), None, out))()
    assert not out.any()


@pytest.mark.parametrize("value", [None, np.inf])
@pytest.mark.parametrize("shape", [(200, 70, 20), (33, 16, 8), (300, 1100, 50)], ids=str)
def test_packed_rows(kernel: BlockedProduct, shape: tuple[int, int, int], value: float | None) -> None:
    """Of a, by columns that lie together, anywhere."""
    sizes = ProductSizes(*shape, (False, True), packs_a=True)
    assert sizes.splits
    (a, b), out = factors(sizes), np.full((sizes.rows, sizes.columns), np.nan, np.float32)
    if value is not None:
        a[20, 3] = value
    packed = np.full(sizes.packed, np.nan, np.float32)
    kernel.pack(sizes, a, packed)()
    run = kernel.by_packed_rows(sizes, a, packed)
    apart = np.full((sizes.columns, 2 * sizes.terms), np.nan, np.float32)
    apart[:, : sizes.terms] = b
    for columns in (b.T, apart[:, : sizes.terms].T):
        run(columns, out)
        rows = np.arange(sizes.rows) != (20 if value is not None else -1)
        near(out[rows], *(x[rows] if x is a else x for x in (a, b.T.astype(np.float64))))
        assert np.isfinite(out).all() == (value is None)
        out.fill(np.nan)


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_a_batch(kernel: BlockedProduct, sides: tuple[bool, bool]) -> None:
    """Each product of it has the bits that it has alone."""
    one, many = ProductSizes(40, 70, 90, sides), ProductSizes(40, 70, 90, sides, batch=5)
    a, b = (np.stack([factors(one)[k] * (i - 2) for i in range(5)]) for k in (0, 1))
    out, alone = np.full((5, 40, 90), np.nan, np.float32), np.zeros((40, 90), np.float32)
    kernel.product(many, (a, b, None, out))()
    for i in range(5):
        kernel.product(one, (a[i], b[i], None, alone))()
        np.testing.assert_array_equal(out[i], alone)


KERNELS = [(3, 3), (5, 2)]
STRIDES = [(1, 1), (2, 1), (3, 2)]
GEOMETRY = [((1, 1), (0, 0)), ((1, 1), (1, 1)), ((2, 3), (1, 2)), ((1, 1), (4, 3))]
"""Dilation and padding."""


@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
@pytest.mark.parametrize("stride", STRIDES, ids=str)
@pytest.mark.parametrize("window", KERNELS, ids=str)
def test_windows(
    kernel: BlockedProduct,
    window: tuple[int, int],
    stride: tuple[int, int],
    geometry: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    """A convolution, the gradient of its weight, and of data where windows do not jump."""
    (dilate, pad), size, channels, filters = geometry, (11, 13), 64, 32
    height, width = (
        (n + 2 * q - d * (k - 1) - 1) // s + 1 for n, q, d, k, s in zip(size, pad, dilate, window, stride, strict=True)
    )
    data, weight = numbers(3, *size, channels), numbers(filters, channels, *window, seed=2)
    positions = 3 * height * width
    gout = numbers(positions, filters, seed=1)
    windows = WindowSizes(data.shape, (height, width), window, stride, dilate, pad)
    padded = np.pad(data.astype(np.float64), ((0, 0), (pad[0],) * 2, (pad[1],) * 2, (0, 0)))
    places = [
        (slice(i, i + (height - 1) * stride[0] + 1, stride[0]), slice(j, j + (width - 1) * stride[1] + 1, stride[1]))
        for i in range(0, window[0] * dilate[0], dilate[0])
        for j in range(0, window[1] * dilate[1], dilate[1])
    ]
    matrix = np.stack([padded[:, i, j] for i, j in places], 3).reshape(positions, windows.columns)
    rows = weight.transpose(0, 2, 3, 1).reshape(filters, -1).astype(np.float64)

    sizes = ProductSizes(positions, windows.columns, filters, (False, True), reads_packed=True)
    packed, out = np.full(sizes.packed, np.nan, np.float32), np.full((positions, filters), np.nan, np.float32)
    kernel.pack_taps(sizes, weight, packed)()
    kernel.product(sizes, (data, weight, None, out), packed=packed, windows=windows)()
    near(out, matrix, rows.T)

    for first in (0, 8):
        at = WindowSizes(data.shape, (height, width), window, stride, dilate, pad, first)
        sizes = ProductSizes(filters, positions - first, windows.columns, (True, False))
        gweight = np.full((filters, windows.columns), np.nan, np.float32)
        kernel.product(sizes, (gout[first:], data, None, gweight), sums=numbers(sizes.sums), windows=at)()
        near(gweight, gout[first:].T.astype(np.float64), matrix[first:])

    around = [d * (k - 1) - q for d, k, q in zip(dilate, window, pad, strict=True)]
    if stride != (1, 1) or min(around) < 0:
        return
    back = WindowSizes((3, height, width, filters), size, window, (1, 1), dilate, (around[0], around[1]))
    sizes = ProductSizes(3 * size[0] * size[1], back.columns, channels, reads_packed=True)
    packed, gdata = np.full(sizes.packed, np.nan, np.float32), np.full(data.shape, np.nan, np.float32)
    kernel.pack_taps(sizes, weight, packed, rotated=True)()
    kernel.product(sizes, (gout, weight, None, gdata), packed=packed, windows=back)()
    expected, magnitude = np.zeros((2, *padded.shape))
    for sums, left, right in ((expected, gout, rows), (magnitude, np.abs(gout), np.abs(rows))):
        terms = (left.astype(np.float64) @ right).reshape(3, height, width, len(places), channels)
        for number, (i, j) in enumerate(places):
            sums[:, i, j] += terms[:, :, :, number]
    inside = slice(pad[0], pad[0] + size[0]), slice(pad[1], pad[1] + size[1])
    assert (np.abs(gdata - expected[:, *inside]) <= MAX_ERROR * magnitude[:, *inside]).all()


def test_infinities_in_windows_and_weights(kernel: BlockedProduct) -> None:
    """Where a window has one its sums do, and nowhere else."""
    data, weight = numbers(2, 9, 9, 32), numbers(32, 32, 3, 3, seed=2)
    windows = WindowSizes(data.shape, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1))
    sizes = ProductSizes(162, windows.columns, 32, (False, True), reads_packed=True)
    data[1, 4, 4, 7], weight[5, 6, 1, 1] = np.inf, np.inf
    packed, out = np.full(sizes.packed, np.nan, np.float32), np.zeros((2, 9, 9, 32), np.float32)
    kernel.pack_taps(sizes, weight, packed)()
    kernel.product(sizes, (data, weight, None, out), packed=packed, windows=windows)()
    odd = np.zeros(out.shape, bool)
    odd[1, 3:6, 3:6], odd[..., 5] = True, True
    np.testing.assert_array_equal(~np.isfinite(out), odd)
    gout, gweight = numbers(162, 32, seed=1), np.zeros((32, 3, 3, 32), np.float32)
    sizes = ProductSizes(32, 162, windows.columns, (True, False))
    kernel.product(sizes, (gout, data, None, gweight), windows=windows)()
    odd = np.zeros(gweight.shape, bool)
    odd[..., 7] = True
    np.testing.assert_array_equal(~np.isfinite(gweight), odd)


def test_windows_of_channels_that_do_not_fill_a_tile_are_refused(kernel: BlockedProduct) -> None:
    windows = WindowSizes((2, 9, 9, 20), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1))
    sizes = ProductSizes(32, 162, windows.columns, (True, False))
    arrays = numbers(162, 32), numbers(2, 9, 9, 20), None, numbers(32, 180)
    with pytest.raises(AssertionError):
        kernel.product(sizes, arrays, windows=windows)


def test_room_for_a_packed_matrix_that_is_missing_is_refused(kernel: BlockedProduct) -> None:
    sizes = ProductSizes(40, 64, 64, (False, True), reads_packed=True)
    (a, b), scratch = factors(sizes), np.zeros(sizes.packed - 1, np.float32)
    with pytest.raises(AssertionError):
        kernel.pack(sizes, b, scratch)
    with pytest.raises(AssertionError):
        kernel.product(sizes, (a, b, None, np.zeros((40, 64), np.float32)), packed=scratch)


def test_which_products_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By shape alone: many rows, few ones by a packed b that stays in the cache; none without a unit."""
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: True)
    assert ProductSizes(784, 512, 128).splits
    assert not ProductSizes(32, 256, 1024).splits
    assert ProductSizes(32, 256, 1024, reads_packed=True).splits
    assert not ProductSizes(32, 1024, 2048, reads_packed=True).splits
    assert not ProductSizes(256, 1024, 48).splits
    assert ProductSizes(256, 1024, 48, (True, False)).splits
    assert not ProductSizes(128, 128, 64).splits
    assert not ProductSizes(100_000, 8, 64).splits
    assert not ProductSizes(784, 512, 128, by_vectors=True).splits
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: False)
    assert not ProductSizes(784, 512, 128).splits


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matrix-unit", "c-kernels"):
        with monkeypatch.context() as patch:
            switch_off(patch, name)
            assert not blocks.has_matrix_unit()
    switch(monkeypatch, "matrix-unit", on=True)
    assert blocks.has_matrix_unit() == has_matrix_unit()


def test_bits_do_not_depend_on_threads() -> None:
    shapes = (128, 9000, 48), (300, 700, 200), (97, 3000, 333), (1000, 64, 96)
    printed = assert_same_bits(bits_of(*shapes)).split()
    assert printed[::2] == [str(splits).encode() for splits in [has_matrix_unit()] * 4]
