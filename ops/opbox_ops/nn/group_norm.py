"""GroupNorm and InstanceNorm: out = gamma (data - mean) / std + beta, over groups of channels of each sample.

data and out are (batch, channel, *spatial). GroupNorm splits the channels into num_groups groups of neighbours and
takes mean and std over the elements of each; its gamma and beta are (num_groups,), as MXNet 1.9.1 has them, and its
outputs mean and std, hidden unless output_mean_var, are (batch, num_groups). InstanceNorm has a group for each channel,
gamma and beta (channel,). std = sqrt(variance + eps), the variance biased. With x = (data - mean) / std and
g = gamma gout:

    gdata = (g - mean(g) - x mean(g x)) / std        ggamma = sum gout x        gbeta = sum gout

Wu and He, "Group Normalization" (2018); Ulyanov et al., "Instance Normalization" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, show_shape, size_of
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params, PositiveInt
from ..registry import Op, Slot, register, register_backward, when
from .standardise import Work, gradient, standardise


class GroupNormParams(Params):
    num_groups: PositiveInt = Field(1, description="Groups that the channels are split into.")
    eps: Float = Field(1e-5, description="Added to the variance.")
    output_mean_var: Bool = Field(False, description="Show the outputs mean and std.")


class InstanceNormParams(Params):
    eps: Float = Field(1e-3, description="Added to the variance.")


AnyParams: TypeAlias = "GroupNormParams | InstanceNormParams"

_shown = when("output_mean_var")

group_norm = register(
    "GroupNorm",
    GroupNormParams,
    inputs=("data", "gamma", "beta"),
    outputs=("output", Slot("mean", visible=_shown), Slot("std", visible=_shown, doc="sqrt(variance + eps)")),
)
instance_norm = register("InstanceNorm", InstanceNormParams, inputs=("data", "gamma", "beta"))


@group_norm.infer_shape
def _(p: GroupNormParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None and (len(shape) < 2 or (shape[1] >= 0 and shape[1] % p.num_groups)):
        message = f"expected channels that num_groups {p.num_groups} divides, got {show_shape(shape)}"
        raise ShapeError(message, side="input", index=0)
    for k in (1, 2):
        ins.merge(k, (p.num_groups,))
    batch = -1 if shape is None else shape[0]
    for k in (1, 2, 1):
        statistics = outs.merge(k, (batch, p.num_groups))
        batch = batch if statistics is None else statistics[0]
    if shape is not None:
        outs.merge(0, ins.merge(0, (batch, *shape[1:])))


@instance_norm.infer_shape
def _(p: InstanceNormParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None and len(shape) < 3:
        raise ShapeError(f"expected at least 3 dimensions, got {show_shape(shape)}", side="input", index=0)
    channels: tuple[int, ...] = (-1,) if shape is None else (shape[1],)
    for k in (1, 2, 1):
        channels = ins.merge(k, channels) or channels
    if shape is not None:
        outs.merge(0, ins.merge(0, (shape[0], channels[0], *shape[2:])))


def _types(p: AnyParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.only(0, "float16", "float32", "float64", "bfloat16")
    for slots in (ins, outs, ins, outs):
        for k in range(len(slots)):
            dtype = slots.merge(k, dtype)


def _grouped(array: Array, groups: int) -> Array:
    """(batch, channel, *spatial) as (batch, groups, elements of a group)."""
    batch = array.shape[0]
    return array.reshape(batch, groups, array.size // (batch * groups) if batch and groups else 0)


def _work(data: ArraySpec, gamma: ArraySpec) -> list[Temp]:
    """Temporaries of `standardise`."""
    dtype, groups = accumulation_type(data.dtype), size_of(gamma.shape)
    statistic = Temp((data.shape[0], groups, 1), dtype)
    return [Temp(data.shape, dtype), Temp(data.shape, dtype), statistic, statistic]


def _temps(p: AnyParams, call: CallSpec) -> Sequence[Temp]:
    return _work(call.inputs[0], call.inputs[1])


def _back_temps(p: AnyParams, call: CallSpec) -> Sequence[Temp]:
    work = _work(call.inputs[1], call.inputs[2])
    return [*work, work[0], work[2], Temp(call.inputs[2].shape, work[0].dtype)]


def _forward(p: AnyParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    groups = inputs[1].size
    x, product, mean, std = ctx.temp
    work = Work(_grouped(x, groups), _grouped(product, groups), mean, std)
    standardise(ctx.xp, _grouped(inputs[0], groups), p.eps, work)
    if outputs[0] is not None:
        x = work.x
        x *= inputs[1][:, None]
        ctx.xp.add(x, inputs[2][:, None], out=_grouped(outputs[0], groups), casting="same_kind")
    for target, values in zip(outputs[1:], (mean, std), strict=False):
        if target is not None:
            target[...] = values[..., 0]


def _backward(p: AnyParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, gamma = ctx.xp, inputs[2]
    groups = gamma.size
    gout, data = (_grouped(array, groups) for array in inputs[:2])
    x, product, mean, std, wide_g, middle, total = ctx.temp
    work, g = Work(_grouped(x, groups), _grouped(product, groups), mean, std), _grouped(wide_g, groups)
    standardise(xp, data, p.eps, work)
    if outputs[1] is not None:
        xp.multiply(gout, work.x, out=work.product)
        outputs[1][...] = xp.sum(work.product, axis=(0, 2), out=total)
    if outputs[2] is not None:
        outputs[2][...] = xp.sum(gout, axis=(0, 2), dtype=total.dtype, out=total)
    if outputs[0] is not None:
        xp.multiply(gout, gamma[:, None], out=g)
        gradient(xp, g, work, middle)
        _grouped(outputs[0], groups)[...] = g


def _attach(op: Op, params: type[Params]) -> None:
    name = f"_backward_{op.name}"
    backward = register_backward(name, params, outputs=("data", "gamma", "beta"))
    op.infer_type(_types)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(name, node, [ograds[0], *node.inputs[:2]])

    op.compute(temps=_temps)(_forward)
    backward.compute(temps=_back_temps)(_backward)


_attach(group_norm, GroupNormParams)
_attach(instance_norm, InstanceNormParams)
