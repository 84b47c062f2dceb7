"""_adamw_update: Adam whose weight decay acts on the weight and not through the gradient (Loshchilov and Hutter 2017).

weight, grad, mean, var and the output have one shape; rescale_grad is an array of one element, so that a loss scale can
be computed on the device; where it is zero or not finite (an overflow in mixed precision), the step is left out and
weight and state stay as they are.

    d = clip(rescale_grad * grad);  mean = beta1 * mean + (1 - beta1) * d;  var = beta2 * var + (1 - beta2) * d^2
    weight - eta * (lr * mean / (sqrt(var) + epsilon) + wd * weight)

_mp_adamw_update keeps weight32, a float32 copy of a float16 weight, and computes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from typing import Any

from ..compute import Arrays, OpContext, Outputs
from ..cuda.exact import EXACT
from ..expression.operators import prepare, temps_for
from ..expression.pointwise import Pointwise
from ..infer import ShapeList, TypeList
from ..params import Field, Float, Params
from ..registry import Slot, register
from .family import step_formulas


class AdamWParams(Params):
    lr: Float = Field(description="Learning rate.")
    beta1: Float = Field(0.9, description="How much of the mean is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-8, description="Keeps the division from zero.")
    wd: Float = Field(0.0, description="Weight decay.")
    eta: Float = Field(description="Factor on the whole step: the schedule.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradient's elements; negative: none.")


_NUMBERS = tuple(AdamWParams.model_fields)
_STEP = """
new_mean = beta1 * mean + (1 - beta1) * q
new_var = beta2 * var + (1 - beta2) * square(q)
y = x - eta * (lr * (new_mean / (sqrt(new_var) + epsilon)) + wd * x)"""
_TAKEN = """
mean = new_mean
var = new_var"""
_TAKEN_OR_LEFT_OUT = """
taken = logical_and(abs(scale) < inf, scale != 0)
mean = where(taken, new_mean, mean)
var = where(taken, new_var, var)
y = where(taken, y, x)"""

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
        inputs=("weight", "grad", *(Slot(state, aux=True) for state in states), "rescale_grad"),
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

    def step(p: AdamWParams, last: str) -> Pointwise:
        limit = "minimum(maximum({}, -clip_gradient), clip_gradient)" if p.clip_gradient >= 0 else "{}"
        lines = "q = " + limit.format("scale * grad") + _STEP + last
        return step_formulas(lines, ("mean", "var"), _NUMBERS, mixed, ("scale",)).with_numbers(dict(p))

    def formulas(p: AdamWParams, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
        return step(p, _TAKEN_OR_LEFT_OUT)

    def taken(p: AdamWParams, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
        return step(p, _TAKEN)

    op.set_attr("FExpression", formulas)

    @op.compute("cpu", temps=temps_for(taken), prepares=True)
    def _(p: AdamWParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
        write = prepare(taken, p, ctx, inputs, outputs)
        scale = inputs[-1].reshape(-1)

        def run() -> None:
            value = float(scale[0])
            if isfinite(value) and value != 0.0:
                write()
            elif outputs[0] is not None:
                ctx.xp.copyto(outputs[0], inputs[0])

        return run

    @op.compute("gpu")
    def _(p: AdamWParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        weight, grad, *states, scale = inputs
        out = outputs[0] if outputs[0] is not None else ctx.xp.empty_like(weight)
        kernel = _kernel(ctx.xp, name, str(weight.dtype), mixed)
        kernel(weight, grad, scale, *(getattr(p, key) for key in _NUMBERS), out, *states)


@cache
def _kernel(xp: Any, name: str, dtype: str, mixed: bool) -> Any:
    state, wide = ("float32" if mixed else dtype), ("double" if dtype == "float64" else "float")
    numbers = ", ".join(f"{'float64' if wide == 'double' else 'float32'} {key}" for key in _NUMBERS)
    ins = f"{dtype} w_, {dtype} g_, raw float32 scale_, {numbers}"
    outs = f"{dtype} out_, {state} mean_, {state} var_" + (", float32 weight32_" if mixed else "")
    code = _CODE.format(
        wide=wide, source="weight32_" if mixed else "w_", last="weight32_ = x;" if mixed else "", result="x"
    )
    return xp.ElementwiseKernel(ins, outs, code, f"opbox{name}", options=EXACT)


_declare("_adamw_update", False, "One step of Adam with decoupled weight decay.")
_declare("_mp_adamw_update", True, "One step of Adam with decoupled weight decay on a float32 copy.")
