"""_adamw_update: Adam whose weight decay acts on the weight and not through the gradient (Loshchilov and Hutter 2017).

rescale_grad is an array of one element, so that a loss scale can be computed on the device; where it is zero or not
finite (an overflow in mixed precision), the step is left out and weight and state stay as they are.

    d = clip(rescale_grad * grad);  mean = beta1 * mean + (1 - beta1) * d;  var = beta2 * var + (1 - beta2) * d^2
    weight - eta * (lr * mean / (sqrt(var) + epsilon) + wd * weight)

_mp_adamw_update keeps weight32, a float32 copy of a float16 weight, and computes with it.
"""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from ..compute import Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..infer import ShapeList, TypeList, size_of
from ..params import Field, Float, Params
from ..registry import Slot, register
from .family import BLOCK, blocks


class AdamWParams(Params):
    lr: Float = Field(description="Learning rate.")
    beta1: Float = Field(0.9, description="How much of the mean is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-8, description="Keeps the division from zero.")
    wd: Float = Field(0.0, description="Weight decay.")
    eta: Float = Field(description="Factor on the whole step: the schedule.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradient's elements; negative: none.")


_CODE = """
    {wide} scale = scale_[0], x = {source};
    if (isfinite(scale) && scale != 0) {{
        {wide} q = scale * ({wide})g_, mean = mean_, var = var_;
        if (clip_gradient >= 0) q = q > clip_gradient ? clip_gradient : q < -clip_gradient ? -clip_gradient : q;
        mean = beta1 * mean + (1 - beta1) * q;
        var = beta2 * var + (1 - beta2) * q * q;
        x -= eta * (lr * mean / (sqrt(var) + epsilon) + wd * x);
        mean_ = mean; var_ = var; {last}
    }}
    out_ = {result};"""


def _declare(name: str, mixed: bool, doc: str) -> None:
    states = ("mean", "var", "weight32") if mixed else ("mean", "var")
    op = register(
        name,
        AdamWParams,
        inputs=("weight", "grad", *(Slot(each, aux=True) for each in states), "rescale_grad"),
        doc=doc,
    )
    op.inplace((0, 0))

    @op.infer_shape
    def _(p: AdamWParams, ins: ShapeList, outs: ShapeList) -> None:
        shape = outs[0]
        for _ in range(2):
            for i in range(len(ins) - 1):
                shape = ins.merge(i, shape)
        outs.merge(0, shape)
        ins.merge(len(ins) - 1, (1,))

    @op.infer_type
    def _(p: AdamWParams, ins: TypeList, outs: TypeList) -> None:
        dtype = outs[0]
        for _ in range(2):
            for i in range(2 if mixed else len(ins) - 1):
                dtype = ins.merge(i, dtype)
        outs.merge(0, dtype)
        for i in range(2 if mixed else len(ins) - 1, len(ins)):
            ins.merge(i, "float32")

    @op.resources
    def _(p: AdamWParams, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> list[Temp]:
        dtype = "float32" if mixed else in_types[0]
        return [Temp((min(size_of(in_shapes[0]), BLOCK),), dtype)] * 2

    @op.compute("cpu")
    def _(p: AdamWParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        scale = float(inputs[-1].reshape(-1)[0])
        if not req[0] or not isfinite(scale) or scale == 0.0:
            assign(outputs[0], req[0], inputs[0])
            return
        for views, (d, t) in blocks([*inputs[:-1], outputs[0]], ctx.temp):
            weight, grad, mean, var, *held, out = views
            master = held[0] if mixed else weight
            np.multiply(grad, scale, out=d, dtype=d.dtype)
            if p.clip_gradient >= 0:
                np.clip(d, -p.clip_gradient, p.clip_gradient, out=d)
            mean *= p.beta1
            np.multiply(d, 1.0 - p.beta1, out=t)
            mean += t
            np.multiply(d, d, out=d)
            d *= 1.0 - p.beta2
            var *= p.beta2
            var += d
            np.sqrt(var, out=d)
            d += p.epsilon
            np.divide(mean, d, out=d)
            d *= p.lr
            np.multiply(master, p.wd, out=t)
            d += t
            d *= p.eta
            if mixed:
                master -= d
                assign(out, req[0], master)
            else:
                np.subtract(weight, d, out=d)
                assign(out, req[0], d)

    @op.compute("gpu")
    def _(p: AdamWParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        if req[0]:
            weight, grad, *held, scale = inputs
            kernel = _kernel(ctx.xp, name, str(weight.dtype), mixed, req[0] == OpReq.ADD)
            kernel(weight, grad, scale, *(getattr(p, each) for each in AdamWParams.model_fields), outputs[0], *held)


@cache
def _kernel(xp: Any, name: str, dtype: str, mixed: bool, add: bool) -> Any:
    state, wide = ("float32" if mixed else dtype), ("double" if dtype == "float64" else "float")
    numbers = ", ".join(f"{'float64' if wide == 'double' else 'float32'} {each}" for each in AdamWParams.model_fields)
    ins = f"{dtype} w_, {dtype} g_, raw float32 scale_, {numbers}"
    outs = f"{dtype} out_, {state} mean_, {state} var_" + (", float32 weight32_" if mixed else "")
    code = _CODE.format(
        wide=wide,
        source="weight32_" if mixed else "w_",
        last="weight32_ = x;" if mixed else "",
        result=f"({wide})out_ + x" if add else "x",
    )
    return xp.ElementwiseKernel(ins, outs, code, f"opbox{name}")


_declare("_adamw_update", False, "One step of Adam with decoupled weight decay.")
_declare("_mp_adamw_update", True, "One step of Adam with decoupled weight decay on a float32 copy.")
