"""FullyConnected called many times with one weight, which is laid out for oneDNN's matmul once for all calls.

    pack        weight (num_hidden, features) -> packed: bytes, as oneDNN wants it for data of these rows
    product     data, weight, bias, packed -> out, as FullyConnected gives it, to the last bit

The calls of a recurrent network wait for one another, so that their products stay apart; their weight is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..nn.fully_connected import FullyConnectedParams, op
from ..nn.packed_product import LEAST_CALLS, PACK, PACKED, PackParams
from .matmul import all_plain_float32, features_of
from .product import ProductRecipe, packing_recipe

__all__ = ["LEAST_CALLS"]


def _recipe(p: FullyConnectedParams, call: CallSpec) -> ProductRecipe | None:
    """Return the recipe of a product with a packed weight; None where oneDNN has none."""
    if not all_plain_float32(call):
        return None
    return packing_recipe((*features_of(p, call.inputs[0]), p.num_hidden), not p.no_bias)


def _packed_bytes(p: FullyConnectedParams, call: CallSpec) -> int | None:
    """The bytes of the packed weight of a FullyConnected; None where it is not to be packed."""
    recipe = _recipe(p, call)
    return None if recipe is None else int(recipe.temps[1].shape[0])


op.set_attr("FPackedProduct", _packed_bytes)


def _of_pack(p: PackParams) -> ProductRecipe:
    recipe = _recipe(p.params, p.call)
    assert recipe is not None
    return recipe


@PACK.compute("cpu", level="library", temps=lambda p, call: [_of_pack(p).temps[0]], prepares=True)
def _(p: PackParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    return _of_pack(p).pack(1, ctx.temp[0], inputs[0], outputs[0])


def _product_temps(p: PackParams, call: CallSpec) -> list[Temp]:
    return [_of_pack(p).temps[0]]


@PACKED.compute("cpu", level="library", temps=_product_temps, prepares=True)
def _(p: PackParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    data, weight, *bias, packed = inputs
    return _of_pack(p).bind_packed([ctx.temp[0], packed], (data, weight, outputs[0], *bias))
