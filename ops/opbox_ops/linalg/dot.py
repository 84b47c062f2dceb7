"""dot: the sum over lhs's last axis and rhs's first one.

lhs (…a, k), rhs (k, …b) -> (…a, …b); two vectors give (1,). transpose_a sums over lhs's first axis instead and
transpose_b over rhs's last: lhs (k, …a), rhs (…b, k).

With both as matrices:  glhs = gout @ rhs.T        grhs = lhs.T @ gout
"""

from __future__ import annotations

from typing import ClassVar, Literal

from opbox_protocol.errors import ShapeError, UnsupportedError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, show_shape, size_of
from ..node import Entry, Node
from ..params import Bool, Field, Params
from ..registry import register, register_backward
from .product import backward_copies, product, wide_copies


class DotParams(Params):
    transpose_a: Bool = Field(False, description="Sum over lhs's first axis.")
    transpose_b: Bool = Field(False, description="Sum over rhs's last axis.")
    forward_stype: Literal["None", "default", "csr", "row_sparse"] | None = Field(
        None, description="Accepted; every array is dense."
    )


class NumpyDotParams(Params):
    """None: mx.np's dot transposes nothing."""

    transpose_a: ClassVar[bool] = False
    transpose_b: ClassVar[bool] = False


op = register("dot", DotParams, inputs=("lhs", "rhs"))
numpy_op = register(
    "_np_dot", NumpyDotParams, inputs=("a", "b"), doc="The sum over a's last axis and b's first; of two vectors, ()."
)
numpy_backward = register_backward("_backward_np_dot", NumpyDotParams, outputs=("a", "b"))
backward = register_backward("_backward_dot", DotParams, outputs=("lhs", "rhs"))


def first_known(*sizes: int) -> int:
    """The first size that is known, or -1: a later one that differs is the one to complain of."""
    return next((size for size in sizes if size >= 0), -1)


@op.infer_shape
@numpy_op.infer_shape
def _(p: DotParams | NumpyDotParams, ins: ShapeList, outs: ShapeList) -> None:
    lhs, rhs = ins
    if lhs is None or rhs is None:
        return
    if not lhs or not rhs:
        raise ShapeError(f"expected at least 1 dimension, got {show_shape(lhs)} and {show_shape(rhs)}")
    if isinstance(p, NumpyDotParams) and len(rhs) > 2:
        raise UnsupportedError(f"b: expected at most 2 dimensions, got {show_shape(rhs)}")
    if len(lhs) == len(rhs) == 1 and (p.transpose_a or p.transpose_b):
        raise ShapeError("transpose_a, transpose_b: expected False for two vectors, got True")
    a_summed, b_summed = (0 if p.transpose_a else -1), (-1 if p.transpose_b else 0)
    a_free = lhs[1:] if p.transpose_a else lhs[:-1]
    b_free = rhs[:-1] if p.transpose_b else rhs[1:]
    out = outs.merge(0, (*a_free, *b_free) or (() if isinstance(p, NumpyDotParams) else (1,)))
    assert out is not None
    a_free, b_free = out[: len(a_free)], out[len(a_free) : len(a_free) + len(b_free)]
    length = first_known(lhs[a_summed], rhs[b_summed])
    ins.merge(0, (length, *a_free) if p.transpose_a else (*a_free, length))
    ins.merge(1, (*b_free, length) if p.transpose_b else (length, *b_free))


@numpy_op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_np_dot", node, [ograds[0], *node.inputs])


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_dot", node, [ograds[0], *node.inputs])


def _matrices(p: DotParams | NumpyDotParams, lhs: Array, rhs: Array) -> tuple[Array, Array]:
    """lhs as it lies, (m, k) or (k, m) when transposed; rhs likewise, (k, n) or (n, k)."""
    a_shape = (lhs.shape[0], size_of(lhs.shape[1:])) if p.transpose_a else (size_of(lhs.shape[:-1]), lhs.shape[-1])
    b_shape = (size_of(rhs.shape[:-1]), rhs.shape[-1]) if p.transpose_b else (rhs.shape[0], size_of(rhs.shape[1:]))
    return lhs.reshape(a_shape), rhs.reshape(b_shape)


@op.compute(temps=lambda p, call: wide_copies(*call.inputs, *call.outputs))
@numpy_op.compute(temps=lambda p, call: wide_copies(*call.inputs, *call.outputs))
def _(p: DotParams | NumpyDotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    a, b = _matrices(p, *inputs)
    a, b = (a.T if p.transpose_a else a), (b.T if p.transpose_b else b)
    product(ctx.xp, a, b, outputs[0].reshape(a.shape[0], b.shape[1]), ctx.temp)


@backward.compute(temps=backward_copies)
@numpy_backward.compute(temps=backward_copies)
def _(p: DotParams | NumpyDotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, lhs, rhs = inputs
    a, b = matrices = _matrices(p, lhs, rhs)
    a, b = (a.T if p.transpose_a else a), (b.T if p.transpose_b else b)
    g = gout.reshape(a.shape[0], b.shape[1])
    # A transposed operand's gradient is the transposed product, so that each is written as it lies in memory.
    pairs = ((b, g.T) if p.transpose_a else (g, b.T)), ((g.T, a) if p.transpose_b else (a.T, g))
    for pair, out, like, wide in zip(pairs, outputs, matrices, (ctx.temp[:3], ctx.temp[3:]), strict=True):
        if out is not None:
            product(ctx.xp, *pair, out.reshape(like.shape), wide)
