"""transpose, SwapAxis and mx.np's moveaxis: the same elements with their axes in another order.

transpose: out's axis i is data's axis axes[i] (all reversed when axes is empty)    SwapAxis: two axes trade places
out's shape is data's in the new order, (d1, d2) becomes (d2, d1).
gdata = gout with the inverse order
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs
from ..gradient import grad_use_none
from ..infer import ShapeList, canonical_axis
from ..params import Field, Int, OptShape, Params, Shape
from ..registry import Op, register, register_backward

__all__ = ["TRANSPOSES"]

Order: TypeAlias = Callable[[Any, int], tuple[int, ...]]
"""From parameters and the number of axes to the order of the input's axes in the output."""


class TransposeParams(Params):
    axes: OptShape = Field((), description="The order of the axes; reversed when it is empty, or None as mx.np has it.")


class SwapAxisParams(Params):
    dim1: Int = Field(0, description="One axis.")
    dim2: Int = Field(0, description="The other axis.")


class MoveAxisParams(Params):
    source: Shape = Field(description="The axes that move.")
    destination: Shape = Field(description="Where they go, in the same order.")


transpose = register(
    "transpose", TransposeParams, aliases=("_np_transpose",), doc="data with its axes in another order."
)
move_axis = register("_np_moveaxis", MoveAxisParams, inputs=("a",), doc="a with some axes moved to other places.")
swap_axis = register("SwapAxis", SwapAxisParams, aliases=("swapaxes",), doc="data with two axes interchanged.")


def _transposed(p: TransposeParams, ndim: int) -> tuple[int, ...]:
    if not p.axes:
        return tuple(reversed(range(ndim)))
    order = tuple(canonical_axis(axis, ndim, "axes") for axis in p.axes)
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"axes: expected each of the {ndim} axes once, got {p.axes}")
    return order


def _swapped(p: SwapAxisParams, ndim: int) -> tuple[int, ...]:
    first, second = canonical_axis(p.dim1, ndim, "dim1"), canonical_axis(p.dim2, ndim, "dim2")
    order = list(range(ndim))
    order[first], order[second] = second, first
    return tuple(order)


def _moved(p: MoveAxisParams, ndim: int) -> tuple[int, ...]:
    source = [canonical_axis(axis, ndim, "source") for axis in p.source]
    destination = [canonical_axis(axis, ndim, "destination") for axis in p.destination]
    if len(source) != len(destination) or len(set(source)) != len(source) or len(set(destination)) != len(source):
        raise ShapeError(f"source, destination: expected as many axes, each once, got {p.source} and {p.destination}")
    order = [axis for axis in range(ndim) if axis not in source]
    for place, axis in sorted(zip(destination, source, strict=True)):
        order.insert(place, axis)
    return tuple(order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _declare(op: Op, order_of: Order) -> list[tuple[Op, Order]]:
    """Give an operator its gradient and what they compute; return both, and the order of each one's axes."""
    backward = register_backward(f"_backward_{op.name.lstrip('_')}", op.params)
    op.set_attr("FGradient", grad_use_none(backward.name))

    @op.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        data, out = ins[0], outs[0]
        ndim = len(data) if data is not None else len(out) if out is not None else None
        if ndim is None:
            return
        order = order_of(p, ndim)
        if data is not None:
            out = outs.merge(0, tuple(data[axis] for axis in order))
        if out is not None:
            ins.merge(0, tuple(out[axis] for axis in _inverse(order)))

    @op.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        ctx.xp.copyto(outputs[0], inputs[0].transpose(order_of(p, inputs[0].ndim)))

    @backward.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        ctx.xp.copyto(outputs[0], inputs[0].transpose(_inverse(order_of(p, inputs[0].ndim))))

    return [(op, order_of), (backward, lambda p, ndim: _inverse(order_of(p, ndim)))]


TRANSPOSES = [
    pair
    for op, order in ((transpose, _transposed), (swap_axis, _swapped), (move_axis, _moved))
    for pair in _declare(op, order)
]
"""The operators and their gradients, and the order of the input's axes in the output of each."""
