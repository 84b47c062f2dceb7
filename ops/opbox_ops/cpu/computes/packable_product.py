"""A product by a weight, which reads the weight as it lies or packed: in training and in inference.

    out = a @ weight.T + bias        or a @ weight

An update writes to the weight after each step of a training; between two runs of inference the packed weight stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...bound_calls import Call
from ...call_list import CallList
from ...compute import Array, Mode, Temp
from ..onednn.primitive import Operand
from ..runtime.packed_runs import PackedRuns
from .blocked_product_kernel import BlockedKernel
from .product import ProductKernel, fast_product, packing_kernel

__all__ = ["PackableProduct", "packable_product"]


@dataclass(frozen=True, slots=True)
class PackableProduct:
    """A kernel for arrays data, weight, out and bias if any; with the methods of a `PrimitiveKernel`.

    Attributes:
        unpacked: the product of the weight as it lies.
        packing: the product of a packed weight.
    """

    unpacked: ProductKernel
    packing: ProductKernel

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.unpacked.operands

    @property
    def implementation(self) -> str:
        return self.unpacked.implementation

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        return self.packing.packs

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The larger scratchpad, and the packed weight, which `bind` uses where it packs first."""
        scratchpads = [kernel.temps[0] for kernel in (self.unpacked, self.packing)]
        packed = replace(self.packing.temps[1], only_packed=not self.packs_first)
        return max(scratchpads, key=lambda temp: temp.shape), packed

    @property
    def packs_first(self) -> bool:
        """Whether it packs the weight in each run too."""
        return isinstance(self.packing, BlockedKernel) and self.packing.sizes.packs_first

    @property
    def adds_apart(self) -> bool:
        """Whether it can add to an array that is not out."""
        return isinstance(self.unpacked, BlockedKernel) and self.unpacked.adds

    def bind(
        self, temps: Sequence[Array], arrays: Sequence[Array], addend: Array | None = None, norm: Array | None = None
    ) -> CallList:
        """Return a call that runs it; arguments are those of `PrimitiveKernel.bind`, and the addend where `adds_apart`.

        `norm` is that of a kernel in blocks.
        """
        more, runs = _wanted(addend, norm), CallList()
        if not self.packs_first:
            runs.calls.append(self.unpacked.bind(temps[:1], arrays, **more))
            return runs
        runs.calls.append(self.packing.pack(1, temps[0], arrays[1], temps[1]))
        runs.calls.append(self.packing.bind_packed(temps[:2], arrays, **more))
        return runs

    def packed(
        self,
        temps: Sequence[Array],
        arrays: Sequence[Array],
        mode: Mode,
        addend: Array | None = None,
        norm: Array | None = None,
    ) -> Call:
        """The same, with the weight packed only where `mode` says that it is to be."""
        packing = self.packing.pack(1, temps[0], arrays[1], temps[1])
        return PackedRuns(packing, self.packing.bind_packed(temps[:2], arrays, **_wanted(addend, norm)), mode)

    def rebound(self, temps: Sequence[Array]) -> Callable[[Sequence[Array]], None]:
        """Return a call that takes its arrays each time, in the order of `bind`."""
        return self.unpacked.rebound(temps[:1])


def _wanted(addend: Array | None, norm: Array | None) -> dict[str, Any]:
    """Arguments of a kernel in blocks; none for one of oneDNN's, which has neither."""
    return {name: array for name, array in (("addend", addend), ("norm", norm)) if array is not None}


def packable_product(
    sizes: tuple[int, int, int], bias: bool, adds: bool = False, in_blocks: bool = True, transposed: bool = True
) -> PackableProduct | None:
    """Return the kernel of a product of these rows, terms and columns; None where NumPy's BLAS is the faster one."""
    unpacked = fast_product(sizes, bias, transposed, adds=adds, in_blocks=in_blocks)
    packing = packing_kernel(sizes, bias, adds, in_blocks, transposed)
    return None if unpacked is None or packing is None or unpacked.reordered else PackableProduct(unpacked, packing)
