"""multi_sum_sq, multi_lars, reset_arrays, _contrib_group_adagrad_update: beside the steps of many weights.

multi_sum_sq   data_0 (…), data_1 (…), … -> (num_arrays,) float32: the sum of each one's squares
multi_lars     lrs, weights_sum_sq, grads_sum_sq, wds, out (n,): lr * eta * |w| / (|g| * rescale_grad + wd * |w| + eps)
               with |w|, |g| the roots of the sums; lr itself where either is 0           (You and others 2017)
reset_arrays   sets every array to 0; there is no output
group_adagrad  d = clip(rescale_grad * grad);  history (rows, 1) += mean(d^2) of each row
               weight (rows, …) - lr * d / sqrt(history + epsilon)
"""

from __future__ import annotations

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import ShapeList, TypeList, all_same_float, all_same_shape, size_of
from ..params import Field, Float, Params, PositiveInt
from ..registry import Slot, Variadic, register
from .steps import scaled


class CountParams(Params):
    num_arrays: PositiveInt = Field(description="How many arrays.")


class LarsParams(Params):
    eta: Float = Field(description="Factor on every ratio.")
    eps: Float = Field(description="Keeps the division from zero.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradients' norms.")


class GroupAdagradParams(Params):
    lr: Float = Field(description="Learning rate.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradient.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradient's elements; negative: none.")
    epsilon: Float = Field(1e-5, description="Keeps the division from zero.")


sum_sq = register(
    "multi_sum_sq", CountParams, inputs=Variadic("num_arrays", "data_"), doc="The sum of the squares of each array."
)
lars = register(
    "multi_lars",
    LarsParams,
    inputs=("lrs", "weights_sum_sq", "grads_sum_sq", "wds"),
    doc="Learning rates scaled by the norms of weights and gradients (LARS).",
)
reset = register(
    "reset_arrays",
    CountParams,
    inputs=Variadic("num_arrays", parts=("data",), aux=("data",)),
    outputs=(),
    doc="Sets arrays to 0.",
)
adagrad = register(
    "_contrib_group_adagrad_update",
    GroupAdagradParams,
    inputs=("weight", "grad", Slot("history", aux=True)),
    doc="A step of AdaGrad with one history for each row.",
).inplace((0, 0))
lars.infer_shape(all_same_shape)
lars.infer_type(all_same_float)
adagrad.infer_type(all_same_float)


@sum_sq.infer_shape
def _(p: CountParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, (p.num_arrays,))


@reset.infer_shape
def _(p: CountParams, ins: ShapeList, outs: ShapeList) -> None:
    """Arrays of any shapes."""


@reset.infer_type
def _(p: CountParams, ins: TypeList, outs: TypeList) -> None:
    """Arrays of any types."""


@sum_sq.infer_type
def _(p: CountParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "float32")
    dtype = None
    for _ in range(2):
        for i in range(len(ins)):
            dtype = ins.merge(i, dtype)


def _sum_temps(p: CountParams, call: CallSpec) -> list[Temp]:
    """Room for the largest array in the type that is summed in, where that is another than the arrays'."""
    dtype = call.inputs[0].dtype
    wide = accumulation_type(dtype)
    return [] if wide == dtype else [Temp((max(size_of(array.shape) for array in call.inputs),), wide)]


@sum_sq.compute(temps=_sum_temps)
def _(p: CountParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for i, array in enumerate(inputs):
        flat = array.reshape(-1)
        if ctx.temp:
            wide = ctx.temp[0][: flat.size]
            wide[...] = flat
            flat = wide
        outputs[0][i] = flat @ flat


def _lars_temps(p: LarsParams, call: CallSpec) -> list[Temp]:
    lrs = call.inputs[0]
    return [*[Temp(lrs.shape, lrs.dtype)] * 4, Temp(lrs.shape, np.bool_)]


@lars.compute(temps=_lars_temps)
def _(p: LarsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (lrs, weights, grads, wds), (out,) = ctx.xp, inputs, outputs
    w, g, divisor, rate, positive = ctx.temp
    xp.sqrt(weights, out=w)
    xp.sqrt(grads, out=g)
    # rate = lrs * (eta * w / (g * rescale_grad + wds * w + eps)) where both norms are positive.
    xp.multiply(g, p.rescale_grad, out=divisor)
    divisor += xp.multiply(wds, w, out=rate)
    divisor += p.eps
    xp.divide(xp.multiply(w, p.eta, out=rate), divisor, out=rate)
    rate *= lrs
    xp.greater(xp.minimum(w, g, out=divisor), 0, out=positive)
    xp.copyto(out, lrs)
    xp.copyto(out, rate, where=positive)


@reset.compute()
def _(p: CountParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for array in inputs:
        array.fill(0)


@adagrad.infer_shape
def _(p: GroupAdagradParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = outs[0]
    for _ in range(2):
        shape = ins.merge(1, ins.merge(0, shape))
    outs.merge(0, shape)
    history = ins.rank(2, 2)
    if shape is None and history is None:
        return
    rows = shape[0] if shape else history[0] if history else -1
    ins.merge(2, (rows, 1))


def _adagrad_temps(p: GroupAdagradParams, call: CallSpec) -> list[Temp]:
    weight = call.inputs[0]
    rows = weight.shape[0] if weight.shape else 0
    dtype = accumulation_type(weight.dtype)
    whole = Temp((rows, size_of(weight.shape) // max(rows, 1)), dtype)
    return [whole, whole, Temp((rows, 1), dtype)]


@adagrad.compute(temps=_adagrad_temps)
def _(p: GroupAdagradParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (weight, grad, history), (d, square, row) = ctx.xp, inputs, ctx.temp
    scaled(xp, grad.reshape(d.shape), p.rescale_grad, p.clip_gradient, d)
    if d.size:
        xp.multiply(d, d, out=square)
        xp.sum(square, axis=1, keepdims=True, out=row)
        row /= d.shape[1]
        history += row
    d *= p.lr
    xp.add(history, p.epsilon, out=row, dtype=row.dtype)
    d /= xp.sqrt(row, out=row)
    if outputs[0] is not None:
        outputs[0][...] = xp.subtract(weight.reshape(d.shape), d, out=d).reshape(weight.shape)
