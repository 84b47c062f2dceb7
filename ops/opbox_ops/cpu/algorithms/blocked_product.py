"""Matrix products of float32 in C, for processors that have AVX-512, or AVX2 and FMA.

    out (rows, columns) = a (rows, terms) @ b (terms, columns) + bias (columns)        or out += that, or relu(that)

a and b lie as they are or transposed; in place of b there may be the windows of a convolution over an array whose
channels lie last, which are never laid out as a whole: (positions of out, taps and channels).

A tile of out stays in registers while the terms go by, 6 rows of 64 numbers, or of 16 where vectors have 8: 24
multiplications and additions of sixteen numbers for 4 loads of b and 6 of a. b is copied a few hundred terms at a time
to where it is read in order, while the first rows are multiplied where it lies so; `pack` does so beforehand. a is
copied where it lies transposed. NumPy's BLAS has threads of its own, which take the cores from those of all other
kernels; oneDNN's matmul has no such kernel without AVX-512, and with it takes up to twice as long for few rows
(`benchmarks/results/cpu-decisions.md`).

A processor's matrix unit, where it has one, takes large products (split_product.h): their numbers are split in
three of 8 bits. Sums have the accuracy of float32's, and other bits.

Numbers below 2^-126, as vanishing gradients have, are taken for zero: a processor of Intel's takes a hundred times as
long for a product of one.

The order of a sum depends on the shapes alone, and on whether b is known to be packed (`ProductSizes.reads_packed`),
not on threads. A sum over many terms for a small result, as in a gradient of a weight, comes in several slabs, so that
threads have work apart.

Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008); Van Zee and van de Geijn, "BLIS: A
framework for rapidly instantiating BLAS functionality" (2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import Structure, addressof, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from ... import switches
from ...bound_calls import c_call, place_of
from ...compute import Array
from ..runtime import c_compiler, processor
from ..runtime.kernel_text import kernel_text
from .window_sizes import WindowSizes

__all__ = [
    "TEXT",
    "BlockedProduct",
    "ProductSizes",
    "blocked_product",
    "compiled",
    "has_matrix_unit",
    "padded",
    "splits_windows",
]

TEXT = kernel_text("blocked_product.c")

COLUMNS = 16
"""Packed b has a multiple of so many."""
SMALL = 1 << 16
"""Numbers of a result that comes in slabs where it has many terms."""
MIN_SLAB_TERMS = 1024
"""Minimum number of terms of a slab."""
MAX_SLABS = 8
MANY_ROWS, MANY_SPLIT = 1024, 192
"""Rows from which on b is packed as a whole beforehand, rather than for each block of rows: a product by a weight of
1 x 1 takes 0.96 of the time then, packing included; over 200 to 800 rows as long, over fewer longer. By the matrix
unit, GFLOP/s as b lies and packed first: 784 x 512 by 512 x 128 305 and 374, 196 x 1024 by 1024 x 256 287 and 320."""
MIN_SPLIT_ROWS, MIN_PACKED_SPLIT_ROWS = 96, 8
"""Minimum number of rows for the matrix unit, of b as it lies and packed: 32 x 256 by 256 x 1024 161 GFLOP/s by
vectors and 121 by the unit, packed 281 and 448, 8 rows 241 and 315, 4 rows 197 and 174."""
MIN_COLUMNS = 64
"""Minimum number of columns of b as it lies for that unit, up to some rows of an a that is not transposed: 256 x 1024
by 1024 x 48 196 and 143, 3136 x 256 by 256 x 48 160 and 234."""
MAX_SPLIT_NUMBERS = 1 << 19
"""Maximum number of elements of a packed b that few rows multiply by it: split it has half as many bytes again, and
comes from memory. 32 x 512 by 512 x 512 160 and 177 GFLOP/s, 49 x 512 by 512 x 2048 207 and 201, 196 x 1024 by 1024 x
256 234 and 338."""
MIN_SPLIT_MULTIPLICATIONS = 1 << 22
"""Minimum number of multiplications for the matrix unit: 128 x 128 by 128 x 64 135 and 107 GFLOP/s, 128 x 784 by 784 x
128 241 and 246."""
STEP = 32
"""Terms that the matrix unit multiplies at once, and columns of its panels of b, as in the C."""
MAX_TAPS = 32
"""Maximum number of rows, and of columns, of windows that it reads, as in the C."""


class _ProductStructure(Structure):
    _fields_ = [
        (name, c_long)
        for name in (
            *("rows", "terms", "columns", "a_row", "a_term", "b_term", "b_column", "c_row"),
            *("slabs", "relu", "splits", "packs_a", "batch"),
        )
    ]


def padded(columns: int) -> int:
    """How many columns there is room for: whole vectors."""
    return -(-columns // COLUMNS) * COLUMNS


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """A product's sides.

    Attributes:
        rows, terms, columns: of out = a @ b: a (rows, terms), b (terms, columns).
        transposed: whether a, and whether b, lies as the transposed matrix.
        batch: how many such products are computed, of matrices that lie one after the other.
        reads_packed: whether b is packed already when the product is computed.
        packs_a: whether a is, and not b; without a matrix unit it is not.
        by_vectors: whether the matrix unit is not to compute it.
    """

    rows: int
    terms: int
    columns: int
    transposed: tuple[bool, bool] = (False, False)
    batch: int = 1
    reads_packed: bool = False
    packs_a: bool = False
    by_vectors: bool = False

    @property
    def splits(self) -> bool:
        """Whether the matrix unit computes it."""
        if self.by_vectors or not has_matrix_unit():
            return False
        if self.packs_a:
            few = self.columns < MIN_PACKED_SPLIT_ROWS or self.rows * self.terms > MAX_SPLIT_NUMBERS
            return not few and self.rows * self.terms * self.columns >= MIN_SPLIT_MULTIPLICATIONS
        if min(self.terms, self.columns) < STEP // 2:
            return False
        if self.reads_packed:
            fewest = MIN_PACKED_SPLIT_ROWS if self.terms * self.columns <= MAX_SPLIT_NUMBERS else MIN_SPLIT_ROWS
        else:
            narrow = self.columns < MIN_COLUMNS and not self.transposed[0]
            fewest = MANY_ROWS if narrow else MIN_SPLIT_ROWS
        return self.rows >= fewest and self.batch * self.rows * self.terms * self.columns >= MIN_SPLIT_MULTIPLICATIONS

    @property
    def slabs(self) -> int:
        """In how many parts the terms are summed: of a gradient of a weight, whose terms alone its pieces differ in."""
        if not self.transposed[0] or self.rows * self.columns > SMALL or self.batch > 1:
            return 1
        return max(1, min(MAX_SLABS, self.terms // MIN_SLAB_TERMS))

    @property
    def sums(self) -> int:
        """Numbers of the temporary that the slabs need."""
        return (self.slabs - 1) * self.rows * self.columns

    @property
    def padded(self) -> int:
        """Columns of what goes with those of b: whole vectors."""
        return padded(self.columns)

    @property
    def packed(self) -> int:
        """Numbers of b when it is packed: where it is split, three of two bytes for each, and one for a panel."""
        if not self.splits:
            return self.padded * self.terms
        panels, steps = -(-(self.rows if self.packs_a else self.columns) // STEP), -(-self.terms // STEP)
        return panels * (steps * STEP * STEP * 3 // 2 + 1)

    @property
    def packs_first(self) -> bool:
        """Whether it pays to pack b as a whole for one product."""
        return self.rows >= (MANY_SPLIT if self.splits else MANY_ROWS)

    @property
    def fills_panels(self) -> bool:
        """Whether no more than a tenth of what is multiplied is beyond the columns."""
        return self.padded * 10 <= self.columns * 11

    def structure(self, *, relu: bool = False) -> _ProductStructure:
        a = (1, self.rows) if self.transposed[0] else (self.terms, 1)
        b = (1, self.terms) if self.transposed[1] else (self.columns, 1)
        sides = self.rows, self.terms, self.columns
        return _ProductStructure(*sides, *a, *b, self.columns, self.slabs, relu, self.splits, self.packs_a, self.batch)


def splits_windows(windows: WindowSizes) -> bool:
    """Whether the matrix unit can read such windows in the place of b: a tile's columns are of one tap."""
    return windows.data[3] % (STEP // 2) == 0 and max(windows.kernel) <= MAX_TAPS


@dataclass(frozen=True, slots=True)
class BlockedProduct:
    """The compiled functions. Arrays are contiguous, of float32."""

    _product: Any
    _pack: Any
    _pack_taps: Any
    _lay: Any
    _gather: Any

    def product(
        self,
        sizes: ProductSizes,
        arrays: tuple[Array, Array, Array | None, Array],
        *,
        packed: Array | None = None,
        sums: Array | None = None,
        windows: WindowSizes | None = None,
        adds: bool = False,
        addend: Array | None = None,
        norm: Array | None = None,
        relu: bool = False,
    ) -> Callable[[], None]:
        """Return a call that writes, or with `adds` adds to, out.

        Args:
            sizes: the product's; with `windows`, its columns are theirs.
            arrays: a, b or the array under the windows, bias or None, and out.
            packed: b as `pack` has written it, which is read in its place.
            sums: `sizes.sums` numbers.
            windows: the matrix b that is not laid out; where a is not transposed, the matrix a.
            addend: added too, an array as out.
            norm: (3, `sizes.padded`), mean, scale and shift of the columns: it writes (sum - mean) scale + shift.
            relu: whether it writes the larger of that and 0; NaN stays NaN.
        """
        a, b, bias, out = arrays
        assert windows is None or not sizes.splits or splits_windows(windows)
        assert packed is None or packed.nbytes >= 4 * sizes.packed
        assert sizes.slabs == 1 or (sums is not None and sums.nbytes >= 4 * sizes.sums)
        assert sizes.slabs == 1 or not (relu or norm is not None)
        assert norm is None or norm.shape == (3, sizes.padded)
        assert addend is None or (addend.shape == out.shape and addend.flags.c_contiguous and not adds)
        structures = sizes.structure(relu=relu), None if windows is None else windows.structure
        alive = arrays, packed, sums, addend, norm, structures
        places = [None if one is None else addressof(one) for one in structures]
        arguments = (
            *map(place_of, (a, b, packed, bias, out, sums)),
            *places,
            place_of(out if adds else addend),
            place_of(norm),
        )
        return c_call(self._product, arguments, alive)

    def rebound(
        self, sizes: ProductSizes, sums: Array, a_row: int | None = None, packed: Array | None = None
    ) -> Callable[[Array, Array, Array | None, Array], None]:
        """Return a function of a, b, bias or None, and out, that computes out; rows of a lie `a_row` numbers apart.

        `packed` is read in the place of b.
        """
        product, structure, scratch, packed_b = self._product, sizes.structure(), place_of(sums), place_of(packed)
        if a_row is not None:
            structure.a_row = a_row
        where = addressof(structure)

        def run(a: Array, b: Array, bias: Array | None, out: Array, alive: Any = (structure, sums, packed)) -> None:
            product(place_of(a), place_of(b), packed_b, place_of(bias), place_of(out), scratch, where, None, None, None)

        return run

    def by_packed_rows(self, sizes: ProductSizes, a: Array, packed: Array) -> Callable[[Array, Array], None]:
        """Return a function of b and out that computes out = a @ b, where `pack` has written a to `packed`.

        Each column of b lies together, anywhere; `sizes` say so too, and that a is packed. There may be any columns.
        """
        assert packed.nbytes >= 4 * sizes.packed
        product, structure = self._product, sizes.structure()
        where, at, scratch = addressof(structure), place_of(a), place_of(packed)

        def run(b: Array, out: Array, alive: Any = (structure, a, packed)) -> None:
            structure.columns = structure.c_row = b.shape[1]
            structure.b_column = b.strides[1] // b.itemsize
            product(at, place_of(b), scratch, None, place_of(out), None, where, None, None, None)

        return run

    def pack(self, sizes: ProductSizes, b: Array, target: Array) -> Callable[[], None]:
        """Return a call that writes the packed b, or a, to `target`: `sizes.packed` numbers."""
        assert target.nbytes >= 4 * sizes.packed
        structure = sizes.structure()
        return c_call(self._pack, (place_of(b), place_of(target), addressof(structure)), (b, target, structure))

    def pack_taps(
        self, sizes: ProductSizes, weight: Array, target: Array, *, rotated: bool = False
    ) -> Callable[[], None]:
        """Return a call that writes a convolution's weight to `target` as the packed b of windows in the place of a.

        Args:
            sizes: the product's, which `splits`.
            weight: (filters, channels, *kernel).
            target: `sizes.packed` numbers.
            rotated: for the gradient of data, whose windows are those of a convolution of out's gradient.
        """
        assert target.nbytes >= 4 * sizes.packed
        structure, taps = sizes.structure(), c_long(math.prod(weight.shape[2:]))
        alive = weight, target, structure, taps, c_long(rotated)
        places = place_of(weight), place_of(target), *map(addressof, alive[2:])
        return c_call(self._pack_taps, places, alive)

    def lay(self, windows: WindowSizes, data: Array, target: Array) -> Callable[[], None]:
        """Return a call that writes the windows over `data` to `target` (positions, channels * taps), tap by tap."""
        structure = windows.structure
        return c_call(self._lay, (place_of(data), place_of(target), addressof(structure)), (data, target, structure))

    def gather(self, windows: WindowSizes, source: Array, target: Array) -> Callable[[], None]:
        """Return a call that writes the sums of windows like those of `lay` to the array that they are of, `target`."""
        structure = windows.structure
        return c_call(
            self._gather, (place_of(source), place_of(target), addressof(structure)), (source, target, structure)
        )


def blocked_product() -> BlockedProduct | None:
    """The compiled functions; None without a compiler, or on a processor without AVX2 and FMA.

    They are compiled when they are first asked for, which takes some five seconds, and are on disk from then on: what
    a product computes does not depend on when a compiler is done.
    """
    return compiled(TEXT) if c_compiler.allows_vectors() else None


def has_matrix_unit() -> bool:
    """Return whether there are such functions that use a matrix unit, and this process may."""
    return not switches.is_off("matrix-unit") and blocked_product() is not None and _may_use_unit()


@cache
def _may_use_unit() -> bool:
    if not processor.flags() >= {"amx_bf16", "avx512f", "avx512bw", "avx512dq"}:  # what the text asks for, too
        return False
    asks = c_compiler.compiled_function(TEXT, "opbox_product_unit", threads=True)
    return asks is not None and bool(asks())


@cache
def compiled(text: str) -> BlockedProduct | None:
    """The functions of a text like `TEXT`; None where it cannot be compiled."""
    arguments = {
        "opbox_product": 10,
        "opbox_product_pack": 3,
        "opbox_product_pack_taps": 5,
        "opbox_product_lay": 3,
        "opbox_product_gather": 3,
    }
    types = {name: [c_void_p] * count for name, count in arguments.items()}
    functions = c_compiler.compiled_functions(text, types)
    return None if functions is None else BlockedProduct(*functions)
