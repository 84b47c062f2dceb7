"""LRN: out = data scale^-beta, scale = knorm + alpha / nsize * (sum of data^2 over nsize neighbouring channels).

data and out are (batch, channel, height, width), or any shape with two dimensions or more; nsize is odd, and a channel
is in the middle of its neighbours, of which there are fewer at either end. The hidden output tmp_norm is scale.

    gdata = gout scale^-beta - 2 alpha beta / nsize * data * (sum of gout data scale^(-beta - 1) over the neighbours)

Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural Networks" (2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Field, Float, Params, PositiveInt
from ..pausing import pause
from ..registry import Slot, register, register_backward


class LRNParams(Params):
    alpha: Float = Field(1e-4, description="Weight of the neighbours' mean square.")
    beta: Float = Field(0.75, description="Exponent.")
    knorm: Float = Field(2.0, description="Added to the weighted mean square.")
    nsize: PositiveInt = Field(description="How many neighbouring channels are summed; odd.")


op = register("LRN", LRNParams, outputs=("output", Slot("tmp_norm", visible=False)))
op.infer_type(all_same_float)
op.set_attr("TSkipsUnread", True)
backward = register_backward("_backward_LRN", LRNParams, outputs=("data",))


@op.infer_shape
def _(p: LRNParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.nsize % 2 == 0:
        raise ParamError(f"LRN: parameter 'nsize': expected an odd number, got {p.nsize}")
    shape = ins[0]
    for k in (0, 1, 0):
        shape = outs.merge(k, shape)
    shape = ins.merge(0, shape)
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(shape)}", side="input", index=0)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_LRN", node, [ograds[0], node.inputs[0], Entry(node, 1)])


def _temps(count: int) -> Any:
    def rule(p: LRNParams, call: CallSpec) -> Sequence[Temp]:
        return [Temp(call.outputs[0].shape, accumulation_type(call.inputs[0].dtype))] * count

    return rule


def _neighbours(p: LRNParams, values: Array, total: Array) -> None:
    """Write to `total` the sums of `values` over each channel's neighbours."""
    total[...] = values
    for shift in range(1, min(p.nsize // 2, values.shape[1] - 1) + 1):
        pause()
        total[:, shift:] += values[:, :-shift]
        total[:, :-shift] += values[:, shift:]


def _power(xp: Any, x: Array, exponent: float, out: Array, root: Array) -> None:
    """x ** exponent; `root` is worked in, and `out` may be x."""
    if exponent == 0.75:
        # Two square roots, which vector instructions have, for the usual exponent.
        xp.sqrt(x, out=root)
        xp.sqrt(root, out=out)
        out *= root
    else:
        xp.power(x, exponent, out=out)


@op.compute(temps=_temps(2))
def _(p: LRNParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data, (square, scale) = ctx.xp, inputs[0], ctx.temp
    xp.multiply(data, data, out=square, dtype=square.dtype)
    _neighbours(p, square, scale)
    scale *= p.alpha / p.nsize
    scale += p.knorm
    if outputs[1] is not None:
        outputs[1][...] = scale
    if outputs[0] is not None:
        _power(xp, scale, p.beta, scale, square)
        xp.divide(data, scale, out=scale)
        outputs[0][...] = scale


@backward.compute(temps=_temps(3))
def _(p: LRNParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, (gout, data, scale), (direct, product, total) = ctx.xp, inputs, ctx.temp
    total[...] = scale
    _power(xp, total, p.beta, direct, product)
    xp.divide(gout, direct, out=direct)
    xp.multiply(direct, data, out=product)
    product /= scale
    _neighbours(p, product, total)
    total *= data
    total *= -2 * p.alpha * p.beta / p.nsize
    total += direct
    outputs[0][...] = total
