"""BatchNorm_v1 and _contrib_SyncBatchNorm: BatchNorm along axis 1, whose output var is the variance.

    out = gamma (data - mean) / sqrt(var + eps) + beta

data and out are (batch, channel, *spatial), gamma, beta, moving_mean, moving_var and the outputs mean and var
(channel,). In training mean and var are the batch's (var biased), otherwise, and with use_global_stats, the moving
ones. With fix_gamma gamma is 1, is set to 1, and its gradient is 0. With n elements a channel and
x = (data - mean) / sqrt(var + eps):

    gbeta = sum gout      ggamma = sum gout x      gdata = gamma (gout - gbeta / n - x ggamma / n) / sqrt(var + eps)

and gdata = gamma gout / sqrt(var + eps) with global statistics. As in MXNet, backward brings the moving statistics up
to date: moving = momentum moving + (1 - momentum) batch's. _contrib_SyncBatchNorm sums over the ndev devices of a
group, named by key; an executor of opbox has one device, so that its batch is the whole batch.
Ioffe and Szegedy, "Batch Normalization" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opbox_protocol.errors import ShapeError
from opbox_protocol.mxnet import STATE_INITIALIZERS

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params, PositiveInt
from ..registry import Op, Slot, register, register_backward, when


class BatchNormV1Params(Params):
    eps: Float = Field(1e-3, description="Added to the variance.")
    momentum: Float = Field(0.9, description="Weight of the old moving statistics.")
    fix_gamma: Bool = Field(True, description="Keep gamma at 1.")
    use_global_stats: Bool = Field(False, description="Use the moving statistics in training too.")
    output_mean_var: Bool = Field(False, description="Show the outputs mean and var.")


class SyncBatchNormParams(BatchNormV1Params):
    ndev: PositiveInt = Field(1, description="Devices that share the statistics; has no effect.")
    key: str = Field(description="Name of the group of devices; has no effect.")


def _channels(ndim: int) -> tuple[int, ...]:
    """The axes that a channel's statistics are taken over."""
    return (0, *range(2, ndim))


def _spread(values: Array, ndim: int) -> Array:
    """(channel,) values, to broadcast with data."""
    return values.reshape(-1, *(1,) * (ndim - 2))


def _shapes(p: BatchNormV1Params, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(shape)}", side="input", index=0)
    channels: tuple[int, ...] = (-1,) if shape is None else (shape[1],)
    for slots, indices in ((ins, (1, 2, 3, 4)), (outs, (1, 2))) * 2:
        for k in indices:
            channels = slots.merge(k, channels) or channels
    if shape is not None:
        outs.merge(0, ins.merge(0, (shape[0], channels[0], *shape[2:])))


def _types(p: BatchNormV1Params, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.merge(0, outs.merge(0, ins.only(0, "float16", "float32", "float64", "bfloat16")))
    if dtype is not None:
        for slots, indices in ((ins, (1, 2, 3, 4)), (outs, (1, 2))):
            for k in indices:
                slots.merge(k, accumulation_type(dtype))


def _temps(data: int) -> Any:
    """Two arrays like data and three of a value a channel, in the type of the statistics."""

    def rule(p: BatchNormV1Params, call: CallSpec) -> Sequence[Temp]:
        shape, dtype = call.inputs[data].shape, accumulation_type(call.inputs[data].dtype)
        return [Temp(shape, dtype)] * 2 + [Temp(shape[1:2], dtype)] * 3

    return rule


def _forward(p: BatchNormV1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (data, gamma, beta, moving_mean, moving_var) = ctx.xp, inputs
    x, square, mean, var, scale = ctx.temp
    if p.fix_gamma and getattr(gamma.flags, "writeable", True):
        gamma[...] = 1
    if ctx.is_train and not p.use_global_stats:
        axes, n = _channels(data.ndim), max(1, data.size // max(1, data.shape[1]))
        xp.sum(data, axis=axes, dtype=x.dtype, out=mean)
        mean /= n
        xp.subtract(data, _spread(mean, data.ndim), out=x)
        xp.multiply(x, x, out=square)
        xp.sum(square, axis=axes, out=var)
        var /= n
    else:
        mean, var = moving_mean, moving_var
        xp.subtract(data, _spread(mean, data.ndim), out=x)
    if outputs[0] is not None:
        xp.add(var, p.eps, out=scale)
        xp.sqrt(scale, out=scale)
        xp.divide(1 if p.fix_gamma else gamma, scale, out=scale)
        x *= _spread(scale, data.ndim)
        x += _spread(beta, data.ndim)
        outputs[0][...] = x
    for target, values in zip(outputs[1:], (mean, var), strict=True):
        if target is not None:
            target[...] = values


def _backward(p: BatchNormV1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (x, product, inverse, ggamma, gbeta) = ctx.xp, ctx.temp
    gout, data, gamma, mean, var, moving_mean, moving_var = inputs
    axes, n = _channels(data.ndim), max(1, data.size // max(1, data.shape[1]))
    of_batch = ctx.is_train and not p.use_global_stats
    if not of_batch:  # also behind a forward in training
        mean, var = moving_mean, moving_var
    xp.add(var, p.eps, out=inverse)
    xp.sqrt(inverse, out=inverse)
    xp.divide(1, inverse, out=inverse)
    xp.subtract(data, _spread(mean, data.ndim), out=x)
    x *= _spread(inverse, data.ndim)
    xp.multiply(gout, x, out=product)
    xp.sum(product, axis=axes, out=ggamma)
    xp.sum(gout, axis=axes, dtype=x.dtype, out=gbeta)
    if outputs[1] is not None:
        outputs[1][...] = 0 if p.fix_gamma else ggamma
    if outputs[2] is not None:
        outputs[2][...] = gbeta
    if outputs[0] is not None:
        if of_batch:
            ggamma /= -n
            gbeta /= n
            x *= _spread(ggamma, data.ndim)
            x += gout
            x -= _spread(gbeta, data.ndim)
        else:
            x[...] = gout
        if not p.fix_gamma:
            inverse *= gamma
        x *= _spread(inverse, data.ndim)
        outputs[0][...] = x
    if of_batch and data.size:
        for moving, batch in ((moving_mean, mean), (moving_var, var)):
            moving *= p.momentum
            moving += xp.multiply(batch, 1 - p.momentum, out=gbeta)


def _register(name: str, params: type[BatchNormV1Params], aliases: tuple[str, ...] = ()) -> Op:
    shown = when("output_mean_var")
    op = register(
        name,
        params,
        inputs=("data", "gamma", "beta", Slot("moving_mean", aux=True), Slot("moving_var", aux=True)),
        outputs=("output", Slot("mean", visible=shown), Slot("var", visible=shown)),
        aliases=aliases,
    )
    op.set_attr("FSetInputVarAttrOnCompose", STATE_INITIALIZERS)
    backward = register_backward(f"_backward_{name}", params, outputs=("data", "gamma", "beta"))
    # Backward writes the moving statistics: its last two inputs.
    backward.set_attr("FMutateInputs", lambda p: (5, 6))
    op.infer_shape(_shapes)
    op.infer_type(_types)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        data, gamma, _, *moving = node.inputs
        inputs = [ograds[0], data, gamma, Entry(node, 1), Entry(node, 2), *moving]
        return backward_node(f"_backward_{name}", node, inputs)

    op.compute(temps=_temps(0))(_forward)
    backward.compute(temps=_temps(1))(_backward)
    return op


_register("BatchNorm_v1", BatchNormV1Params)
_register("_contrib_SyncBatchNorm", SyncBatchNormParams)
