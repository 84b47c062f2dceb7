"""Code shared by the update operators: their declaration, the gradient that enters the step, and running a step.

An operator reads weight and grad, keeps its state in auxiliary inputs that it rewrites, and writes the new weight, as a
rule over the old one. The step is a few formulas, one a line, of `x` (the weight), `q` (the gradient as the step takes
it), `grad` (the raw one), the states by their names and the parameters; a line gives its name a new value for the
lines after it, and `y` is the new weight. On the CPU the formulas run as they are; for the GPU the step is written down
once more, as the body of one kernel that reads and writes each array once.

    q = clip(rescale_grad * grad, clip_gradient) + wd * weight         clip before decay (SGD and its kin)
    q = clip(rescale_grad * grad + wd * weight, clip_gradient)         clip after decay (Adam, RMSProp, FTML)

A negative clip_gradient clips nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeAlias

from ..bound_calls import Call
from ..compute import Arrays, OpContext, Outputs
from ..cuda.exact import EXACT
from ..cuda.updates import ManySteps
from ..expression.language import Expression, definitions
from ..expression.operators import prepare, rebinding, temps_for
from ..expression.pointwise import Pointwise
from ..infer import TypeList, all_same_shape
from ..params import Field, Float, Params
from ..registry import Op, Slot, register

__all__ = ["Order", "UpdateParams", "declare", "step_formulas"]

Order: TypeAlias = Literal["clip first", "decay first", "no decay", "raw"]


class UpdateParams(Params):
    lr: Float = Field(description="Learning rate.")
    wd: Float = Field(0.0, description="Weight decay: adds wd * weight to the gradient.")
    rescale_grad: Float = Field(1.0, description="Factor on the gradient.")
    clip_gradient: Float = Field(-1.0, description="Limit of the rescaled gradient's elements; negative: none.")


def gradient_line(order: Order, numbers: Mapping[str, float]) -> str:
    """The line that makes `q`, without what does nothing for these parameters."""
    if order == "raw":
        return ""
    clip = "clip_grad" if "clip_grad" in numbers else "clip_gradient"
    limit = f"minimum(maximum({{}}, -{clip}), {clip})" if numbers[clip] >= 0 else "{}"
    scaled = "grad" if numbers["rescale_grad"] == 1 else "rescale_grad * grad"
    decays = numbers["wd"] and order != "no decay"
    if order == "decay first":
        return "q = " + limit.format(f"{scaled} + wd * x" if decays else scaled)
    return "q = " + limit.format(scaled) + (" + wd * x" if decays else "")


@cache
def step_formulas(
    lines: str, states: tuple[str, ...], numbers: tuple[str, ...], mixed: bool, more: tuple[str, ...] = ()
) -> Pointwise:
    """The formulas of a step: what it leaves in the states, and the new weight.

    Args:
        lines: the lines, the one that makes `q` first.
        states: names of the states, without the float32 copy of the weight.
        numbers: names of the parameters.
        mixed: whether the weight is narrow, and a float32 copy of it, the last state, is what is updated.
        more: names of further inputs.
    """
    weight = ("narrow", "grad", *states, "x") if mixed else ("x", "grad", *states)
    inputs = (*weight, *more)
    values = definitions(lines, (*inputs, *numbers))
    written = {2 + i: values[name] for i, name in enumerate(states) if name in values}
    if mixed:
        written[2 + len(states)] = values["y"]
    state_formulas = {i: Expression.of(term, inputs, numbers) for i, term in written.items()}
    return Pointwise(inputs, (Expression.of(values["y"], inputs, numbers),), state_formulas)


def declare(
    name: str,
    params: type[Params],
    states: Sequence[str],
    step: str,
    cuda: str,
    order: Order,
    doc: str,
    *,
    scalars: Callable[[Any], Mapping[str, float]] = lambda p: {},
    mixed: bool = False,
) -> Op:
    """Register an update operator.

    Args:
        name: its name.
        params: its parameters, `UpdateParams` with more.
        states: names of its state arrays.
        step: the lines that make the new states and `y`.
        cuda: the same in CUDA: sets `y` and the states from `x`, `q` and the same names.
        order: how d is made.
        doc: one sentence.
        scalars: numbers computed from the parameters, for the CUDA lines.
        mixed: weight and grad have a narrow type, and a float32 copy of the weight, `weight32`, is the last state.
    """
    names = [*states, "weight32"] if mixed else list(states)
    op = register(name, params, inputs=("weight", "grad", *(Slot(state, aux=True) for state in names)), doc=doc)
    op.inplace((0, 0))
    op.set_attr("TNumbers", ("lr",))
    op.infer_shape(all_same_shape)
    if mixed:
        op.infer_type(_mixed_type)

    def formulas(p: Any, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
        numbers = _numbers(p)
        lines = "\n".join((gradient_line(order, numbers), step, _clip_weights(numbers)))
        return step_formulas(lines, tuple(states), tuple(numbers), mixed).with_numbers(numbers)

    op.set_attr("FExpression", formulas)

    @op.compute("cpu", temps=temps_for(formulas), prepares=True, rebind=rebinding(formulas))
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        return prepare(formulas, p, ctx, inputs, outputs)

    @op.compute("gpu")
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        numbers = {**_numbers(p), **scalars(p)}
        wide = "double" if inputs[0].dtype.char == "d" else "float"
        code = _cuda(cuda, order, tuple(names), tuple(numbers), wide, mixed)
        out = outputs[0] if outputs[0] is not None else ctx.xp.empty_like(inputs[0])
        types = tuple(str(array.dtype) for array in (*inputs, out))
        kernel = _kernel(ctx.xp, name, code, tuple(names), tuple(numbers), types)
        kernel(inputs[0], inputs[1], *numbers.values(), out, *inputs[2:])

    if name in _MANY:
        fields = tuple(key for key, field in params.model_fields.items() if key != "lazy_update")
        many = ManySteps(name, tuple(names), fields, _cuda(cuda, order, tuple(names), fields, "A", mixed), mixed)
        many.enlist()
        op.set_attr("FManySteps", lambda xp, calls: many.prepare(xp, [(arrays, _numbers(p)) for arrays, p in calls]))
    return op


_MANY = (
    *("sgd_update", "mp_sgd_update", "sgd_mom_update", "mp_sgd_mom_update", "nag_mom_update", "mp_nag_mom_update"),
    *("signsgd_update", "signum_update", "adam_update", "rmsprop_update", "rmspropalex_update", "ftrl_update"),
)
"""Operators that take the steps of many weights in one launch on a GPU: `FManySteps`."""


def _numbers(p: Any) -> dict[str, float]:
    """The parameters that are numbers."""
    return {
        key: float(value)
        for key, value in vars(p).items()
        if isinstance(value, int | float) and value is not True and value is not False
    }


def _clip_weights(numbers: Mapping[str, float]) -> str:
    """Limits the new weight, for the operators that have `clip_weights`."""
    return "y = minimum(maximum(y, -clip_weights), clip_weights)" if numbers.get("clip_weights", -1) >= 0 else ""


def _mixed_type(p: Any, ins: TypeList, outs: TypeList) -> None:
    dtype = outs.merge(0, ins.merge(1, ins[0] or outs[0]))
    ins.merge(0, dtype or ins[1])
    outs.merge(0, ins.merge(1, ins[0]))
    for i in range(2, len(ins)):
        ins.merge(i, "float32")


def _cuda(line: str, order: Order, states: tuple[str, ...], numbers: tuple[str, ...], wide: str, mixed: bool) -> str:
    """The kernel's body: read everything into registers of the wide type, compute, write back."""
    clip = "clip_grad" if "clip_grad" in numbers else "clip_gradient"
    clipping = f"if ({clip} >= 0) q = q > {clip} ? {clip} : q < -{clip} ? -{clip} : q;"
    decay = "q += wd * x;"
    steps = {
        "clip first": f"q *= rescale_grad; {clipping} {decay}",
        "decay first": f"q *= rescale_grad; {decay} {clipping}",
        "no decay": f"q *= rescale_grad; {clipping}",
        "raw": "",
    }[order]
    source = "weight32_" if mixed else "weight_in"
    reads = " ".join(f"{wide} {name} = {name}_;" for name in states if name != "weight32")
    writes = " ".join(f"{name}_ = {name};" for name in states if name != "weight32")
    last = "weight32_ = y;" if mixed else ""
    return f"{wide} x = {source}, grad = grad_in, q = grad, y; {reads} {steps} {line} {writes} {last} out_ = y;"


@cache
def _kernel(
    xp: Any, name: str, code: str, states: tuple[str, ...], numbers: tuple[str, ...], types: tuple[str, ...]
) -> Any:
    weight, grad, *state_types, out = types
    wide = "float64" if weight == "float64" else "float32"
    ins = [f"{weight} weight_in", f"{grad} grad_in", *(f"{wide} {number}" for number in numbers)]
    outs = [f"{out} out_", *(f"{dtype} {state}_" for dtype, state in zip(state_types, states, strict=True))]
    return xp.ElementwiseKernel(", ".join(ins), ", ".join(outs), code, f"opbox_{name}", options=EXACT)
