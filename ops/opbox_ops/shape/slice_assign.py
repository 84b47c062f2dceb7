"""_slice_assign and _slice_assign_scalar: an array with a regular part replaced; what `x[1:3] = y` runs.

out = lhs, but out[begin:end:step] = rhs (or a scalar); out has lhs's shape, and rhs that of the part.
"""

from __future__ import annotations

from typing import Any

from ..compute import Array, Arrays, OpContext, Outputs
from ..infer import ShapeList
from ..params import Field, Float, as_element
from ..registry import register
from .slice import SliceParams, length, part_of
from .view import copy_bytes


class SliceAssignScalarParams(SliceParams):
    positional = ("scalar",)
    scalar: Float = Field(0.0, description="The value that the part gets.")


op = register("_slice_assign", SliceParams, inputs=("lhs", "rhs"), aliases=("_crop_assign",)).inplace((0, 0))
scalar_op = register("_slice_assign_scalar", SliceAssignScalarParams, aliases=("_crop_assign_scalar",)).inplace((0, 0))


@op.infer_shape
def _(p: SliceParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None:
        part = part_of(p, len(shape))
        sizes = [length(one, size) for one, size in zip(part, shape, strict=False)]
        ins.merge(1, (*sizes, *shape[len(part) :]))


@scalar_op.infer_shape
def _(p: SliceAssignScalarParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None:
        part_of(p, len(shape))


def _replace(p: Any, ctx: OpContext, data: Array, value: Any, out: Array) -> None:
    copy_bytes(ctx, data, out)
    out[part_of(p, out.ndim)] = value


@op.compute()
def _(p: SliceParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _replace(p, ctx, inputs[0], inputs[1], outputs[0])


@scalar_op.compute()
def _(p: SliceAssignScalarParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _replace(p, ctx, inputs[0], as_element(p.scalar, outputs[0].dtype), outputs[0])
