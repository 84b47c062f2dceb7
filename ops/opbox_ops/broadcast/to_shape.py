"""Repeating an array along axes of length 1: broadcast_to, broadcast_axis, broadcast_like.

out has as many axes as data: in broadcast_to the sizes of the parameter `shape` (0 keeps data's), in broadcast_axis
`size` on each of `axis`, in broadcast_like those of lhs_axes and rhs_axes, or all of rhs's shape.

_npi_broadcast_to, of mx.np, may add axes in front; -2 in `shape` keeps data's size.

The gradient of all is `_broadcast_backward`: gout summed over the repeated axes.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..expression.summing import sum_to
from ..gradient import backward_node
from ..infer import Shape, ShapeList, TypeList, canonical_axis, show_shape
from ..node import Entry, Node
from ..params import Field, NoParams, OptShape, Params
from ..params import Shape as ShapeParam
from ..registry import register, register_backward


class BroadcastToParams(Params):
    shape: ShapeParam = Field((), description="The shape of the output; 0 keeps data's dimension.")


class NumpyBroadcastToParams(Params):
    shape: ShapeParam = Field((), description="The shape of the output; -2 keeps data's dimension.")


class BroadcastAxisParams(Params):
    axis: ShapeParam = Field((), description="The axes to repeat along; data's length there is 1.")
    size: ShapeParam = Field((), description="The output's length along each of them.")


class BroadcastLikeParams(Params):
    lhs_axes: OptShape = Field(None, description="The axes of lhs to repeat along; all when it is None.")
    rhs_axes: OptShape = Field(None, description="The axes of rhs that give the lengths, in the same order.")


to = register("broadcast_to", BroadcastToParams, doc="data, repeated to the given shape.")
numpy_to = register(
    "_npi_broadcast_to", NumpyBroadcastToParams, inputs=("array",), doc="array, repeated to the given shape."
)
axis = register(
    "broadcast_axis", BroadcastAxisParams, aliases=("broadcast_axes",), doc="data, repeated along the given axes."
)
like = register("broadcast_like", BroadcastLikeParams, inputs=("lhs", "rhs"), doc="lhs, repeated to the shape of rhs.")


def _stretch(ins: ShapeList, outs: ShapeList, target: tuple[int, ...]) -> None:
    """Data's shape and the output's, where `target` has the length of each axis (-1: unknown)."""
    data = ins[0]
    if data is None:
        outs.merge(0, target)
        return
    if len(data) != len(target):
        raise ShapeError(
            f"expected {len(target)} dimensions, to be repeated to {show_shape(target)}, got {show_shape(data)}",
            side=ins.side,
            index=0,
        )
    if any(d >= 0 and t >= 0 and d not in (1, t) for d, t in zip(data, target, strict=True)):
        raise ShapeError(
            f"expected a shape that can be repeated to {show_shape(target)}, got {show_shape(data)}",
            side=ins.side,
            index=0,
        )
    outs.merge(0, tuple(t if t >= 0 or d in (-1, 1) else d for d, t in zip(data, target, strict=True)))


@to.infer_shape
def _(p: BroadcastToParams, ins: ShapeList, outs: ShapeList) -> None:
    data: Shape = ins[0] if ins[0] is not None else (-1,) * len(p.shape)
    assert data is not None
    padded = data if len(data) == len(p.shape) else (-1,) * len(p.shape)
    _stretch(ins, outs, tuple(t if t else d for t, d in zip(p.shape, padded, strict=True)))


@numpy_to.infer_shape
def _(p: NumpyBroadcastToParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if any(size < 0 and size != -2 for size in p.shape):
        raise ShapeError(f"shape: expected sizes, or -2 to keep data's, got {p.shape}")
    if data is None:
        return
    lead = len(p.shape) - len(data)
    sizes = tuple(p.shape[max(lead, 0) :])
    fits = lead >= 0 and -2 not in p.shape[:lead]
    if not fits or any(d >= 0 and s not in (-2, d) and d != 1 for d, s in zip(data, sizes, strict=True)):
        raise ShapeError(
            f"expected a shape that can be repeated to {p.shape}, got {show_shape(data)}", side=ins.side, index=0
        )
    outs.merge(0, (*p.shape[:lead], *(d if s == -2 else s for d, s in zip(data, sizes, strict=True))))


@axis.infer_shape
def _(p: BroadcastAxisParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.axis) != len(p.size):
        raise ShapeError(f"axis and size: expected as many of each, got {p.axis} and {p.size}")
    if ins[0] is None:
        return
    data, target = list(ins[0]), list(ins[0])
    for at, size in zip(p.axis, p.size, strict=True):
        k = canonical_axis(at, len(target))
        data[k], target[k] = 1, size
    ins.merge(0, tuple(data))
    outs.merge(0, tuple(target))
    if outs[0] is not None:
        ins.merge(0, tuple(1 if d == 1 else t for d, t in zip(data, outs[0], strict=True)))


@like.infer_shape
def _(p: BroadcastLikeParams, ins: ShapeList, outs: ShapeList) -> None:
    lhs, rhs = ins[0], ins[1]
    if (p.lhs_axes is None) != (p.rhs_axes is None):
        raise ShapeError(f"lhs_axes and rhs_axes: expected both or neither, got {p.lhs_axes} and {p.rhs_axes}")
    if p.lhs_axes is None or p.rhs_axes is None:
        if rhs is not None:
            _stretch(ins, outs, rhs)
        return
    if len(p.lhs_axes) != len(p.rhs_axes):
        raise ShapeError(f"lhs_axes and rhs_axes: expected as many of each, got {p.lhs_axes} and {p.rhs_axes}")
    if lhs is None or rhs is None:
        return
    target = list(lhs)
    for left, right in zip(p.lhs_axes, p.rhs_axes, strict=True):
        k = canonical_axis(left, len(lhs), "lhs_axes")
        if lhs[k] not in (-1, 1):
            raise ShapeError(f"expected length 1 along axis {k}, got {show_shape(lhs)}", side=ins.side, index=0)
        target[k] = rhs[canonical_axis(right, len(rhs), "rhs_axes")]
    outs.merge(0, tuple(target))


@like.infer_type
def _(p: BroadcastLikeParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


def _repeat(p: Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        ctx.xp.copyto(outputs[0], inputs[0])


def _sums(p: Params, call: CallSpec) -> list[Temp]:
    """Room to add up in, where that is not done in the output's type."""
    out = call.outputs[0]
    wide = accumulation_type(out.dtype)
    return [] if wide == out.dtype else [Temp(out.shape, wide)]


backward = register_backward("_broadcast_backward", NoParams, outputs=("data",))


@backward.compute(temps=_sums)
def _(p: Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        sum_to(ctx.xp, inputs[0], outputs[0], ctx.temp[0] if ctx.temp else None)


def _gradient(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_broadcast_backward", node, [ograds[0]], outputs=1)


for _op in (to, numpy_to, axis, like):
    _op.inplace((0, 0))
    _op.compute()(_repeat)
    _op.set_attr("FGradient", _gradient)
