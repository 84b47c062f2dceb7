"""L2Normalization: out = data / norm, norm = sqrt(sum data^2 + eps), over parts of each sample.

data and out are (batch, channel, *spatial), with at least three dimensions unless the mode is "instance". The hidden
output norm has a value for each part:

    instance  all of a sample              norm (batch,)
    channel   the channels of a place      norm (batch, *spatial)
    spatial   the places of a channel      norm (batch, channel)

    gdata = (gout - out sum(gout out)) / norm
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import Slot, register, register_backward


class L2NormalizationParams(Params):
    eps: Float = Field(1e-10, description="Added to the sum of squares.")
    mode: Literal["channel", "instance", "spatial"] = Field("instance", description="What is normalised together.")


op = register("L2Normalization", L2NormalizationParams, outputs=("output", Slot("norm", visible=False)))
op.infer_type(all_same_float)
backward = register_backward("_backward_L2Normalization", L2NormalizationParams, outputs=("data",))


@op.infer_shape
def _(p: L2NormalizationParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is None:
        return
    least = 1 if p.mode == "instance" else 3
    if len(shape) < least:
        message = f"expected at least {least} dimensions with mode {p.mode!r}, got {show_shape(shape)}"
        raise ShapeError(message, side="input", index=0)
    axes = _axes(p, len(shape))
    norm = outs.merge(1, tuple(d for a, d in enumerate(shape) if a not in axes))
    lengths = iter(norm or ())
    outs.merge(0, ins.merge(0, tuple(d if a in axes else next(lengths) for a, d in enumerate(shape))))


def _axes(p: L2NormalizationParams, ndim: int) -> tuple[int, ...]:
    """The axes that are summed over."""
    return (1,) if p.mode == "channel" else tuple(range(2 if p.mode == "spatial" else 1, ndim))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_L2Normalization", node, [ograds[0], *node.entries()])


def _work(p: L2NormalizationParams, data: ArraySpec) -> list[Temp]:
    """An array like data and one like the norms, in the type that is summed in."""
    axes, dtype = _axes(p, len(data.shape)), accumulation_type(data.dtype)
    return [Temp(data.shape, dtype), Temp(tuple(1 if a in axes else d for a, d in enumerate(data.shape)), dtype)]


def _temps(p: L2NormalizationParams, call: CallSpec) -> Sequence[Temp]:
    return _work(p, call.inputs[0])


def _spread(p: L2NormalizationParams, norm: Array, ndim: int) -> Array:
    """norm with length 1 along the axes that are summed over."""
    axes = _axes(p, ndim)
    lengths = iter(norm.shape)
    return norm.reshape(tuple(1 if a in axes else next(lengths) for a in range(ndim)))


@op.compute(temps=_temps)
def _(p: L2NormalizationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data, (square, norm) = ctx.xp, inputs[0], ctx.temp
    xp.multiply(data, data, out=square, dtype=square.dtype)
    xp.sum(square, axis=_axes(p, data.ndim), keepdims=True, out=norm)
    norm += p.eps
    xp.sqrt(norm, out=norm)
    if outputs[0] is not None:
        xp.divide(data, norm, out=square)
        outputs[0][...] = square
    if outputs[1] is not None:
        outputs[1][...] = norm.reshape(outputs[1].shape)


@backward.compute(temps=_temps)
def _(p: L2NormalizationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    gout, out, norm = inputs
    product, total = ctx.temp
    ctx.xp.multiply(gout, out, out=product, dtype=product.dtype)
    ctx.xp.sum(product, axis=_axes(p, out.ndim), keepdims=True, out=total)
    ctx.xp.multiply(out, total, out=product)
    ctx.xp.subtract(gout, product, out=product)
    product /= _spread(p, norm, out.ndim)
    outputs[0][...] = product
