"""A kernel for a matrix product in blocks, with the methods of a `PrimitiveKernel`: oneDNN has no fast one for it.

kernel = blocked_product_kernel((rows, summed, columns), bias=True, transposed=(False, True))
call = kernel.bind(temps, (a, b, out, bias))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...call_list import CallList
from ...compute import Array, Temp
from ..algorithms.blocked_product import BlockedProduct, ProductSizes, blocked_product
from ..onednn.library import ArgumentNumber
from ..onednn.primitive import Operand
from ..runtime.memory_format import MemoryFormat

__all__ = ["BlockedKernel", "blocked_product_kernel"]


@dataclass(frozen=True, slots=True)
class BlockedKernel:
    """A kernel for a @ b + bias, of arrays a, b, out and bias if any, a and b transposed where they are to be.

    Attributes:
        kernel: the compiled functions.
        sizes: the product's.
        bias: whether there is one.
        adds: whether it adds to what is in out, or to an addend that `bind` gets.
        free: whether b may be packed beforehand.
        relu: whether it writes the larger of the sum and 0.
    """

    kernel: BlockedProduct
    sizes: ProductSizes
    bias: bool
    adds: bool
    free: bool
    relu: bool = False

    @property
    def operands(self) -> tuple[Operand, ...]:
        s = self.sizes
        shapes = [(s.rows, s.terms), (s.terms, s.columns)]
        formats = [
            MemoryFormat.plain(shape[:: -1 if transposed else 1], np.float32, (1, 0) if transposed else None)
            for shape, transposed in zip(shapes, s.transposed, strict=True)
        ]
        return (
            Operand(ArgumentNumber.SOURCE, formats[0]),
            Operand(ArgumentNumber.WEIGHTS, formats[1]),
            Operand(ArgumentNumber.DESTINATION, MemoryFormat.plain((s.rows, s.columns), np.float32), written=True),
            *([Operand(ArgumentNumber.BIAS, MemoryFormat.plain((s.columns,), np.float32))] if self.bias else []),
        )

    @property
    def implementation(self) -> str:
        return "blocked"

    @property
    def reordered(self) -> int:
        """None of its arrays."""
        return 0

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """b, whose packed copy is the second of `temps`, where it may be packed."""
        return ((1, 1),) if self.free else ()

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The sums of slabs, and the packed b where it may be packed; in bytes."""
        sizes = [self.sizes.sums, *([self.sizes.packed] if self.free else [])]
        return tuple([Temp((4 * size,), np.uint8) for size in sizes])

    def bind(
        self, temps: Sequence[Array], arrays: Sequence[Array], addend: Array | None = None, norm: Array | None = None
    ) -> CallList:
        """Return a call that runs it; arguments are those of `PrimitiveKernel.bind`, and an addend that is not in out.

        `norm` is that of `BlockedProduct.product`.
        """
        return self._bound(temps, arrays, None, addend, norm)

    def bind_packed(
        self, temps: Sequence[Array], arrays: Sequence[Array], addend: Array | None = None, norm: Array | None = None
    ) -> CallList:
        """The same as `bind`, where `pack` has packed b beforehand."""
        return self._bound(temps, arrays, temps[1], addend, norm)

    def _bound(
        self,
        temps: Sequence[Array],
        arrays: Sequence[Array],
        packed: Array | None,
        addend: Array | None,
        norm: Array | None,
    ) -> CallList:
        runs = CallList()
        a, b, *bias = [runs.contiguous(array) for array in (*arrays[:2], *arrays[3:])]
        places = a, b, bias[0] if bias else None, arrays[2]
        if addend is not None:
            addend = runs.contiguous(addend).reshape(places[3].shape)
        adds = self.adds and addend is None
        options: Any = {"adds": adds, "addend": addend, "norm": norm, "relu": self.relu}
        runs.calls.append(self.kernel.product(self.sizes, places, packed=packed, sums=temps[0], **options))
        return runs

    def pack(self, k: int, scratchpad: Array, array: Array, packed: Array) -> CallList:
        """Return a call that packs b, the operand 1, to `packed`."""
        runs = CallList()
        runs.calls.append(self.kernel.pack(self.sizes, runs.contiguous(array), packed))
        return runs

    def rebound(self, temps: Sequence[Array]) -> Callable[[Sequence[Array]], None]:
        """Return a call that takes its arrays each time, in the order of `bind`."""
        product = self.kernel.rebound(self.sizes, temps[0])

        def run(arrays: Sequence[Array]) -> None:
            a, b, out, *bias = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in arrays]
            product(a, b, bias[0] if bias else None, out)

        return run


def blocked_product_kernel(
    sizes: tuple[int, int, int], bias: bool, transposed: tuple[bool, bool], free: bool = False, adds: bool = False
) -> BlockedKernel | None:
    """Return the kernel of out = a @ b, as `matmul_primitive` does; None where there are no compiled functions."""
    kernel = blocked_product()
    product = ProductSizes(*sizes, transposed, reads_packed=free)
    return None if kernel is None else BlockedKernel(kernel, product, bias, adds, free)
