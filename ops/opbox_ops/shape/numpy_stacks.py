"""mx.np's vstack, hstack, dstack, column_stack, and atleast_1d, atleast_2d, atleast_3d.

Arrays get the axes of length 1 that they lack, and are joined along one axis, or given back one by one.

    vstack (n,) as (1, n), axis 0      hstack () as (1,), axis 1, of vectors 0      dstack (n,) as (1, n, 1), axis 2
    column_stack (n,) as (n, 1), axis 1
each input's gradient is its part of gout
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs
from ..gradient import backward_node, grad_use_none
from ..infer import Shape, ShapeList, TypeList, show_shape, unify
from ..node import Entry, Node
from ..params import Count, Field, Int, Params
from ..registry import Counted, Variadic, register, register_backward

Lift: TypeAlias = "Callable[[tuple[int, ...]], tuple[int, ...]]"
"""A shape with the axes that it lacks."""


class StacksParams(Params):
    num_args: Count = Field(description="How many arrays.")


class JoinParams(StacksParams):
    dim: Int = Field(1, description="Accepted; the operator's name says the axis.")


def _at_least_1(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape or (1,)


def _at_least_2(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (2 - len(shape)) + shape


def _at_least_3(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 2 else (*_at_least_2(shape), 1)


def _columns(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) > 1 else (*_at_least_1(shape), 1)


def _declare(name: str, params: type[Params], lift: Lift, axis: int, doc: str) -> None:
    op = register(f"_npi_{name}", params, inputs=Variadic(), doc=doc)
    backward = register_backward(f"_backward_npi_{name}", params)
    op.set_attr("FGradient", grad_use_none(backward.name))

    def along(ndim: int) -> int:
        return min(axis, ndim - 1)

    @op.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        shapes = [lift(shape) for shape in ins if shape is not None]
        if len(shapes) < len(ins):
            return
        place = along(len(shapes[0]))
        common: Shape = None
        try:
            for shape in shapes:
                common = unify(common, (*shape[:place], -1, *shape[place + 1 :]))
        except ValueError:
            listed = " and ".join(show_shape(shape) for shape in ins)
            raise ShapeError(f"expected shapes that differ along axis {place} alone, got {listed}") from None
        assert common is not None
        lengths = [shape[place] for shape in shapes]
        total = sum(lengths) if min(lengths) >= 0 else -1
        outs.merge(0, (*common[:place], total, *common[place + 1 :]))

    @op.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        arrays = [array.reshape(lift(array.shape)) for array in inputs]
        ctx.xp.concatenate(arrays, axis=along(outputs[0].ndim), out=outputs[0])

    @backward.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (gout,) = inputs
        place, begin = along(gout.ndim), 0
        for out, spec in zip(outputs, ctx.call.outputs, strict=True):
            shape = lift(tuple(spec.shape))
            end = begin + shape[place]
            if out is not None:
                part = gout[(*(slice(None),) * place, slice(begin, end))]
                ctx.xp.copyto(out.reshape(shape), part)
            begin = end


def _declare_lift(name: str, lift: Lift, doc: str) -> None:
    op = register(f"_np_{name}", StacksParams, inputs=Variadic(), outputs=Counted("num_args"), doc=doc)
    backward = register_backward(f"_backward_np_{name}", StacksParams)

    @op.infer_shape
    def _(p: StacksParams, ins: ShapeList, outs: ShapeList) -> None:
        for i, shape in enumerate(ins):
            if shape is not None:
                outs.merge(i, lift(shape))

    @op.infer_type
    def _(p: StacksParams, ins: TypeList, outs: TypeList) -> None:
        for i in range(len(ins)):
            ins.merge(i, outs.merge(i, ins[i]))

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(backward.name, node, list(ograds))

    @op.compute()
    @backward.compute()
    def _(p: StacksParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        for array, out in zip(inputs, outputs, strict=True):
            if out is not None:
                ctx.xp.copyto(out, array.reshape(out.shape))


_declare("vstack", StacksParams, _at_least_2, 0, "Arrays under one another.")
_declare("hstack", JoinParams, _at_least_1, 1, "Arrays beside one another.")
_declare("dstack", JoinParams, _at_least_3, 2, "Arrays behind one another.")
_declare("column_stack", StacksParams, _columns, 1, "Vectors as columns beside one another.")
_declare_lift("atleast_1d", _at_least_1, "Arrays with at least one axis.")
_declare_lift("atleast_2d", _at_least_2, "Arrays with at least two axes.")
_declare_lift("atleast_3d", _at_least_3, "Arrays with at least three axes.")
