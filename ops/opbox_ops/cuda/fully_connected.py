"""FullyConnected with a bias by cuBLASLt: one call, whose kernel adds the bias before it rounds.

The reference, a product of cuBLAS and a sum behind it, runs what cuBLASLt does not: other types, empty arrays, no bias,
whatever it has no algorithm for, and everything where it is absent or OPBOX_DISABLE names it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opbox_protocol.errors import MXNetError

from .. import switches
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs
from ..infer import size_of
from ..nn.fully_connected import FullyConnectedParams, op
from .cublaslt import ALIGNMENT, DATA_TYPES, BiasedProduct, planned
from .kernel import contiguous

__all__ = ["takes"]

_MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of an array."""


def _problem(p: FullyConnectedParams, call: CallSpec) -> BiasedProduct:
    weight, out = call.inputs[1], call.outputs[0]
    return BiasedProduct.of(weight.dtype.name, size_of(out.shape) // p.num_hidden, p.num_hidden, weight.shape[1])


def takes(p: FullyConnectedParams, call: CallSpec) -> bool:
    """Return whether cuBLASLt runs a call on the current device."""
    kind = call.inputs[0].dtype
    return bool(
        call.device == "gpu"
        and call.plain
        and not p.no_bias
        and not switches.is_off("cublaslt")
        and kind.name in DATA_TYPES
        and all(
            array.dtype == kind and 0 < size_of(array.shape) <= _MAX_ELEMENTS for array in (*call.inputs, *call.outputs)
        )
        and planned(_problem(p, call)) is not None
    )


@op.compute("gpu", level="library", prepares=True, accepts=takes)
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, weight, bias), calls = contiguous(ctx, inputs, ALIGNMENT)
    (out,) = outputs
    target = ctx.backend.empty(out.shape, out.dtype) if out.data.ptr % ALIGNMENT else out
    product = planned(_problem(p, ctx.call))
    if product is None:
        raise MXNetError("cuBLASLt: expected an algorithm for the product on this device too")
    calls.append(product.bind(data, weight, bias, target))
    if target is not out:
        calls.append(partial(ctx.xp.copyto, out, target))
    return as_one(calls)
