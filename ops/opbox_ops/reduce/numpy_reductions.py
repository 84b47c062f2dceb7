"""mx.np's any, all, average and diff.

_np_any, _np_all   whether any element is not 0, or all are, over axes, as bool
_npi_average       sum(a w) / sum(w) over axes, and the sum of the weights w, which are of a's shape, or a vector along
                   the one axis; the mean where weighted is False
                       ga = gout w / sum(w)        gw = gout (a - average) / sum(w)
_npi_diff          the difference of neighbours along an axis, n times: (…, d, …) -> (…, d - n, …)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..expression.summing import sum_to
from ..gradient import backward_node, grad_use_none, grad_zero, linear_gradient
from ..infer import ShapeList, TypeList, all_same_type, canonical_axis, not_bool, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Int, OptShape, Params
from ..registry import Slot, register, register_backward, when
from .axes import kept_dims, numpy_axes, remaining_shapes


class TruthParams(Params):
    axis: OptShape = Field(None, description="The axes to reduce; all when it is None.")
    keepdims: Bool = Field(False, description="Keep the reduced axes, with length 1.")


class AverageParams(Params):
    axis: OptShape = Field(None, description="The axes to reduce; all when it is None.")
    returned: Bool = Field(False, description="Give the sum of the weights, too.")
    weighted: Bool = Field(True, description="Whether there are weights.")


class DiffParams(Params):
    n: Int = Field(1, description="How often differences are taken.")
    axis: Int = Field(-1, description="The axis along which neighbours lie.")


for _name, _doc in (("any", "Whether any element is not 0."), ("all", "Whether all elements are not 0.")):
    _op = register(
        f"_np_{_name}", TruthParams, doc=f"{_doc[:-1]}, as bool.", aliases=("_np_sometrue",) * (_name == "any")
    )
    _op.set_attr("FGradient", grad_zero)
    _op.set_attr("FInferShape", remaining_shapes)

    @_op.infer_type
    def _(p: TruthParams, ins: TypeList, outs: TypeList) -> None:
        outs.merge(0, "bool")

    @_op.compute(temps=lambda p, call: [Temp(call.inputs[0].shape, "bool")])
    def _(p: TruthParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, name: str = _name) -> None:
        xp, (data,), (out,), (truth,) = ctx.xp, inputs, outputs, ctx.temp
        axes = numpy_axes(p.axis, data.ndim)
        xp.not_equal(data, 0, out=truth)
        getattr(xp, name)(truth, axis=axes, keepdims=True, out=out.reshape(kept_dims(data.shape, axes)))


average = register(
    "_npi_average",
    AverageParams,
    inputs=(Slot("a"), Slot("weights", when("weighted"))),
    outputs=(Slot("average"), Slot("weights_sum", visible=when("returned"))),
    doc="The average over axes, weighted or not.",
)
average_backward = register_backward("_backward_npi_average", AverageParams, outputs=("a", "weights"))


@average.infer_shape
def _(p: AverageParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    axes = numpy_axes(p.axis, len(data))
    if p.weighted and ins[1] is not None and len(ins[1]) != len(data):
        if len(ins[1]) != 1 or len(axes) != 1:
            raise ShapeError(
                f"expected {show_shape(data)}, or a vector along one axis, got {show_shape(ins[1])}",
                side="input",
                index=1,
            )
        ins.merge(1, (data[axes[0]],))
    elif p.weighted and ins[1] is not None:
        ins.merge(1, data)
    for i in range(2):
        outs.merge(i, tuple(d for k, d in enumerate(data) if k not in axes))


@average.infer_type
def _(p: AverageParams, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, outs)
    not_bool(ins)


@average.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_npi_average", node, [ograds[0], *node.inputs, Entry(node), Entry(node, 1)])


def _wide(dtype: Any) -> Any:
    return accumulation_type(dtype) if dtype.kind not in "iu" else "float64"


def _average_temps(p: AverageParams, call: CallSpec) -> Sequence[Temp]:
    """Products of a's shape, and two arrays of the sums."""
    a = call.inputs[0]
    wide, small = _wide(a.dtype), kept_dims(a.shape, numpy_axes(p.axis, len(a.shape)))
    return [*([Temp(a.shape, wide)] if p.weighted else []), Temp(small, wide), Temp(small, wide)]


def _along(p: AverageParams, weights: Array, ndim: int) -> Array:
    """Weights that broadcast to a."""
    if weights.ndim == ndim:
        return weights
    (axis,) = numpy_axes(p.axis, ndim)
    return weights.reshape((1,) * axis + weights.shape + (1,) * (ndim - axis - 1))


@average.compute(temps=_average_temps)
def _(p: AverageParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, a, (*space, total, weight) = ctx.xp, inputs[0], ctx.temp
    axes = numpy_axes(p.axis, a.ndim)
    if p.weighted:
        weights = _along(p, inputs[1], a.ndim)
        xp.copyto(space[0], weights)
        xp.sum(space[0], axis=axes, keepdims=True, out=weight)
        xp.multiply(space[0], a, out=space[0])
        xp.sum(space[0], axis=axes, keepdims=True, out=total)
    else:
        weight.fill(prod(a.shape[i] for i in axes))
        xp.sum(a, axis=axes, keepdims=True, dtype=total.dtype, out=total)
    xp.divide(total, weight, out=total)
    for value, out in zip((total, weight), outputs, strict=True):
        if out is not None:
            xp.copyto(out, value.reshape(out.shape), casting="unsafe")


def _average_back_temps(p: AverageParams, call: CallSpec) -> Sequence[Temp]:
    a = call.inputs[1]
    wide, small = _wide(a.dtype), kept_dims(a.shape, numpy_axes(p.axis, len(a.shape)))
    sums = [Temp(call.outputs[1].shape, wide)] if p.weighted and call.wants(1) else []
    return [Temp(small, wide), *([Temp(a.shape, wide)] if p.weighted else []), *sums]


@average_backward.compute(temps=_average_back_temps)
def _(p: AverageParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, g, a, (share, *space) = ctx.xp, inputs[0], inputs[1], ctx.temp
    mean, weight = (array.reshape(share.shape) for array in inputs[-2:])
    xp.copyto(share, g.reshape(share.shape))
    share /= weight
    if not p.weighted:
        if outputs[0] is not None:
            xp.copyto(outputs[0], share, casting="unsafe")
        return
    if outputs[0] is not None:
        xp.multiply(_along(p, inputs[2], a.ndim), share, out=space[0])
        xp.copyto(outputs[0], space[0], casting="unsafe")
    if outputs[1] is not None:
        xp.subtract(a, mean, out=space[0])
        xp.multiply(space[0], share, out=space[0])
        sum_to(xp, space[0], _along(p, space[1], a.ndim))
        xp.copyto(outputs[1], space[1], casting="unsafe")


diff = register("_npi_diff", DiffParams, inputs=("a",), doc="Differences of neighbours along an axis, n times.")
diff_backward = register_backward("_backward_npi_diff", DiffParams, outputs=("a",))
diff.set_attr("FGradient", grad_use_none("_backward_npi_diff"))
diff_backward.set_attr("FGradient", linear_gradient())


@diff.infer_shape
def _(p: DiffParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.n < 0:
        raise ParamError(f"_npi_diff: n: expected at least 0, got {p.n}")
    data = ins[0]
    if data is not None:
        axis = canonical_axis(p.axis, len(data))
        size = data[axis]
        outs.merge(0, (*data[:axis], max(size - p.n, 0) if size >= 0 else -1, *data[axis + 1 :]))


@diff.infer_type
def _(p: DiffParams, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, outs)
    not_bool(ins)


def _line(array: Array, axis: int, begin: int, end: int) -> Array:
    """A part of an array along an axis."""
    return array[(*(slice(None),) * axis, slice(begin, end))]


def _diff_temp(place: int) -> Any:
    def rule(p: DiffParams, call: CallSpec) -> Sequence[Temp]:
        a = (*call.inputs, *call.outputs)[place]
        return [Temp(a.shape, accumulation_type(a.dtype)) for _ in range(2)]

    return rule


@diff.compute(temps=_diff_temp(0))
def _(p: DiffParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (a,), (out,), (one, other) = ctx.xp, inputs, outputs, ctx.temp
    axis, size = p.axis % a.ndim, a.shape[p.axis]
    xp.copyto(one, a)
    for length in range(size - 1, max(size - p.n, 0) - 1, -1):
        xp.subtract(_line(one, axis, 1, length + 1), _line(one, axis, 0, length), out=_line(other, axis, 0, length))
        one, other = other, one
    xp.copyto(out, _line(one, axis, 0, out.shape[axis]), casting="unsafe")


@diff_backward.compute(temps=_diff_temp(1))
def _(p: DiffParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (g,), (out,), (one, other) = ctx.xp, inputs, outputs, ctx.temp
    axis, size = p.axis % out.ndim, out.shape[p.axis]
    begin = max(size - p.n, 0)
    xp.copyto(_line(one, axis, 0, begin), g)
    for length in range(begin, size):  # from differences of `length` to one more
        before, after = _line(one, axis, 0, length), _line(other, axis, 0, length + 1)
        after.fill(0)
        part = _line(after, axis, 1, length + 1)
        xp.copyto(part, before)
        part = _line(after, axis, 0, length)
        xp.subtract(part, before, out=part)
        one, other = other, one
    xp.copyto(out, one, casting="unsafe")
