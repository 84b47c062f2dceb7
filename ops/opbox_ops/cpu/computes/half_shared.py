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
from ...compute import Arrays, CallSpec, Kernel, OpContext, Outputs, Temp
from ...expression.conversion import converting, widened_call
from ...nn.shared_product import STACKED, SUMMED, SharedProductParams, stack, stacked_by, stacked_temps
from .half_product import HalfProduct, half_product
from .matmul import SummedProducts, summed_products

__all__: list[str] = []


@STACKED.kernel("cpu", level="library")
def _(p: SharedProductParams, call: CallSpec) -> Kernel | None:
    (rows, columns), weight = call.outputs[0].shape, call.inputs[p.calls]
    if not call.plain or not is_narrow(weight.dtype):
        return None
    product = half_product(weight.dtype, (rows, weight.shape[1], columns), bool(p.bias), (False, True))
    return (
        None if product is None else Kernel(partial(_bind_stacked, product), (*stacked_temps(p, call), *product.temps))
    )


def _bind_stacked(
    product: HalfProduct, p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    rows, *temps = ctx.temp
    copies = [partial(np.copyto, block, array) for block, array in stack(rows, inputs[: p.calls])]
    arrays = (rows, inputs[p.calls], outputs[0], *inputs[p.calls + 1 :])
    return as_one([*copies, product.bind(temps, arrays)])


@SUMMED.kernel("cpu", level="library")
def _(p: SharedProductParams, call: CallSpec) -> Kernel | None:
    products = summed_products(p, widened_call(call)) if is_narrow(call.inputs[0].dtype) else None
    if products is None:
        return None
    # The outputs in float32, none for one that is not wanted.
    outs = [Temp(spec.shape if call.wants(k) else (0,)) for k, spec in enumerate(call.outputs)]
    return Kernel(partial(_bind_summed, products), (*outs, *products.temps))


def _bind_summed(
    products: SummedProducts, p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    outs = [None if out is None else scratch for out, scratch in zip(outputs, ctx.temp, strict=False)]
    sums = products.bind(p, ctx.temp[len(outputs) :], inputs, outs, stacked_by(np, converting))
    narrowing = [converting(scratch, out) for scratch, out in zip(outs, outputs, strict=True) if out is not None]
    return as_one([sums, *narrowing])
