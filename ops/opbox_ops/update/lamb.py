"""lamb_update_phase1, lamb_update_phase2 and their mp_ forms: LAMB in two halves, with norms taken between them.

    phase1  g, the direction of the step; mean and var are rewritten
    phase2  weight - lr * r1 / r2 * g, r1 (1,) between the bounds, r2 (1,); without the ratio where either is 0

r1 is weight's norm and r2 that of g. The formulas are in `steps`. The mp_ forms compute with weight32, a float32 copy
of a float16 weight; their g, mean, var, r1 and r2 are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..accumulation import accumulation_type
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import FLOATS, ShapeList, TypeList, all_same_float, all_same_shape
from ..params import Bool, Field, Float, Params, PositiveInt
from ..registry import Op, Slot, register
from .steps import lamb_direction, moments, scaled, trust_ratio


class Phase1Params(Params):
    beta1: Float = Field(0.9, description="How much of the mean is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-6, description="Keeps the division from zero.")
    t: PositiveInt = Field(description="The number of the step, from 1 on.")
    bias_correction: Bool = Field(True, description="Divide mean and var by what a start from 0 leaves them short of.")
    wd: Float = Field(description="Weight decay.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradient.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradient's elements; negative: none.")


class Phase2Params(Params):
    lr: Float = Field(description="Learning rate.")
    lower_bound: Float = Field(-1.0, description="The least r1; negative: none.")
    upper_bound: Float = Field(-1.0, description="The largest r1; negative: none.")


def _temps(p: Any, call: CallSpec) -> Sequence[Temp]:
    shape, dtype = call.inputs[0].shape, accumulation_type(call.inputs[0].dtype)
    return [Temp(shape, dtype), Temp(shape, dtype)]


def _wide_type(ins: TypeList, outs: TypeList, narrow: tuple[int, ...], *, narrow_out: bool) -> None:
    """One narrow type for the inputs `narrow` (and the output, if it is narrow), float32 for everything else."""
    dtype = outs[0] if narrow_out else None
    for _ in range(2):
        for i in narrow:
            ins.only(i, *FLOATS)
            dtype = ins.merge(i, dtype)
    outs.merge(0, dtype if narrow_out else "float32")
    for i in range(len(ins)):
        if i not in narrow:
            ins.merge(i, "float32")


def _phase1(name: str, mixed: bool) -> Op:
    inputs: list[str | Slot] = [
        "weight",
        "grad",
        Slot("mean", aux=True),
        Slot("var", aux=True),
        *(["weight32"] if mixed else []),
    ]
    op = register(name, Phase1Params, inputs=inputs, doc="The direction of a step of LAMB.")
    op.infer_shape(all_same_shape)
    if mixed:
        op.infer_type(lambda p, ins, outs: _wide_type(ins, outs, (0, 1), narrow_out=False))
    else:
        op.infer_type(all_same_float)

    @op.compute(temps=_temps)
    def _(p: Phase1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, (d, t), (grad, mean, var) = ctx.xp, ctx.temp, inputs[1:4]
        weight = inputs[4] if mixed else inputs[0]
        scaled(xp, grad, p.rescale_grad, p.clip_gradient, d)
        moments(xp, p, mean, var, d, t)
        lamb_direction(xp, p, weight, mean, var, d, t, p.wd, p.t)
        if outputs[0] is not None:
            outputs[0][...] = d

    return op


def _phase2(name: str, mixed: bool) -> Op:
    inputs: list[str | Slot] = ["weight", "g", "r1", "r2", *([Slot("weight32", aux=True)] if mixed else [])]
    op = register(name, Phase2Params, inputs=inputs, doc="A step of LAMB along a direction.")
    op.inplace((0, 0))

    @op.infer_shape
    def _(p: Phase2Params, ins: ShapeList, outs: ShapeList) -> None:
        whole = [0, 1, 4] if mixed else [0, 1]
        shape = outs[0]
        for _ in range(2):
            for i in whole:
                shape = ins.merge(i, shape)
        outs.merge(0, shape)
        ins.merge(2, (1,))
        ins.merge(3, (1,))

    if mixed:
        op.infer_type(lambda p, ins, outs: _wide_type(ins, outs, (0,), narrow_out=True))
    else:
        op.infer_type(all_same_float)

    @op.compute(temps=lambda p, call: _temps(p, call)[:1])
    def _(p: Phase2Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, (d,), (weight, g, r1, r2) = ctx.xp, ctx.temp, inputs[:4]
        weight = inputs[4] if mixed else weight
        ratio = trust_ratio(xp, r1.astype(d.dtype), r2.astype(d.dtype), p.lower_bound, p.upper_bound)
        xp.multiply(g, (p.lr * ratio).reshape((1,) * g.ndim), out=d, dtype=d.dtype)
        xp.subtract(weight, d, out=d, dtype=d.dtype)
        if mixed:
            weight[...] = d
        if outputs[0] is not None:
            outputs[0][...] = d

    return op


_phase1("lamb_update_phase1", False)
_phase1("mp_lamb_update_phase1", True)
_phase2("lamb_update_phase2", False)
_phase2("mp_lamb_update_phase2", True)
