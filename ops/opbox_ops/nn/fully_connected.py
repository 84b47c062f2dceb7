"""FullyConnected: out = data @ weight.T + bias, with data's trailing axes flattened.

data (batch, *features), weight (num_hidden, prod(features)), bias (num_hidden,), out (batch, num_hidden).
With flatten=False only the last axis is transformed: data (*batch, features), out (*batch, num_hidden).

    gdata = gout @ weight        gweight = gout.T @ data        gbias = gout summed over the batch
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import is_narrow
from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Reusable, Temp
from ..cpu.algorithms.large_products import MAX_PIECE_MULTIPLICATIONS
from ..gradient import backward_node
from ..infer import ShapeList, size_of
from ..linalg.product import product, wide_copies
from ..node import Entry, Node
from ..params import Bool, Field, Params, PositiveInt
from ..registry import Slot, register, register_backward, unless
from .shared_product import STACKED, SUMMED


class FullyConnectedParams(Params):
    num_hidden: PositiveInt = Field(description="Rows of weight: the width of the output.")
    no_bias: Bool = Field(False, description="Leave bias out.")
    flatten: Bool = Field(True, description="Flatten all axes of data but the first.")


_ARGUMENTS = ("data", "weight", Slot("bias", unless("no_bias")))

op = register("FullyConnected", FullyConnectedParams, inputs=_ARGUMENTS)
backward = register_backward("_backward_FullyConnected", FullyConnectedParams, outputs=_ARGUMENTS)
op.set_attr("TSharedProduct", STACKED)
backward.set_attr("TSharedProduct", SUMMED)


@op.infer_shape
def _(p: FullyConnectedParams, ins: ShapeList, outs: ShapeList) -> None:
    data, out = ins[0], outs[0]
    if data is not None and not data:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    # The axes that are summed over, and those that stay.
    summed = None if data is None else data[1:] if p.flatten else data[-1:]
    leading = None if data is None else data[:1] if p.flatten else data[:-1]
    features = -1 if summed is None or min(summed, default=0) < 0 else size_of(summed)
    weight = ins.merge(1, (p.num_hidden, features))
    if not p.no_bias:
        ins.merge(2, (p.num_hidden,))
    if leading is None:
        if p.flatten:
            outs.merge(0, (-1, p.num_hidden))
        elif out is not None and weight is not None:
            outs.merge(0, (*out[:-1], p.num_hidden))
            ins.merge(0, (*out[:-1], weight[1]))
        return
    out = outs.merge(0, (*leading, p.num_hidden))
    assert out is not None
    assert weight is not None
    assert summed is not None
    rest = list(summed)
    if rest.count(-1) == 1 and weight[1] >= 0:
        # One unknown dimension follows from the product, unless another is zero.
        others = size_of(d for d in rest if d >= 0)
        if others and weight[1] % others == 0:
            rest[rest.index(-1)] = weight[1] // others
    ins.merge(0, (*out[:-1], *rest))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_FullyConnected", node, [ograds[0], *node.inputs[:2]])


def matrix(p: FullyConnectedParams, data: Array) -> Array:
    """data as (rows, features)."""
    if p.flatten:
        return data.reshape(data.shape[0], size_of(data.shape[1:]))
    return data.reshape(size_of(data.shape[:-1]), data.shape[-1])


def _rebind(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Reusable | None:
    if inputs[0].ndim != 2 or is_narrow(outputs[0].dtype):
        return None
    dot, add = ctx.xp.dot, ctx.xp.add  # the same bits as matmul's, in half the time for small arrays

    def run(inputs: Arrays, outputs: Outputs) -> None:
        (out,) = outputs
        dot(inputs[0], inputs[1].T, out=out)
        if len(inputs) > 2:
            add(out, inputs[2], out=out)

    return run


def _is_plain_product(p: FullyConnectedParams, call: CallSpec) -> bool:
    """True if NumPy's `dot` computes the products as they are: no outer product, no type that is summed in another."""
    weight = call.inputs[1]
    return call.plain and not is_narrow(weight.dtype) and weight.shape[1] > 1


def _all_contiguous(arrays: Arrays) -> bool:
    """Return whether all arrays are contiguous: BLAS reads these in place, where `dot` would copy others."""
    return all(array.flags.c_contiguous for array in arrays)


# A step of a plan is little more than its product for small arrays, so nothing else is left for when it runs.
@op.compute("cpu", accepts=_is_plain_product, prepares=True, rebind=_rebind)
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    data = matrix(p, inputs[0])
    if not _all_contiguous(inputs) or data.shape[0] * inputs[1].size > MAX_PIECE_MULTIPLICATIONS:
        return partial(_forward, p, ctx, inputs, outputs)
    out = outputs[0].reshape(data.shape[0], p.num_hidden)
    dot, add, weight, bias = ctx.xp.dot, ctx.xp.add, inputs[1].T, None if p.no_bias else inputs[2]
    if bias is None:
        return partial(dot, data, weight, out=out)

    def call() -> None:
        dot(data, weight, out=out)
        add(out, bias, out=out)

    return call


@op.compute(temps=lambda p, call: wide_copies(*call.inputs, *call.outputs), rebind=_rebind)
def _forward(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, weight = matrix(p, inputs[0]), inputs[1]
    out = outputs[0].reshape(data.shape[0], p.num_hidden)
    product(ctx.xp, data, weight.T, out, ctx.temp, None if p.no_bias else inputs[2])


def _backward_copies(p: FullyConnectedParams, call: CallSpec) -> list[Temp]:
    gout, data, weight = call.inputs
    bias = [] if p.no_bias or not is_narrow(gout.dtype) else [Temp((p.num_hidden,), "float32")]
    return [*wide_copies(gout, weight, data), *wide_copies(gout, data, weight), *bias]


@backward.compute(
    "cpu",
    accepts=lambda p, call: call.plain and not is_narrow(call.inputs[2].dtype) and _has_terms(call),
    prepares=True,
)
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    xp, (gout, data, weight) = ctx.xp, inputs
    if not _all_contiguous(inputs) or size_of(gout.shape) // p.num_hidden * weight.size > MAX_PIECE_MULTIPLICATIONS:
        return partial(_backward, p, ctx, inputs, outputs)
    x = matrix(p, data)
    g = gout.reshape(x.shape[0], p.num_hidden)
    gdata, gweight, *gbias = outputs
    calls: list[Callable[[], Any]] = []
    if gdata is not None:
        calls.append(partial(xp.dot, g, weight, out=gdata.reshape(x.shape)))
    if gweight is not None:
        # Of one row the products are the sums; `dot` takes twice the time for these.
        calls.append(partial(xp.multiply if len(x) == 1 else xp.dot, g.T, x, out=gweight))
    if gbias and gbias[0] is not None:
        calls.append(partial(xp.add.reduce, g, axis=0, out=gbias[0]))

    return as_one(calls)


def _has_terms(call: CallSpec) -> bool:
    """Return whether both products add up more than one term: one of one is an outer product."""
    hidden = call.inputs[2].shape[0]
    return hidden > 1 and size_of(call.inputs[0].shape) > hidden


@backward.compute(temps=_backward_copies)
def _backward(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gout, data, weight) = ctx.xp, inputs
    x = matrix(p, data)
    g = gout.reshape(x.shape[0], p.num_hidden)
    if outputs[0] is not None:
        product(xp, g, weight, outputs[0].reshape(x.shape), ctx.temp[:3])
    if outputs[1] is not None:
        product(xp, g.T, x, outputs[1], ctx.temp[3:6])
    if p.no_bias or outputs[2] is None:
        return
    if not is_narrow(g.dtype):
        xp.sum(g, axis=0, out=outputs[2])
    elif xp is np or not xp.sum_rounded(g, 0, outputs[2]):
        xp.sum(g, axis=0, dtype="float32", out=ctx.temp[6])
        xp.copyto(outputs[2], ctx.temp[6], casting="unsafe")
