"""FullyConnected and its gradients in bfloat16 and float16 by oneDNN's matmul, where the processor multiplies them.

    out = data @ weight.T + bias        gdata = gout @ weight        gweight = gout.T @ data        gbias = 1 @ gout

Sums are float32's and are rounded once. Two threads with a matrix unit for bfloat16, us, as it lies, beside float32 by
the same matmul: 32 x 256 by 256 x 1024 25 and 88, 64 x 1024 by 1024 x 1024 116 and 549, 1024 x 512 by 512 x 2048 1530
and 7415, 1 x 2048 by 2048 x 1000 154 and 283. float16 has no such unit: matmul widens what it reads of it, and takes
float32's time. So only small products, and those of few rows, are for it: 8 x 25088 by 25088 x 4096 takes 18 ms, and
by a weight that is widened first 90; others gain more from the kernels of float32 (`half_precision`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...bound_calls import as_one
from ...compute import Array, Arrays, CallSpec, Kernel, OpContext, Outputs, Reusable, Temp
from ...expression.conversion import converting
from ...nn.fully_connected import FullyConnectedParams, backward, op
from ..onednn.cache import MAX_CACHED_KERNELS
from ..onednn.library import library
from ..onednn.matmul_primitive import Sizes, if_fast, matmul_primitive
from ..onednn.primitive import Operand, PrimitiveKernel
from ..runtime.packed_runs import bind_in_order
from .matmul import features_of, type_of
from .product import MAX_MULTIPLICATIONS

__all__ = ["HalfProduct", "half_packing_kernel", "half_product"]

MAX_SMALL_MULTIPLICATIONS, MAX_SMALL_SIDE = 1 << 27, 16
"""Maximum number of multiplications, and of rows, columns or terms, for oneDNN to compute a product of float16."""


@dataclass(frozen=True, slots=True)
class HalfProduct:
    """A kernel for arrays a, b, out and bias if any, of one type; with the methods of a `PrimitiveKernel`.

    Attributes:
        primitive: oneDNN's, with its reorders.
        widened: numbers of the bias, which a product of float16 reads as float32; 0: none.
    """

    primitive: PrimitiveKernel
    widened: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.primitive.operands

    @property
    def implementation(self) -> str:
        return self.primitive.implementation

    @property
    def temps(self) -> list[Temp]:
        return [*self.primitive.temps, Temp((self.widened,))]

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> Callable[[], Any]:
        *others, wide = temps
        if not self.widened:
            return self.primitive.bind(others, arrays)
        return as_one([converting(arrays[3], wide), self.primitive.bind(others, (*arrays[:3], wide))])


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def half_product(
    dtype: np.dtype[Any], sizes: Sizes, bias: bool, transposed: tuple[bool, bool], batch: int | None = None
) -> HalfProduct | None:
    """out = a @ b, as `matmul_primitive` has it; None where oneDNN is not to compute it."""
    dnnl = library()
    if dnnl is None or not 0 < math.prod(sizes) * (1 if batch is None else batch) < MAX_MULTIPLICATIONS:
        return None
    few = math.prod(sizes) <= MAX_SMALL_MULTIPLICATIONS or min(sizes) <= MAX_SMALL_SIDE
    if dtype.name not in dnnl.multiplied_types and not (dtype == np.float16 and few):
        return None
    primitive = if_fast(matmul_primitive(sizes, bias, transposed, dtype=dtype, batch=batch))
    return None if primitive is None else HalfProduct(primitive, sizes[2] if bias and dtype == np.float16 else 0)


def half_packing_kernel(dtype: np.dtype[Any], sizes: Sizes, bias: bool, transposed: bool) -> PrimitiveKernel | None:
    """out = a @ b.T + bias, or a @ b, with b packed beforehand; None where oneDNN is not to compute it."""
    product = half_product(dtype, sizes, bias, (False, transposed))
    if product is None or product.widened or dtype.name not in getattr(library(), "multiplied_types", ()):
        return None
    primitive = if_fast(matmul_primitive(sizes, bias, (False, transposed), free=True, dtype=dtype))
    return primitive if primitive is not None and primitive.packs == ((1, 1),) else None


@op.kernel("cpu", level="library")
def _(p: FullyConnectedParams, call: CallSpec) -> Kernel | None:
    dtype = type_of(call)
    if dtype is None:
        return None
    rows, features = features_of(p, call.inputs[0])
    product = half_product(dtype, (rows, features, p.num_hidden), not p.no_bias, (False, True))
    if product is None:
        return None
    return Kernel(partial(_bind, product), tuple(product.temps), rebind=partial(_rebind, product))


def _bind(
    product: HalfProduct, p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    return product.bind(ctx.temp, (*inputs[:2], outputs[0], *inputs[2:]))


def _rebind(
    product: HalfProduct, p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Reusable:
    *temps, wide = ctx.temp
    execute = product.primitive.rebound(temps)

    def run(inputs: Arrays, outputs: Outputs) -> None:
        bias = inputs[2:]
        if product.widened:
            np.copyto(wide, inputs[2])
            bias = (wide,)
        execute((*inputs[:2], outputs[0], *bias))

    return run


@backward.kernel("cpu", level="library")
def _(p: FullyConnectedParams, call: CallSpec) -> Kernel | None:
    products = _gradients(p, call)
    if products is None:
        return None
    temps = [temp for product in products if product is not None for temp in product.temps]
    return Kernel(partial(_bind_gradients, products), tuple(temps))


def _gradients(p: FullyConnectedParams, call: CallSpec) -> list[HalfProduct | None] | None:
    """The products of the gradients of data, weight and bias, None for one that is not wanted.

    None where oneDNN is not to compute one of them.
    """
    dtype = type_of(call)
    if dtype is None:
        return None
    rows, features = features_of(p, call.inputs[1])
    hidden = p.num_hidden
    sizes: list[tuple[Sizes, tuple[bool, bool]]] = [
        ((rows, hidden, features), (False, False)),
        ((hidden, rows, features), (True, False)),
        ((1, rows, hidden), (False, False)),
    ]
    products = [
        half_product(dtype, size, False, transposed) if call.wants(k) else None
        for k, (size, transposed) in enumerate(sizes[: len(call.outputs)])
    ]
    missing = any(product is None and call.wants(k) for k, product in enumerate(products))
    return None if missing or not any(products) else products


def _bind_gradients(
    products: Sequence[HalfProduct | None], p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    gout, data, weight = inputs
    factors: list[tuple[Array, Array]] = [(gout, weight), (gout, data)]
    if len(outputs) > 2:
        factors.append((np.ones(features_of(p, ctx.call.inputs[1])[0], gout.dtype), gout))
    arrays = [(*pair, out) for pair, out in zip(factors, outputs, strict=True)]
    return as_one(bind_in_order(products, ctx.temp, arrays))
