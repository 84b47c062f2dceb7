"""FullyConnected, or its gradient, called many times with one weight, which is laid out once for all calls.

    pack        weight (num_hidden, features) -> packed: bytes, as the kernel wants it for data of these rows
    product     data, weight, bias, packed -> out          ograd, weight, packed -> data's gradient

Results are those of the operators, to the last bit where no matrix unit computes them. The calls of a recurrent network
wait for one another, so that their products stay apart; their weight is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...compute import Arrays, CallSpec, Kernel, OpContext, Outputs
from ...nn.fully_connected import FullyConnectedParams, backward, op
from ...nn.packed_product import MIN_CALLS, PACK, PACK_BACKWARD, PACKED, PACKED_BACKWARD, PackedProduct, PackParams
from ...operator import Op
from .half_product import half_packing_kernel
from .matmul import features_of, type_of
from .product import ProductKernel, packing_kernel

__all__ = ["MIN_CALLS"]

ProductRule: TypeAlias = Callable[[FullyConnectedParams, CallSpec], ProductKernel | None]
"""From parameters and call to the kernel of a product with a packed weight; None where there is none."""


def _packing_kernel(call: CallSpec, sizes: tuple[int, int, int], bias: bool, transposed: bool) -> ProductKernel | None:
    dtype = type_of(call)
    if dtype == np.float32:
        return packing_kernel(sizes, bias, transposed=transposed)
    return None if dtype is None else half_packing_kernel(dtype, sizes, bias, transposed)


def _forward_kernel(p: FullyConnectedParams, call: CallSpec) -> ProductKernel | None:
    return _packing_kernel(call, (*features_of(p, call.inputs[0]), p.num_hidden), not p.no_bias, transposed=True)


def _backward_kernel(p: FullyConnectedParams, call: CallSpec) -> ProductKernel | None:
    rows, features = features_of(p, call.inputs[1])
    return _packing_kernel(call, (rows, p.num_hidden, features), bias=False, transposed=False)


def _attach(of: Op, reads: tuple[int, ...], pack: Op, product: Op, choose: ProductRule) -> None:
    """Give an operator its packed product, which computes by `choose`."""

    def nbytes(p: FullyConnectedParams, call: CallSpec) -> int | None:
        packing = choose(p, call)
        return None if packing is None else int(packing.temps[1].shape[0])

    @pack.kernel("cpu", level="library")
    def _(p: PackParams, call: CallSpec) -> Kernel | None:
        packing = choose(p.params, p.call)
        return None if packing is None else Kernel(partial(_bind_pack, packing), packing.temps[:1])

    @product.kernel("cpu", level="library")
    def _(p: PackParams, call: CallSpec) -> Kernel | None:
        packing = choose(p.params, p.call)
        return None if packing is None else Kernel(partial(_bind_product, packing), packing.temps[:1])

    of.set_attr("FPackedProduct", PackedProduct(reads, pack, product, nbytes))


def _bind_pack(
    packing: ProductKernel, p: PackParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    return packing.pack(1, ctx.temp[0], inputs[0], outputs[0])


def _bind_product(
    packing: ProductKernel, p: PackParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    first, weight, *bias, packed = inputs
    return packing.bind_packed([ctx.temp[0], packed], (first, weight, outputs[0], *bias))


_attach(op, (0, 1, 2), PACK, PACKED, _forward_kernel)
_attach(backward, (0, 2), PACK_BACKWARD, PACKED_BACKWARD, _backward_kernel)
