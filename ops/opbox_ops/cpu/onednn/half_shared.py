"""Products that share a weight (`nn.shared_product`), of float16 and bfloat16.

Stacked rows are multiplied by oneDNN where it multiplies the type, otherwise as `half_precision` has it. What summed
gradients of a weight read is widened as it is stacked, so that sums over all calls are float32's and are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...accumulation import is_narrow
from ...bound_calls import as_one
from ...compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ...expression.conversion import converting, widened_call
from ...nn.shared_product import (
    STACKED,
    SUMMED,
    SharedProductParams,
    stack,
    stacked_by,
    stacked_temps,
    sum_products,
    summed_temps,
)
from .half_product import HalfProduct, half_product
from .matmul import summed_parts, summed_product_temps

__all__: list[str] = []


def _stacked(p: SharedProductParams, call: CallSpec) -> HalfProduct | None:
    """The product of all rows; None where oneDNN is not to compute it."""
    (rows, columns), weight = call.outputs[0].shape, call.inputs[p.calls]
    if not call.plain or not is_narrow(weight.dtype):
        return None
    return half_product(weight.dtype, (rows, weight.shape[1], columns), bool(p.bias), (False, True))


@STACKED.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _stacked(p, call) is not None,
    temps=lambda p, call: [*stacked_temps(p, call), *getattr(_stacked(p, call), "temps", ())],
    prepares=True,
)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    product = _stacked(p, ctx.call)
    assert product is not None
    rows, *temps = ctx.temp
    copies = [partial(np.copyto, block, array) for block, array in stack(rows, inputs[: p.calls])]
    arrays = (rows, inputs[p.calls], outputs[0], *inputs[p.calls + 1 :])
    return as_one([*copies, product.bind(temps, arrays)])


def _summed_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    """List the outputs in float32, none for one that is not wanted, and the temporaries of the products."""
    outs = [Temp(spec.shape if call.wants(k) else (0,)) for k, spec in enumerate(call.outputs)]
    return [*outs, *summed_product_temps(p, widened_call(call))]


@SUMMED.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: is_narrow(call.inputs[0].dtype) and bool(summed_parts(p, widened_call(call))),
    temps=_summed_temps,
    prepares=True,
)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    wide = widened_call(ctx.call)
    recipes, own = summed_parts(p, wide), len(summed_temps(p, wide))
    outs = [None if out is None else room for out, room in zip(outputs, ctx.temp, strict=False)]
    temps = ctx.temp[len(outputs) :]

    def product(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], Any]]:
        return [recipes[*x.shape, adds].bind(temps[own:], (g, x, gweight))]

    sums = sum_products(p, temps[:own], inputs, outs, product, stacked_by(np, converting))
    narrowing = [converting(room, out) for room, out in zip(outs, outputs, strict=True) if out is not None]
    return as_one([sums, *narrowing])
