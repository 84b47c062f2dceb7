"""mx.np's random numbers: a standard distribution, scaled and moved, each parameter a number or an array.

    out = loc + scale * noise        gloc = gout, gscale = gout * noise, each summed to the array's shape

_npi_normal, _npi_logistic, _npi_gumbel: loc and scale       _npi_exponential, _npi_rayleigh: scale
_npi_uniform: low + (high - low) * noise, and no gradient     _npi_gamma: shape and scale, which are numbers
_npi_bernoulli: 1 with probability `prob`, or the sigmoid of `logit`, which are numbers, else 0

`size` is the output's shape; without it that is what the arrays broadcast to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import create_model

from opbox_protocol.errors import ParamError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..expression.summing import sum_to
from ..gradient import backward_node, grad_zero
from ..infer import Shape, ShapeList, TypeList, broadcast_shapes, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, OptFloat, OptShape, Params
from ..registry import Slot, register, register_backward, when
from .drawing import draw, scratch_for
from .table import TABLE, Distribution

_SMALLEST = 2.0**-25
"""Half of the least number above 0 that a uniform float32 is: in place of 0, whose logarithm is infinite."""


def _uniform(random: Any, out: Array) -> None:
    random.uniform(out)


def _normal(random: Any, out: Array) -> None:
    random.normal(out)


def _plain(xp: Any, noise: Array, scratch: Array) -> None:
    """The noise as it is drawn."""


def _logistic(xp: Any, noise: Array, scratch: Array) -> None:
    """log(u / (1 - u)) of uniform numbers."""
    xp.maximum(noise, _SMALLEST, out=noise)
    xp.subtract(1, noise, out=scratch)
    xp.log(scratch, out=scratch)
    xp.log(noise, out=noise)
    xp.subtract(noise, scratch, out=noise)


def _gumbel(xp: Any, noise: Array, scratch: Array) -> None:
    """-log(-log(u)) of uniform numbers."""
    xp.maximum(noise, _SMALLEST, out=noise)
    for _ in range(2):
        xp.log(noise, out=noise)
        xp.negative(noise, out=noise)


def _exponential(xp: Any, noise: Array, scratch: Array) -> None:
    """-log(u) of uniform numbers."""
    xp.maximum(noise, _SMALLEST, out=noise)
    xp.log(noise, out=noise)
    xp.negative(noise, out=noise)


def _rayleigh(xp: Any, noise: Array, scratch: Array) -> None:
    """sqrt(2 e) of exponential numbers."""
    _exponential(xp, noise, scratch)
    xp.multiply(noise, 2, out=noise)
    xp.sqrt(noise, out=noise)


class _Sized(Params):
    size: OptShape = Field(None, description="The output's shape; what the parameters broadcast to when it is None.")
    ctx: str = Field("cpu", description="Accepted; the device is the executor's.")


class _Typed(_Sized):
    dtype: Literal["float16", "float32", "float64"] = Field("float32", description="Element type of the output.")


class BernoulliParams(_Sized):
    positional = ("prob", "logit", "size", "ctx", "dtype", "is_logit")
    prob: OptFloat = Field(description="The probability of 1, a number; None: logit tells it.")
    logit: OptFloat = Field(description="The logarithm of the odds, a number; None: prob tells it.")
    dtype: Literal["bool", "float16", "float32", "float64", "int32", "uint8"] = Field(
        "float32", description="Element type of the output."
    )
    is_logit: Bool = Field(description="Whether the parameter is logit.")


class GammaParams(_Typed):
    positional = ("shape", "scale", "size", "ctx", "dtype")
    shape: Float = Field(description="The shape parameter, a number: opbox draws from no array of them.")
    scale: Float = Field(description="The scale, a number.")


_ROWS: tuple[tuple[str, tuple[str, ...], type[Params], Any, tuple[str, ...], Any, bool], ...] = (
    ("normal", ("loc", "scale"), _Typed, _normal, ("float32", "float64"), _plain, True),
    ("uniform", ("low", "high"), _Typed, _uniform, ("float32", "float64"), _plain, False),
    ("logistic", ("loc", "scale"), _Sized, _uniform, ("float32", "float64"), _logistic, True),
    ("gumbel", ("loc", "scale"), _Sized, _uniform, ("float32", "float64"), _gumbel, True),
    ("exponential", ("scale",), _Sized, _uniform, ("float32", "float64"), _exponential, True),
    ("rayleigh", ("scale",), _Sized, _uniform, ("float32", "float64"), _rayleigh, True),
)
"""Name, parameters, base of the model, the noise, the types it is drawn in, what is made of it, whether a gradient."""


def _size(p: Any, ins: ShapeList) -> Shape:
    """The output's shape: `size`, which the arrays must broadcast to, or what they broadcast to."""
    shape = broadcast_shapes(*ins)
    if p.size is None:
        return shape
    if shape is not None and broadcast_shapes(shape, p.size) != p.size:
        raise ParamError(f"size: expected a shape that {show_shape(shape)} broadcasts to, got {p.size}")
    size: tuple[int, ...] = p.size
    return size


def _model(name: str, numbers: Sequence[str], base: type[Params]) -> type[Params]:
    required = "dtype" in base.model_fields
    default: Any = {"default": ...} if required else {"default": 1.0 if len(numbers) == 1 else ...}
    fields: dict[str, Any] = {
        number: (OptFloat, Field(**default, description=f"The parameter {number}; None: an array tells it."))
        for number in numbers
    }
    model = create_model(f"Numpy{name.title()}Params", __base__=base, **fields)
    model.positional = (*numbers, "size", "ctx")
    return model


def _declare(
    name: str,
    numbers: tuple[str, ...],
    base: type[Params],
    fill: Callable[..., None],
    drawn: tuple[str, ...],
    transform: Callable[[Any, Array, Array], None],
    differentiable: bool,
) -> None:
    params = _model(name, numbers, base)
    inputs = tuple(Slot(f"input{i}", when(number, None)) for i, number in enumerate(numbers, 1))
    op = register(
        f"_npi_{name}",
        params,
        inputs=inputs,
        outputs=(Slot("output"), Slot("noise", visible=False)),
        doc=f"Numbers of the {name} distribution, as mx.np draws them.",
    )
    op.set_attr("TRandom", True)
    op.set_attr("TSkipsUnread", True)
    scratch = scratch_for(Distribution(name, {}, fill, (), drawn))

    @op.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        shape = _size(p, ins)
        for i in range(2):
            outs.merge(i, shape)

    @op.infer_type
    def _(p: Any, ins: TypeList, outs: TypeList) -> None:
        dtype = getattr(p, "dtype", "float32")
        for slots in (ins, outs):
            for i in range(len(slots)):
                slots.merge(i, dtype)

    def wide(call: CallSpec) -> Temp:
        return Temp(call.outputs[0].shape, accumulation_type(call.outputs[0].dtype))

    def temps(p: Any, call: CallSpec) -> Sequence[Temp]:
        return [wide(call), wide(call), *scratch(p, call)]

    @op.compute(temps=temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, (noise, scaled, *pieces) = ctx.xp, ctx.temp
        if pieces and pieces[0].dtype == noise.dtype:
            pieces = []
        draw(ctx, fill, noise, (noise.size,), pieces)
        transform(xp, noise, scaled)
        arrays = iter(inputs)
        values = [next(arrays) if getattr(p, number) is None else getattr(p, number) for number in numbers]
        if outputs[1] is not None:
            xp.copyto(outputs[1], noise, casting="unsafe")
        if name == "uniform":
            xp.subtract(1, noise, out=scaled)
            xp.multiply(scaled, values[0], out=scaled)
            xp.multiply(noise, values[1], out=noise)
            xp.add(noise, scaled, out=noise)
        else:
            xp.multiply(noise, values[-1], out=noise)
            if len(values) > 1:
                xp.add(noise, values[0], out=noise)
        if outputs[0] is not None:
            xp.copyto(outputs[0], noise, casting="unsafe")

    if not differentiable:
        op.set_attr("FGradient", grad_zero)
        return
    backward = register_backward(
        f"_backward_npi_{name}", params, outputs=tuple(f"input{i + 1}" for i in range(len(numbers)))
    )

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        if not node.inputs:
            return []
        return backward_node(backward.name, node, [ograds[0], Entry(node, 1)])

    def backward_temps(p: Any, call: CallSpec) -> Sequence[Temp]:
        g = call.inputs[0]
        wide = accumulation_type(g.dtype)
        sums = [Temp(out.shape, wide) for out in call.outputs]
        return [Temp(g.shape, wide), *sums]

    @backward.compute(temps=backward_temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, (g, noise), (product, *sums) = ctx.xp, inputs, ctx.temp
        kinds = [number for number in numbers if getattr(p, number) is None]
        for number, out, total in zip(kinds, outputs, sums, strict=True):
            if out is None:
                continue
            xp.copyto(product, g)
            if number == "scale":
                xp.multiply(product, noise, out=product)
            sum_to(xp, product, total)
            xp.copyto(out, total, casting="unsafe")


for _row in _ROWS:
    _declare(*_row)

gamma = register("_npi_gamma", GammaParams, inputs=(), doc="Numbers of the gamma distribution, as mx.np draws them.")
gamma.set_attr("TRandom", True)
_GAMMA = next(row for row in TABLE if row.name == "gamma")


@gamma.infer_shape
def _(p: GammaParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.shape <= 0 or p.scale <= 0:
        raise ParamError(f"_npi_gamma: expected shape and scale above 0, got {p.shape} and {p.scale}")
    outs.merge(0, p.size or ())


@gamma.infer_type
def _(p: GammaParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)


@gamma.compute(temps=scratch_for(_GAMMA))
def _(p: GammaParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    draw(ctx, _GAMMA.fill, outputs[0], (outputs[0].size,), ctx.temp, p.shape, p.scale)


bernoulli = register(
    "_npi_bernoulli",
    BernoulliParams,
    inputs=(),
    doc="1 with a probability, else 0.",
)
bernoulli.set_attr("TRandom", True)
bernoulli.set_attr("FGradient", grad_zero)


@bernoulli.infer_shape
def _(p: BernoulliParams, ins: ShapeList, outs: ShapeList) -> None:
    number = p.logit if p.is_logit else p.prob
    if number is None:
        raise ParamError(f"_npi_bernoulli: {'logit' if p.is_logit else 'prob'}: expected a number, got None")
    if not p.is_logit and not 0 <= number <= 1:
        raise ParamError(f"_npi_bernoulli: prob: expected from 0 to 1, got {number}")
    outs.merge(0, p.size or ())


@bernoulli.infer_type
def _(p: BernoulliParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)


def _bernoulli_temps(p: BernoulliParams, call: CallSpec) -> Sequence[Temp]:
    shape = call.outputs[0].shape
    return [Temp(shape, "float32"), Temp(shape, "bool")]


@bernoulli.compute(temps=_bernoulli_temps)
def _(p: BernoulliParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (noise, chosen) = ctx.xp, ctx.temp
    draw(ctx, _uniform, noise, (noise.size,), ())
    if p.is_logit:
        assert p.logit is not None
        share = 1 / (1 + math.exp(-max(p.logit, -700.0)))  # which is 0 in float32 long before
    else:
        assert p.prob is not None
        share = p.prob
    xp.less(noise, share, out=chosen)
    xp.copyto(outputs[0], chosen, casting="unsafe")
