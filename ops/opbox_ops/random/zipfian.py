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
    assert p.shape is not None
    xp, (batch, n) = ctx.xp, p.shape
    classes, tries = outputs
    draws = _draw(ctx, p, (batch, 2 * n + 8))
    first = _are_first(xp, draws)
    while batch and n and int(first.sum(axis=1).min()) < n:
        pause()
        draws = xp.concatenate([draws, _draw(ctx, p, draws.shape)], axis=1)
        first = _are_first(xp, draws)
    first &= first.cumsum(axis=1) <= n
    if classes is not None:
        classes[...] = draws[first].reshape(batch, n)
    if tries is not None:
        last = draws.shape[1] - first[:, ::-1].argmax(axis=1)
        tries[...] = last if n else 0
