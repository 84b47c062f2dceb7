"""multi_sgd_update and its kin: one call takes a step of many weights.

The inputs come weight by weight: weight_0, grad_0, its states, weight_1, …; output i is the new weight i. Element i of
a tuple (lrs, wds, etas, …) is weight i's. The formulas are in `steps`.

    multi_sgd_update, multi_sgd_mom_update           lrs and wds are parameters
    preloaded_multi_sgd_update, …_sgd_mom_update     lrs and wds (n,) are arrays, the last two inputs
    _multi_lamb_update, _multi_adamw_update          with mean and var; adamw's last input is rescale_grad (1,), and
                                                     where that is 0 or not finite nothing changes
    …_mp_…                                           computes with weight32, a float32 copy of a float16 weight; states
                                                     are float32
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from opbox_protocol.errors import ParamError

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import FLOATS, ShapeList, TypeList, size_of
from ..params import Bool, Count, Field, Float, FloatTuple, Params, Shape
from ..registry import Counted, Variadic, register
from .steps import adamw, lamb_direction, lamb_step, moments, scaled, sgd


class PreloadedSgdParams(Params):
    rescale_grad: Float = Field(1.0, description="Factor on the gradients.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradients' elements; negative: none.")
    num_weights: Count = Field(1, description="How many weights.")


class PreloadedMomentumParams(PreloadedSgdParams):
    momentum: Float = Field(0.0, description="How much of the last step is kept.")


class MultiSgdParams(PreloadedSgdParams):
    lrs: FloatTuple = Field(description="Learning rates.")
    wds: FloatTuple = Field(description="Weight decays.")


class MultiMomentumParams(MultiSgdParams):
    momentum: Float = Field(0.0, description="How much of the last step is kept.")


class LambParams(Params):
    learning_rates: FloatTuple = Field(description="Learning rates.")
    beta1: Float = Field(0.9, description="How much of the mean is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-6, description="Keeps the division from zero.")
    wds: FloatTuple = Field(description="Weight decays.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradients.")
    lower_bound: Float = Field(-1.0, description="The least norm of a weight; negative: none.")
    upper_bound: Float = Field(-1.0, description="The largest norm of a weight; negative: none.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradients' elements; negative: none.")
    bias_correction: Bool = Field(True, description="Divide mean and var by what a start from 0 leaves them short of.")
    step_count: Shape = Field(description="The number of each weight's step, from 1 on.")
    num_tensors: Count = Field(1, description="How many weights.")


class MultiAdamWParams(Params):
    lrs: FloatTuple = Field(description="Learning rates.")
    beta1: Float = Field(0.9, description="How much of the mean is kept.")
    beta2: Float = Field(0.999, description="How much of the mean square is kept.")
    epsilon: Float = Field(1e-8, description="Keeps the division from zero.")
    wds: FloatTuple = Field(description="Weight decays.")
    etas: FloatTuple = Field(description="Factors on the whole steps: the schedules.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradients' elements; negative: none.")
    num_weights: Count = Field(1, description="How many weights.")


UpdateFunction = Callable[[Any, Any, int, Array, Array, list[Array], Array, Array, Arrays], None]
"""`(xp, p, number, weight, narrow, states, d, scratch, last inputs)`: d is the gradient and becomes the new weight;
`narrow` is the weight that `weight`, a float32 copy, was made of, or the same array."""


def _sgd(
    xp: Any, p: Any, i: int, weight: Array, narrow: Array, states: list[Array], d: Array, t: Array, last: Arrays
) -> None:
    scaled(xp, d, p.rescale_grad, p.clip_gradient, d)
    lr, wd = (last[0][i], last[1][i]) if last else (p.lrs[i], p.wds[i])
    sgd(xp, weight, states[0] if states else None, d, t, lr, wd, getattr(p, "momentum", 0.0))


def _lamb(
    xp: Any, p: LambParams, i: int, weight: Array, narrow: Array, states: list[Array], d: Array, t: Array, last: Arrays
) -> None:
    mean, var = states
    scaled(xp, d, p.rescale_grad, p.clip_gradient, d)
    moments(xp, p, mean, var, d, t)
    lamb_direction(xp, p, weight, mean, var, d, t, p.wds[i], p.step_count[i])
    lamb_step(xp, p, weight, narrow, d, t, p.learning_rates[i])


def _adamw(
    xp: Any,
    p: MultiAdamWParams,
    i: int,
    weight: Array,
    narrow: Array,
    states: list[Array],
    d: Array,
    t: Array,
    last: Arrays,
) -> None:
    scale = float(last[0].reshape(-1)[0])
    if scale == 0 or not isfinite(scale):
        d[...] = weight
        return
    scaled(xp, d, scale, p.clip_gradient, d)
    mean, var = states
    adamw(xp, p, weight, mean, var, d, t, p.lrs[i], p.wds[i], p.etas[i])


@dataclass(frozen=True)
class Family:
    """A row of the table.

    Attributes:
        name: the operator's, with {mp} where the form with a float32 copy has its mark.
        params: its parameters.
        count: the parameter that says how many weights there are.
        lists: the parameters that have a number for each weight.
        states: names of a weight's states.
        last: names of the inputs after all weights', and whether each has a number for each weight (or one for all).
        step: one weight's step.
    """

    name: str
    params: type[Params]
    count: str
    lists: tuple[str, ...]
    states: tuple[str, ...]
    step: UpdateFunction
    last: tuple[str, ...] = ()


SGD_LISTS = ("lrs", "wds")
LAMB_LISTS = ("learning_rates", "wds", "step_count")
TABLE = (
    Family("multi_{mp}sgd_update", MultiSgdParams, "num_weights", SGD_LISTS, (), _sgd),
    Family("multi_{mp}sgd_mom_update", MultiMomentumParams, "num_weights", SGD_LISTS, ("mom",), _sgd),
    Family("preloaded_multi_{mp}sgd_update", PreloadedSgdParams, "num_weights", (), (), _sgd, SGD_LISTS),
    Family("preloaded_multi_{mp}sgd_mom_update", PreloadedMomentumParams, "num_weights", (), ("mom",), _sgd, SGD_LISTS),
    Family("_multi_{mp}lamb_update", LambParams, "num_tensors", LAMB_LISTS, ("mean", "var"), _lamb),
    Family(
        "_multi_{mp}adamw_update",
        MultiAdamWParams,
        "num_weights",
        ("lrs", "wds", "etas"),
        ("mean", "var"),
        _adamw,
        ("rescale_grad",),
    ),
)


def _declare(row: Family, mixed: bool) -> None:
    name = row.name.format(mp="mp_" if mixed else "")
    states = (*row.states, "weight32") if mixed else row.states
    group = ("weight", "grad", *states)

    inputs = Variadic(row.count, parts=group, aux=states, last=row.last)
    op = register(name, row.params, inputs=inputs, outputs=Counted(row.count), doc="A step of many weights at once.")
    op.set_attr("FInplaceOption", lambda p: tuple((i * len(group), i) for i in range(getattr(p, row.count))))

    def check(p: Any) -> None:
        count = getattr(p, row.count)
        for key in row.lists:
            if len(getattr(p, key)) != count:
                raise ParamError(f"{name}: parameter {key!r}: expected {count} numbers, got {len(getattr(p, key))}")

    @op.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        check(p)
        count = getattr(p, row.count)
        for i in range(count):
            shape = outs[i]
            for _ in range(2):
                for k in range(len(group)):
                    shape = ins.merge(i * len(group) + k, shape)
            outs.merge(i, shape)
        for k in range(count * len(group), len(ins)):
            ins.merge(k, (1,) if row.last == ("rescale_grad",) else (count,))

    @op.infer_type
    def _(p: Any, ins: TypeList, outs: TypeList) -> None:
        count = getattr(p, row.count)
        own = [i * len(group) + k for i in range(count) for k in range(2 if mixed else len(group))]
        dtype = next((d for d in (*outs, *(ins[k] for k in own)) if d is not None), None)
        for k in own:
            ins.merge(k, dtype)
            ins.only(k, *FLOATS)
        for i in range(count):
            outs.merge(i, dtype)
        for k in range(len(ins)):
            if k not in own:
                ins.merge(k, "float32")

    def temps(p: Any, call: CallSpec) -> Sequence[Temp]:
        largest = max((size_of(out.shape) for out in call.outputs), default=0)
        dtype = accumulation_type(call.outputs[0].dtype)
        copies = 0 if mixed or dtype == call.outputs[0].dtype else 1 + len(row.states)
        return [Temp((largest,), dtype)] * (2 + copies)

    @op.compute(temps=temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        last = inputs[len(outputs) * len(group) :]
        for i, out in enumerate(outputs):
            weight, grad, *own = inputs[i * len(group) : (i + 1) * len(group)]
            d, t, *copies = (temp[: weight.size].reshape(weight.shape) for temp in ctx.temp)
            master = own.pop() if mixed else weight
            d[...] = grad
            # In half precision a step is taken in float32, and rounded once.
            wide = [widened(*pair) for pair in zip((master, *own), copies, strict=True)] if copies else [master, *own]
            row.step(ctx.xp, p, i, wide[0], weight, wide[1:], d, t, last)
            if copies:
                for state, copy in zip(own, wide[1:], strict=True):
                    state[...] = copy
            if mixed:
                master[...] = d
            if out is not None:
                out[...] = d


for _row in TABLE:
    for _mixed in (False, True):
        _declare(_row, _mixed)
