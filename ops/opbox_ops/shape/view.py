"""Operators whose output is their input's bytes under another shape (Reshape, expand_dims, squeeze, …).

`as_view` gives such an operator everything but its names and shape rule. Its open attribute `TIsView` promises that the
output equals the input byte for byte, so an executor that lets both share memory may leave the step out.
"""

from __future__ import annotations

from typing import Any

from ..compute import Array, Arrays, OpContext, OpReq, Outputs
from ..gradient import backward_node
from ..node import Entry, Node
from ..registry import Op, register_backward

__all__ = ["as_view", "copy_bytes", "copy_input"]


def copy_bytes(ctx: OpContext, data: Array, out: Array) -> None:
    """Write `data`, in row-major order, into `out` of as many elements; nothing to do where they share memory."""
    if ctx.req[0] != OpReq.INPLACE:
        ctx.xp.copyto(out.reshape(data.shape), data)


def copy_input(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    """The compute of a view whose output has memory of its own."""
    copy_bytes(ctx, inputs[0], outputs[0])


def as_view(op: Op) -> Op:
    """Make `op` a view of its first input: compute, sharing and a gradient that is a view again."""
    backward = register_backward(f"_backward_{op.name}", op.params)
    for definition in (op, backward):
        definition.compute()(copy_input)
        definition.inplace((0, 0)).set_attr("TIsView", True)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(backward.name, node, [ograds[0]], outputs=1)

    return op
