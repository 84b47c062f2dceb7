"""IdentityAttachKLSparseReg: out = data, with a gradient that draws each unit's mean activation to a target.

data and out are (batch, units, …), data between 0 and 1 (a sigmoid's outputs). The auxiliary state moving_avg (units,)
follows the mean of data over all but the units: backward brings it up to date,

    moving_avg = momentum moving_avg + (1 - momentum) mean
    gdata = gout + penalty ((1 - sparseness_target) / (1 - moving_avg) - sparseness_target / moving_avg)

which adds the derivative of the Kullback-Leibler divergence of the target from moving_avg.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Field, Float, OpenShare, Params, Share
from ..registry import Slot, register, register_backward


class SparseRegularizationParams(Params):
    sparseness_target: OpenShare = Field(0.1, description="The mean activation to draw to.")
    penalty: Float = Field(0.001, description="Weight of the divergence.")
    momentum: Share = Field(0.9, description="Weight of the old mean.")


op = register(
    "IdentityAttachKLSparseReg", SparseRegularizationParams, inputs=("data", Slot("moving_avg", aux=True))
).inplace((0, 0))
op.infer_type(all_same_float)
backward = register_backward("_backward_IdentityAttachKLSparseReg", SparseRegularizationParams, outputs=("data",))
# Backward writes the moving mean: its last input.
backward.set_attr("FMutateInputs", lambda p: (2,))


@op.infer_shape
def _(p: SparseRegularizationParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(shape)}", side="input", index=0)
    units = ins.merge(1, (-1,) if shape is None else (shape[1],)) or (-1,)
    if shape is not None:
        outs.merge(0, ins.merge(0, (shape[0], units[0], *shape[2:])))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_IdentityAttachKLSparseReg", node, [*ograds, *node.inputs])


def _spread(values: Array, ndim: int) -> Array:
    """(units,) values, to broadcast with data."""
    return values.reshape(-1, *(1,) * (ndim - 2))


@op.compute()
def _(p: SparseRegularizationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None and outputs[0] is not inputs[0]:
        outputs[0][...] = inputs[0]


def _back_temps(p: SparseRegularizationParams, call: CallSpec) -> list[Temp]:
    moving = call.inputs[2]
    own = Temp(moving.shape, moving.dtype)
    return [Temp(moving.shape, accumulation_type(moving.dtype)), own, own]


@backward.compute(temps=_back_temps)
def _(p: SparseRegularizationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gout, data, moving), (mean, pull, term) = ctx.xp, inputs, ctx.temp
    if data.size:
        xp.sum(data, axis=(0, *range(2, data.ndim)), dtype=mean.dtype, out=mean)
        mean /= data.size // len(mean)
        pull[...] = mean
        pull *= 1 - p.momentum
        moving *= p.momentum
        moving += pull
    if outputs[0] is not None:
        xp.subtract(1, moving, out=pull)
        xp.divide(1 - p.sparseness_target, pull, out=pull)
        pull -= xp.divide(p.sparseness_target, moving, out=term)
        pull *= p.penalty
        xp.add(gout, _spread(pull, data.ndim), out=outputs[0], casting="same_kind")
