"""_contrib_interleaved_matmul_*: the two products of multi-head attention, on projections that lie interleaved.

With h heads and heads of d numbers, sequences of s (queries) and t (keys and values) steps, n samples:

    selfatt_qk      queries_keys_values (s, n, h * 3 * d) -> (n * h, s, s)        scores = q @ k.T / sqrt(d)
    selfatt_valatt  queries_keys_values (s, n, h * 3 * d), attention (n * h, s, s) -> (s, n, h * d)    attention @ v
    encdec_qk       queries (s, n, h * d), keys_values (t, n, h * 2 * d) -> (n * h, s, t)
    encdec_valatt   keys_values (t, n, h * 2 * d), attention (n * h, s, t) -> (s, n, h * d)

A step's numbers lie head by head, and in a head its query, key and value one after the other. The gradients are those
of the products; what an operator does not read of a projection has a gradient of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type, is_narrow
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import grad_use_in
from ..infer import Shape, ShapeList, TypeList, all_same_type, show_shape, size_of
from ..linalg.matrix import transposed
from ..params import Field, Params, PositiveInt
from ..registry import Op, register, register_backward


class AttentionParams(Params):
    heads: PositiveInt = Field(description="How many heads.")


def _declare(name: str, inputs: tuple[str, ...], doc: str) -> tuple[Op, Op]:
    op = register(f"_contrib_interleaved_matmul_{name}", AttentionParams, inputs=inputs, doc=doc)
    backward = register_backward(f"_backward_interleaved_matmul_{name}", AttentionParams, outputs=inputs)
    op.set_attr("FGradient", grad_use_in(backward.name))

    @op.infer_type
    def _(p: AttentionParams, ins: TypeList, outs: TypeList) -> None:
        all_same_type(p, ins, outs)
        for i in range(len(ins)):
            ins.only(i, "float16", "float32", "float64")

    return op, backward


self_scores, self_scores_backward = _declare(
    "selfatt_qk", ("queries_keys_values",), "Scores of every step's query with every step's key."
)
self_values, self_values_backward = _declare(
    "selfatt_valatt", ("queries_keys_values", "attention"), "Sums of the values, weighted by attention."
)
scores, scores_backward = _declare(
    "encdec_qk", ("queries", "keys_values"), "Scores of a decoder's queries with an encoder's keys."
)
values, values_backward = _declare(
    "encdec_valatt", ("keys_values", "attention"), "Sums of an encoder's values, weighted by attention."
)


def _projection(p: AttentionParams, ins: ShapeList, index: int, parts: int) -> tuple[int, int, int]:
    """(steps, samples, heads * d) of a projection that holds `parts` numbers for each; -1 where unknown."""
    shape = ins.rank(index, 3)
    if shape is None:
        return -1, -1, -1
    steps, samples, width = shape
    if width >= 0 and width % (parts * p.heads):
        raise ShapeError(
            f"expected a multiple of {parts} * {p.heads} heads on the last axis, got {show_shape(shape)}",
            side="input",
            index=index,
        )
    return steps, samples, width // parts if width >= 0 else -1


def _first(*sizes: int) -> int:
    return next((size for size in sizes if size >= 0), -1)


def _per_head(p: AttentionParams, samples: int) -> int:
    return samples * p.heads if samples >= 0 else -1


def _samples(p: AttentionParams, heads: Shape, slots: ShapeList, index: int) -> int:
    """Return the number of samples of an array (samples * heads, …); -1 where it is unknown."""
    if heads is None or heads[0] < 0:
        return -1
    if heads[0] % p.heads:
        raise ShapeError(
            f"expected a multiple of {p.heads} heads on the first axis, got {show_shape(heads)}",
            side=slots.side,
            index=index,
        )
    return heads[0] // p.heads


@self_scores.infer_shape
def _(p: AttentionParams, ins: ShapeList, outs: ShapeList) -> None:
    steps, samples, _ = _projection(p, ins, 0, 3)
    out = outs.rank(0, 3)
    if out is not None:
        steps, samples = _first(steps, out[1], out[2]), _first(samples, _samples(p, out, outs, 0))
    outs.merge(0, (_per_head(p, samples), steps, steps))
    ins.merge(0, (steps, samples, -1))


@self_values.infer_shape
def _(p: AttentionParams, ins: ShapeList, outs: ShapeList) -> None:
    steps, samples, width = _projection(p, ins, 0, 3)
    attention, out = ins.rank(1, 3), outs.rank(0, 3)
    if attention is not None:
        steps = _first(steps, attention[1], attention[2])
        samples = _first(samples, _samples(p, attention, ins, 1))
    if out is not None:
        steps, samples, width = _first(steps, out[0]), _first(samples, out[1]), _first(width, out[2])
    ins.merge(0, (steps, samples, 3 * width if width >= 0 else -1))
    ins.merge(1, (_per_head(p, samples), steps, steps))
    outs.merge(0, (steps, samples, width))


@scores.infer_shape
def _(p: AttentionParams, ins: ShapeList, outs: ShapeList) -> None:
    steps, samples, width = _projection(p, ins, 0, 1)
    others, samples_, width_ = _projection(p, ins, 1, 2)
    samples, width = _first(samples, samples_), _first(width, width_)
    out = outs.rank(0, 3)
    if out is not None:
        samples = _first(samples, _samples(p, out, outs, 0))
        steps, others = _first(steps, out[1]), _first(others, out[2])
    ins.merge(0, (steps, samples, width))
    ins.merge(1, (others, samples, 2 * width if width >= 0 else -1))
    outs.merge(0, (_per_head(p, samples), steps, others))


@values.infer_shape
def _(p: AttentionParams, ins: ShapeList, outs: ShapeList) -> None:
    others, samples, width = _projection(p, ins, 0, 2)
    attention, out = ins.rank(1, 3), outs.rank(0, 3)
    steps = -1
    if attention is not None:
        steps, others = attention[1], _first(others, attention[2])
        samples = _first(samples, _samples(p, attention, ins, 1))
    if out is not None:
        steps, samples, width = _first(steps, out[0]), _first(samples, out[1]), _first(width, out[2])
    ins.merge(0, (others, samples, 2 * width if width >= 0 else -1))
    ins.merge(1, (_per_head(p, samples), steps, others))
    outs.merge(0, (steps, samples, width))


def _split(p: AttentionParams, array: Array, parts: int) -> list[Array]:
    """The parts of a projection, each (samples, heads, steps, d), as views."""
    steps, samples, width = array.shape
    by_head = array.reshape(steps, samples, p.heads, parts, width // (p.heads * parts))
    return [by_head[:, :, :, part].transpose(1, 2, 0, 3) for part in range(parts)]


def _by_sample(p: AttentionParams, array: Array) -> Array:
    """(samples * heads, s, t) as (samples, heads, s, t)."""
    return array.reshape(array.shape[0] // p.heads, p.heads, *array.shape[1:])


def _product_temps(dtype: Any, *products: tuple[int, int, int]) -> list[Temp]:
    """Temporaries of `_product`, for products of arrays of these sizes (a, b, out), one after the other."""
    wide, sizes = accumulation_type(dtype), list(map(max, zip(*products, strict=True)))
    return [Temp((size,), wide) for size in (sizes if is_narrow(dtype) else sizes[2:])]


def _product(xp: Any, a: Array, b: Array, out: Array, scratch: Arrays, root: float = 1.0) -> None:
    """out = a @ b / root, made of all heads before it is laid out by steps; float16 in float32."""
    if is_narrow(out.dtype):
        a, b = (_copied(space, array) for space, array in zip(scratch, (a, b), strict=False))
    total = scratch[-1][: out.size].reshape(out.shape)
    matmul(xp, a, b, total)
    if root == 1:
        out[...] = total
    else:
        xp.divide(total, root, out=out, casting="same_kind")


def _copied(space: Array, array: Array) -> Array:
    copy = space[: array.size].reshape(array.shape)
    copy[...] = array
    return copy


def _root(q: Array) -> float:
    return sqrt(max(q.shape[-1], 1))


def _scores(p: AttentionParams, ctx: OpContext, q: Array, k: Array, out: Array) -> None:
    _product(ctx.xp, q, transposed(k), _by_sample(p, out), ctx.temp, _root(q))


def _scores_backward(p: AttentionParams, ctx: OpContext, gout: Array, q: Array, k: Array, gq: Any, gk: Any) -> None:
    g, root = _by_sample(p, gout), _root(q)
    if gq is not None:
        _product(ctx.xp, g, k, gq, ctx.temp, root)
    if gk is not None:
        _product(ctx.xp, transposed(g), q, gk, ctx.temp, root)


def _values_backward(
    p: AttentionParams, ctx: OpContext, gout: Array, attention: Array, v: Array, gattention: Any, gv: Any
) -> None:
    g = _split(p, gout, 1)[0]
    if gattention is not None:
        _product(ctx.xp, g, transposed(v), _by_sample(p, gattention), ctx.temp)
    if gv is not None:
        _product(ctx.xp, transposed(_by_sample(p, attention)), g, gv, ctx.temp)


def _scores_temps(p: AttentionParams, call: CallSpec) -> list[Temp]:
    q, k, out = *_queries_keys(call.inputs), size_of(call.outputs[0].shape)
    return _product_temps(call.outputs[0].dtype, (q, k, out))


def _scores_back_temps(p: AttentionParams, call: CallSpec) -> list[Temp]:
    gout, (q, k), dtype = size_of(call.inputs[0].shape), _queries_keys(call.inputs[1:]), call.inputs[0].dtype
    return _product_temps(dtype, (gout, k, q), (gout, q, k))


def _queries_keys(projections: Sequence[ArraySpec]) -> tuple[int, int]:
    """Return the number of elements of the queries and of the keys, of one projection or of two."""
    sizes = [size_of(array.shape) for array in projections]
    return (sizes[0] // 3, sizes[0] // 3) if len(sizes) == 1 else (sizes[0], sizes[1] // 2)


def _values_temps(p: AttentionParams, call: CallSpec) -> list[Temp]:
    (projection, attention), out = call.inputs, call.outputs[0]
    v = size_of(projection.shape) // _parts(out, projection)
    return _product_temps(out.dtype, (size_of(attention.shape), v, size_of(out.shape)))


def _values_back_temps(p: AttentionParams, call: CallSpec) -> list[Temp]:
    gout, projection, attention = call.inputs
    g, v, scores = size_of(gout.shape), size_of(projection.shape) // _parts(gout, projection), size_of(attention.shape)
    return _product_temps(gout.dtype, (g, v, scores), (scores, g, v))


def _parts(values: Any, projection: Any) -> int:
    """Return the number of parts of a projection (3: queries, keys, values; 2: keys, values)."""
    return 3 if 3 * values.shape[2] == projection.shape[2] else 2


@self_scores.compute(temps=_scores_temps)
def _(p: AttentionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    q, k, _ = _split(p, inputs[0], 3)
    _scores(p, ctx, q, k, outputs[0])


@self_scores_backward.compute(temps=_scores_back_temps)
def _(p: AttentionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, projection = inputs
    q, k, _ = _split(p, projection, 3)
    gq, gk, gv = _split(p, outputs[0], 3)
    _scores_backward(p, ctx, gout, q, k, gq, gk)
    gv[...] = 0


@self_values.compute(temps=_values_temps)
@values.compute(temps=_values_temps)
def _(p: AttentionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    projection, attention = inputs
    v = _split(p, projection, _parts(outputs[0], projection))[-1]
    _product(ctx.xp, _by_sample(p, attention), v, _split(p, outputs[0], 1)[0], ctx.temp)


@self_values_backward.compute(temps=_values_back_temps)
@values_backward.compute(temps=_values_back_temps)
def _(p: AttentionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, projection, attention = inputs
    parts = _parts(gout, projection)
    v = _split(p, projection, parts)[-1]
    gv = None
    if outputs[0] is not None:
        *unread, gv = _split(p, outputs[0], parts)
        for part in unread:
            part[...] = 0
    _values_backward(p, ctx, gout, attention, v, outputs[1], gv)


@scores.compute(temps=_scores_temps)
def _(p: AttentionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    queries, keys_values = inputs
    _scores(p, ctx, _split(p, queries, 1)[0], _split(p, keys_values, 2)[0], outputs[0])


@scores_backward.compute(temps=_scores_back_temps)
def _(p: AttentionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, queries, keys_values = inputs
    gq = None if outputs[0] is None else _split(p, outputs[0], 1)[0]
    gk = None
    if outputs[1] is not None:
        gk, gv = _split(p, outputs[1], 2)
        gv[...] = 0
    _scores_backward(p, ctx, gout, _split(p, queries, 1)[0], _split(p, keys_values, 2)[0], gq, gk)
