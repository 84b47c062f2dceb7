"""shape_array and size_array: what is known about an array's shape, as int64 arrays. Their gradient is zero.

shape_array: (data's ndim,)        size_array: (1,)
"""

from __future__ import annotations

from ..compute import Arrays, OpContext, Outputs
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register

shape_array = register("shape_array", doc="The sizes of data's axes.")
size_array = register("size_array", doc="The number of data's elements.")


@shape_array.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, (-1 if ins[0] is None else len(ins[0]),))


@size_array.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, (1,))


@shape_array.gradient
@size_array.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


def _int64(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "int64")


shape_array.infer_type(_int64)
size_array.infer_type(_int64)


@shape_array.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    # One element at a time: numbers go to a device without a copy from host memory.
    for i, size in enumerate(inputs[0].shape):
        outputs[0][i] = size


@size_array.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(inputs[0].size)
