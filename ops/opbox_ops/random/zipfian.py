"""_sample_unique_zipfian: candidates for sampled softmax, without repeats, the frequent classes first.

out (batch, n): in each row n different classes of range_max, drawn one after the other from

    P(k) = log((k + 1.5) / (k + 0.5)) / log(range_max),   the first and last class half of it

which is round(exp(uniform(0, log(range_max)))) - 1, drawn again while the class is there already; tries (batch,) counts
the draws. Both are int64. There is no gradient.
"""

from __future__ import annotations

from math import log
from typing import Any

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, OpContext, Outputs
from ..infer import ShapeList, TypeList
from ..params import Field, OptShape, Params, PositiveInt
from ..pausing import pause
from ..registry import register


class ZipfianParams(Params):
    range_max: PositiveInt = Field(description="How many classes there are.")
    shape: OptShape = Field(None, description="(batch, n): n different classes in each row.")


MAX_DRAWS = 1 << 22
"""Draws in memory at a time, those that a row's classes need at the least apart."""

op = register(
    "_sample_unique_zipfian",
    ZipfianParams,
    inputs=(),
    outputs=("output0", "output1"),
    doc="Different classes, drawn with log-uniform frequencies, and how many draws they took.",
)
op.set_attr("TRandom", True)


@op.infer_shape
def _(p: ZipfianParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.shape is None or len(p.shape) != 2:
        raise ParamError(f"_sample_unique_zipfian: parameter 'shape': expected (batch, n), got {p.shape}")
    if p.shape[1] > p.range_max:
        raise ParamError(
            f"_sample_unique_zipfian: parameter 'shape': expected at most range_max = {p.range_max} classes a row, "
            f"got {p.shape[1]}"
        )
    outs.merge(0, p.shape)
    outs.merge(1, p.shape[:1])


@op.infer_type
def _(p: ZipfianParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "int64")
    outs.merge(1, "int64")


def _draw(ctx: OpContext, p: ZipfianParams, shape: tuple[int, int]) -> Array:
    points = ctx.xp.empty(shape, "float64")
    ctx.random.uniform(points)
    points *= log(p.range_max)
    return (ctx.xp.rint(ctx.xp.exp(points)).astype("int64") - 1) % p.range_max


def _are_first(xp: Any, draws: Array) -> Array:
    """Return a mask of the numbers that are the first of their kind in their row."""
    order = draws.argsort(axis=1, kind="stable")
    ordered = xp.take_along_axis(draws, order, axis=1)
    first = xp.ones(draws.shape, bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    result = xp.empty_like(first)
    xp.put_along_axis(result, order, first, axis=1)
    return result


@op.compute(allocates="how many draws it takes is known when they are made")
def _(p: ZipfianParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    classes, tries = draw_different(p, ctx, MAX_DRAWS)
    if outputs[0] is not None:
        outputs[0][...] = classes
    if outputs[1] is not None:
        outputs[1][...] = tries


def draw_different(p: ZipfianParams, ctx: OpContext, max_draws: int) -> tuple[Array, Array]:
    """The classes and the tries. Rows that lack some after `max_draws` draws of all go on one by one, in its memory.

    The last of many classes takes millions of draws to come: they are not all kept.
    """
    assert p.shape is not None
    xp, (batch, n) = ctx.xp, p.shape
    draws = _draw(ctx, p, (batch, 2 * n + 8))
    first = _are_first(xp, draws)
    while batch and n and draws.size <= max_draws // 2 and int(first.sum(axis=1).min()) < n:
        pause()
        draws = xp.concatenate([draws, _draw(ctx, p, draws.shape)], axis=1)
        first = _are_first(xp, draws)
    lacking = [int(row) for row in xp.flatnonzero(first.sum(axis=1) < n)]
    first &= first.cumsum(axis=1) <= n
    tries = draws.shape[1] - first[:, ::-1].argmax(axis=1) if n else xp.zeros(batch, "int64")
    if not lacking:
        return draws[first].reshape(batch, n), tries
    classes = xp.empty((batch, n), "int64")
    for row in range(batch):
        known = draws[row][first[row]]
        if len(known) < n:
            known, tries[row] = _completed(p, ctx, known, draws.shape[1], n, max_draws)
        classes[row] = known
    return classes, tries


def _completed(
    p: ZipfianParams, ctx: OpContext, classes: Array, tries: int, n: int, max_draws: int
) -> tuple[Array, int]:
    """The classes of a row, drawn until there are `n`, and the tries that this took."""
    xp = ctx.xp
    while True:
        pause()
        block = _draw(ctx, p, (1, max(1, max_draws // 4)))[0]
        values, at = xp.unique(block, return_index=True)
        ordered = xp.sort(classes)
        near = xp.minimum(xp.searchsorted(ordered, values), len(ordered) - 1)
        fresh = xp.sort(at[ordered[near] != values])[: n - len(classes)]
        classes = xp.concatenate([classes, block[fresh]])
        if len(classes) == n:
            return classes, tries + int(fresh[-1]) + 1
        tries += len(block)
