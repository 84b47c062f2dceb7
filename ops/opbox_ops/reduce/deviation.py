"""mx.np's var and std: the spread of a over axes.

    var = sum (a - mean)^2 / (n - ddof)        std = sqrt(var)
    ga = 2 gout (a - mean) / (n - ddof)        ga = gout (a - mean) / ((n - ddof) std)

a is any shape; the result is what is left of it without the axes, () of all of them. Of integers both are computed as
real numbers and cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import TypeList, not_bool
from ..node import Entry, Node
from ..params import Bool, Field, Int, OptShape, Params
from ..registry import register, register_backward
from .axes import kept_dims, numpy_axes, remaining_shapes


class DeviationParams(Params):
    axis: OptShape = Field(None, description="The axes to reduce; all when it is None.")
    dtype: Literal["None", "float16", "float32", "float64", "int8", "int32", "int64"] | None = Field(
        None, description="The type of the result; by default a's."
    )
    ddof: Int = Field(0, description="The divisor is the number of elements minus this.")
    keepdims: Bool = Field(False, description="Keep the reduced axes, with length 1.")


def _types(p: DeviationParams, ins: TypeList, outs: TypeList) -> None:
    not_bool(ins)
    if p.dtype not in (None, "None"):
        outs.merge(0, p.dtype)
    else:
        ins.merge(0, outs.merge(0, ins[0]))


def _temps(place: int) -> Any:
    """An array like a, and one of its means."""

    def rule(p: DeviationParams, call: CallSpec) -> Sequence[Temp]:
        a = call.inputs[place]
        wide = np.dtype("float64") if a.dtype.kind in "iu" else accumulation_type(a.dtype)
        return [Temp(a.shape, wide), Temp(kept_dims(a.shape, numpy_axes(p.axis, len(a.shape))), wide)]

    return rule


def _centre(p: DeviationParams, ctx: OpContext, a: Any) -> tuple[Any, Any, tuple[int, ...], int]:
    """a - mean in the first temporary array; the second, the axes and the divisor."""
    xp, (centred, mean) = ctx.xp, ctx.temp
    axes = numpy_axes(p.axis, a.ndim)
    n = prod(a.shape[axis] for axis in axes)
    xp.sum(a, axis=axes, keepdims=True, dtype=mean.dtype, out=mean)
    mean /= max(n, 1)
    xp.subtract(a, mean, out=centred)
    return centred, mean, axes, n - p.ddof


def _declare(name: str, doc: str, *, root: bool) -> None:
    op = register(f"_npi_{name}", DeviationParams, inputs=("a",), doc=doc)
    backward = register_backward(f"_backward_npi_{name}", DeviationParams, outputs=("a",))
    op.set_attr("FInferShape", remaining_shapes)
    op.set_attr("FInferType", _types)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(backward.name, node, [ograds[0], node.inputs[0], *([Entry(node)] if root else [])])

    @op.compute(temps=_temps(0))
    def _(p: DeviationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, out = ctx.xp, outputs[0]
        centred, total, axes, divisor = _centre(p, ctx, inputs[0])
        xp.multiply(centred, centred, out=centred)
        xp.sum(centred, axis=axes, keepdims=True, out=total)
        total *= 1 / divisor if divisor > 0 else float("nan")
        if root:
            xp.sqrt(total, out=total)
        xp.copyto(out, total.reshape(out.shape), casting="unsafe")

    @backward.compute(temps=_temps(1))
    def _(p: DeviationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, out = ctx.xp, outputs[0]
        centred, factor, _, divisor = _centre(p, ctx, inputs[1])
        xp.copyto(factor, inputs[0].reshape(factor.shape))
        factor *= (1.0 if root else 2.0) / divisor if divisor > 0 else float("nan")
        if root:
            factor /= inputs[2].reshape(factor.shape)
        xp.multiply(centred, factor, out=centred)
        xp.copyto(out, centred, casting="unsafe")


_declare("var", "The variance over axes.", root=False)
_declare("std", "The standard deviation over axes.", root=True)
