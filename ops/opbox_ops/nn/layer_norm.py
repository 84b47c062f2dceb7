"""LayerNorm: out = gamma (data - mean) / std + beta, with mean and std along one axis, for each place of the others.

data and out have one shape, gamma and beta are (data.shape[axis],). The outputs mean and std, hidden unless
output_mean_var, have data's shape with length 1 along axis; std = sqrt(variance + eps), the variance biased. Their
gradients are not read, as in MXNet. With x = (data - mean) / std and g = gamma gout:

    gdata = (g - mean(g) - x mean(g x)) / std        ggamma = sum gout x        gbeta = sum gout

Ba, Kiros and Hinton, "Layer Normalization" (2016).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, Params
from ..registry import Slot, register, register_backward, when
from .standardise import Work, gradient, standardise


class LayerNormParams(Params):
    axis: Int = Field(-1, description="The axis that is normalised along.")
    eps: Float = Field(1e-5, description="Added to the variance.")
    output_mean_var: Bool = Field(False, description="Show the outputs mean and std.")


_shown = when("output_mean_var")

op = register(
    "LayerNorm",
    LayerNormParams,
    inputs=("data", "gamma", "beta"),
    outputs=("output", Slot("mean", visible=_shown), Slot("std", visible=_shown, doc="sqrt(variance + eps)")),
)
backward = register_backward("_backward_LayerNorm", LayerNormParams, outputs=("data", "gamma", "beta"))


@op.infer_shape
def _(p: LayerNormParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    for statistic in (1, 2):
        if shape is None and outs[statistic] is not None:
            known = outs[statistic] or ()
            axis = canonical_axis(p.axis, len(known))
            shape = ins.merge(0, tuple(-1 if a == axis else d for a, d in enumerate(known)))
    length: tuple[int, ...] = (-1,) if shape is None else (shape[canonical_axis(p.axis, len(shape))],)
    for k in (1, 2, 1):
        length = ins.merge(k, length) or length
    if shape is not None:
        axis = canonical_axis(p.axis, len(shape))
        shape = ins.merge(0, tuple(length[0] if a == axis else d for a, d in enumerate(shape))) or shape
        for k in (1, 2, 1):
            statistic_shape = outs.merge(k, tuple(1 if a == axis else d for a, d in enumerate(shape))) or ()
            shape = tuple(s if a == axis else d for a, (s, d) in enumerate(zip(shape, statistic_shape, strict=True)))
        outs.merge(0, ins.merge(0, shape))


@op.infer_type
def _(p: LayerNormParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.only(0, "float16", "float32", "float64", "bfloat16")
    for slots in (ins, outs, ins, outs):
        for k in range(3):
            dtype = slots.merge(k, dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_LayerNorm", node, [ograds[0], *node.inputs[:2]])


def _work(p: LayerNormParams, data: ArraySpec) -> list[Temp]:
    """Temporaries of `standardise`."""
    axis, dtype = canonical_axis(p.axis, len(data.shape)), accumulation_type(data.dtype)
    statistic = tuple(1 if a == axis else d for a, d in enumerate(data.shape))
    return [Temp(data.shape, dtype), Temp(data.shape, dtype), Temp(statistic, dtype), Temp(statistic, dtype)]


def _temps(p: LayerNormParams, call: CallSpec) -> Sequence[Temp]:
    work = _work(p, call.inputs[0])
    return [*work, Temp(call.inputs[1].shape, work[0].dtype)]


def _back_temps(p: LayerNormParams, call: CallSpec) -> Sequence[Temp]:
    work = _work(p, call.inputs[1])
    return [*work, work[0], work[2], Temp(call.inputs[2].shape, work[0].dtype)]


def _rows(p: LayerNormParams, array: Array) -> Array:
    """The array with the axis that is normalised along last."""
    return array if p.axis in (-1, array.ndim - 1) else array.swapaxes(p.axis, -1)


@op.compute(temps=_temps)
def _(p: LayerNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, gamma, beta = _rows(p, inputs[0]), inputs[1], inputs[2]
    work, parameter = Work(*(_rows(p, temp) for temp in ctx.temp[:4])), ctx.temp[4]
    standardise(ctx.xp, data, p.eps, work)
    if outputs[0] is not None:
        x = work.x
        x *= widened(gamma, parameter)
        ctx.xp.add(x, widened(beta, parameter), out=_rows(p, outputs[0]), casting="same_kind")
    for target, values in ((outputs[1], work.mean), (outputs[2], work.std)):
        if target is not None:
            _rows(p, target)[...] = values


@backward.compute(temps=_back_temps)
def _(p: LayerNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp = ctx.xp
    gout, data, gamma = _rows(p, inputs[0]), _rows(p, inputs[1]), inputs[2]
    *work_temps, g, middle = (_rows(p, temp) for temp in ctx.temp[:6])
    work, total = Work(*work_temps), ctx.temp[6]
    standardise(xp, data, p.eps, work)
    leading, gout = tuple(range(data.ndim - 1)), widened(gout, g)
    if outputs[1] is not None:
        xp.multiply(gout, work.x, out=work.product)
        outputs[1][...] = xp.sum(work.product, axis=leading, out=total)
    if outputs[2] is not None:
        outputs[2][...] = xp.sum(gout, axis=leading, out=total)
    if outputs[0] is not None:
        xp.multiply(gout, widened(gamma, total), out=g)
        gradient(xp, g, work, middle)
        _rows(p, outputs[0])[...] = g
