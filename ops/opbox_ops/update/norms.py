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
from ..infer import ShapeList, TypeList, all_same_shape
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


@sum_sq.compute(allocates="the products of numbers that are not float32")
def _(p: CountParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for i, array in enumerate(inputs):
        flat = array.reshape(-1).astype(accumulation_type(array.dtype), copy=False)
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


@adagrad.compute(allocates="the means of rows")
def _(p: GroupAdagradParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (weight, grad, history) = ctx.xp, inputs
    rows = len(weight)
    d = xp.empty((rows, weight.size // max(rows, 1)), accumulation_type(weight.dtype))
    scaled(xp, grad.reshape(d.shape), p.rescale_grad, p.clip_gradient, d)
    if d.size:
        history += (d * d).mean(axis=1, keepdims=True)
    d *= p.lr
    d /= xp.sqrt(history.astype(d.dtype, copy=False) + p.epsilon)
    if outputs[0] is not None:
        outputs[0][...] = weight - d.reshape(weight.shape)
