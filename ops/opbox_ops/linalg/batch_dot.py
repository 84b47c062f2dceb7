"""batch_dot: one matrix product for each element of a batch.

lhs (…, m, k), rhs (…, k, n) -> (…, m, n), with equal leading axes; transpose_a takes lhs (…, k, m), transpose_b rhs
(…, n, k).

    glhs = gout @ rhs.T        grhs = lhs.T @ gout
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, show_shape
from ..node import Entry, Node
from ..registry import register, register_backward
from .dot import DotParams, first_known
from .matrix import transposed
from .product import backward_copies, product, wide_copies

op = register("batch_dot", DotParams, inputs=("lhs", "rhs"))
backward = register_backward("_backward_batch_dot", DotParams, outputs=("lhs", "rhs"))


@op.infer_shape
def _(p: DotParams, ins: ShapeList, outs: ShapeList) -> None:
    present = [shape for shape in (*ins, *outs) if shape is not None]
    if not present:
        return
    ndim = len(present[0])
    if ndim < 3 or any(len(shape) != ndim for shape in present):
        got = ", ".join(show_shape(shape) for shape in present)
        raise ShapeError(f"expected lhs and rhs with the same number of dimensions, at least 3, got {got}")
    unknown = (-1,) * ndim
    for _ in range(2):
        lhs, rhs, out = ins[0] or unknown, ins[1] or unknown, outs[0] or unknown
        batch = tuple(first_known(*sizes) for sizes in zip(lhs[:-2], rhs[:-2], out[:-2], strict=True))
        m = first_known(lhs[-1 if p.transpose_a else -2], out[-2])
        n = first_known(rhs[-2 if p.transpose_b else -1], out[-1])
        k = first_known(lhs[-2 if p.transpose_a else -1], rhs[-1 if p.transpose_b else -2])
        ins.merge(0, (*batch, k, m) if p.transpose_a else (*batch, m, k))
        ins.merge(1, (*batch, n, k) if p.transpose_b else (*batch, k, n))
        outs.merge(0, (*batch, m, n))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_batch_dot", node, [ograds[0], *node.inputs])


@op.compute(temps=lambda p, call: wide_copies(*call.inputs, *call.outputs))
def _(p: DotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    lhs, rhs = inputs
    a, b = (transposed(lhs) if p.transpose_a else lhs), (transposed(rhs) if p.transpose_b else rhs)
    product(ctx.xp, a, b, outputs[0], ctx.temp)


@backward.compute(temps=backward_copies)
def _(p: DotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    g, lhs, rhs = inputs
    a, b = (transposed(lhs) if p.transpose_a else lhs), (transposed(rhs) if p.transpose_b else rhs)
    if outputs[0] is not None:
        product(ctx.xp, *((b, transposed(g)) if p.transpose_a else (g, transposed(b))), outputs[0], ctx.temp[:3])
    if outputs[1] is not None:
        product(ctx.xp, *((transposed(g), a) if p.transpose_b else (transposed(a), g)), outputs[1], ctx.temp[3:])
