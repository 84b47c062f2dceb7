"""LeakyReLU: out = x where x > 0, and a leak below; data, out and mask have one shape.

gamma is (channel,) or (1,), of one-dimensional data (n,) or (1,); or of data's rank, then it is repeated along its axes
of size 1.

leaky  slope x                  gdata = slope gout
elu    slope (exp x - 1)        gdata = slope exp(x) gout
selu   as elu with slope a, all times s, with the constants of Klambauer et al., "Self-Normalizing Neural
       Networks" (2017)
gelu   x (1 + erf(x / sqrt 2)) / 2, at every x: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016)
prelu  gamma[channel] x         ggamma = gout x summed over all but the channels: He et al., "Delving Deep into
       Rectifiers" (2015)
rrelu  mask x, mask uniform between lower_bound and upper_bound in training, their mean otherwise
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..expression.operators import prepare, rebinding, temps_for
from ..expression.pointwise import Pointwise, fixed
from ..gradient import backward_node
from ..infer import FLOATS, ShapeList, TypeList, all_same_type, show_shape, summary
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import Slot, register, register_backward, when

SELU_SLOPE, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


class LeakyReLUParams(Params):
    act_type: Literal["elu", "gelu", "leaky", "prelu", "rrelu", "selu"] = Field("leaky", description="The function.")
    slope: Float = Field(0.25, description="Slope below zero, for leaky and elu.")
    lower_bound: Float = Field(0.125, description="Least slope of rrelu.")
    upper_bound: Float = Field(0.334, description="Greatest slope of rrelu.")


_INPUTS = ("data", Slot("gamma", when("act_type", "prelu")))
_OUTPUTS = ("output", Slot("mask", when("act_type", "rrelu"), doc="The slopes that were drawn."))

op = register("LeakyReLU", LeakyReLUParams, inputs=_INPUTS, outputs=_OUTPUTS).inplace((0, 0))
op.set_attr("TRandom", True)
op.set_attr("FDrawsInInference", lambda p: False)
op.set_attr("FSetInputVarAttrOnCompose", {"gamma": '["Constant", {"value": 0.25}]'})
backward = register_backward("_backward_LeakyReLU", LeakyReLUParams, outputs=_INPUTS).inplace((0, 0))


@op.infer_shape
def _(p: LeakyReLUParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = outs.merge(0, ins[0])
    shape = ins.merge(0, shape)
    if p.act_type == "rrelu":
        ins.merge(0, outs.merge(0, outs.merge(1, shape)))
    if p.act_type == "prelu" and shape is not None:
        _infer_gamma(ins, shape)


@op.infer_type
@summary("first")
def _(p: LeakyReLUParams, ins: TypeList, outs: TypeList) -> None:
    ins.only(0, *FLOATS)
    all_same_type(p, ins, outs)


def _infer_gamma(ins: ShapeList, shape: tuple[int, ...]) -> None:
    axis = min(len(shape) - 1, 1)
    gamma = ins[1]
    if gamma is None:
        ins.merge(1, (shape[1],) if axis == 1 else (1,))
    elif len(gamma) == 1 and axis >= 0:
        if gamma != (1,) and shape[axis] >= 0:
            gamma = ins.merge(1, (shape[axis],))
        if gamma is not None and gamma[0] > 1:
            ins.merge(0, tuple(gamma[0] if k == axis else -1 for k in range(len(shape))))
    elif len(gamma) != len(shape) or any(
        g not in (-1, 1, size) for g, size in zip(gamma, shape, strict=True) if size >= 0
    ):
        channels = shape[axis : axis + 1]
        raise ShapeError(
            f"expected {show_shape(channels)}, (1,), or data's {show_shape(shape)} with some axes of 1, "
            f"got {show_shape(gamma)}",
            side="input",
            index=1,
        )


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    more = [Entry(node, 1)] if node.num_outputs > 1 else []
    return backward_node("_backward_LeakyReLU", node, [ograds[0], *node.inputs, *more])


_PHI = f"(erf(x * {math.sqrt(0.5)!r}) + 1) * 0.5"
"""The normal distribution function."""

FORMULAS = {
    "leaky": ("maximum(x, 0) + slope * minimum(x, 0)", "g * where(x > 0, 1, slope)"),
    "elu": ("where(x > 0, x, slope * expm1(x))", "g * where(x > 0, 1, slope * exp(x))"),
    "selu": ("scale * where(x > 0, x, slope * expm1(x))", "g * (scale * where(x > 0, 1, slope * exp(x)))"),
    "gelu": (f"x * ({_PHI})", f"g * ({_PHI} + x * exp(square(x) * -0.5) * {1 / math.sqrt(2 * math.pi)!r})"),
}
"""The functions that need nothing beside data `x`: out and gdata, with `g` for gout."""

_NUMBERS = ("slope", "scale")
_FORWARD = {key: Pointwise(("x",), (Expression(text, ("x",), _NUMBERS),)) for key, (text, _) in FORMULAS.items()}
_BACKWARD = {
    key: Pointwise(("g", "x"), (Expression(text, ("g", "x"), _NUMBERS),)) for key, (_, text) in FORMULAS.items()
}


def _channelwise(inputs: tuple[str, ...], *texts: str, summed: bool = False) -> Pointwise:
    """Formulas with gamma along axis 1; of two, gdata is written last, for it may lie in gout's memory."""
    formulas = tuple(Expression(text, inputs) for text in texts)
    return Pointwise(inputs, formulas, start={"gamma": 1}, summed=summed, start_out={1: 1} if summed else {}, last=0)


_PRELU = _channelwise(("x", "gamma"), "where(x > 0, x, x * gamma)")
_PRELU_BACKWARD = _channelwise(("g", "x", "gamma"), "where(x > 0, g, g * gamma)", "where(x > 0, 0, g * x)", summed=True)
_DRAWN = fixed(Pointwise(("x", "mask"), (Expression("where(x > 0, x, x * mask)", ("x", "mask")),)))
_DRAWN_BACKWARD = Pointwise(("g", "x", "mask"), (Expression("where(x > 0, g, g * mask)", ("g", "x", "mask")),))


def _numbers(p: LeakyReLUParams) -> dict[str, float]:
    return {"slope": SELU_SLOPE, "scale": SELU_SCALE} if p.act_type == "selu" else {"slope": p.slope, "scale": 1.0}


def _formulas(p: LeakyReLUParams, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise | None:
    if p.act_type == "rrelu":
        return None  # its slopes are drawn
    return _PRELU if p.act_type == "prelu" else _FORWARD[p.act_type].with_numbers(_numbers(p))


def _backward_formulas(p: LeakyReLUParams, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
    if p.act_type in FORMULAS:
        return _BACKWARD[p.act_type].with_numbers(_numbers(p))
    return _PRELU_BACKWARD if p.act_type == "prelu" else _DRAWN_BACKWARD


op.set_attr("FExpression", _formulas)
pointwise_backward(backward, _backward_formulas)


def _temps(p: LeakyReLUParams, call: CallSpec) -> list[Temp]:
    """The formulas' scratch; for rrelu that and the slopes, in a type that random numbers are drawn in."""
    if p.act_type != "rrelu":
        return temps_for(_formulas)(p, call)
    data = call.inputs[0]
    mask = ArraySpec(data.shape, accumulation_type(data.dtype))
    drawn = CallSpec(call.device, (data, mask), call.outputs[:1])
    return [*temps_for(_DRAWN)(p, drawn), Temp(mask.shape, mask.dtype)]


@op.compute(temps=_temps, prepares=True, rebind=rebinding(_formulas))
def _(p: LeakyReLUParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    if p.act_type != "rrelu":
        return prepare(_formulas, p, ctx, inputs, outputs)
    slopes = ctx.temp[-1]
    write = prepare(_DRAWN, p, ctx, (inputs[0], slopes), outputs[:1])

    def run() -> None:
        if ctx.is_train:
            ctx.random.uniform(slopes, p.lower_bound, p.upper_bound)
        else:
            slopes.fill((p.lower_bound + p.upper_bound) / 2)
        if outputs[1] is not None:
            ctx.xp.copyto(outputs[1], slopes, casting="unsafe")
        write()

    return run
