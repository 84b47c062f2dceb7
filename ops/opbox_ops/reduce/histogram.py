"""_histogram: how many of data's numbers lie between the edges of bins.

data (…) -> counts (n,) int64, edges (n + 1,) of data's type. The edges are the input bins (n + 1,), ascending; or, with
bin_cnt = n, evenly spaced over `range` (of (x, x): from
x - 0.5 to x + 0.5). A bin holds what is at least its left edge and below its right one, the last bin
its right edge too; numbers outside count nowhere. There is no gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError

from ..compute import Arrays, OpContext, Outputs
from ..infer import ShapeList, TypeList
from ..params import Field, OptFloatTuple, OptInt, Params
from ..registry import Slot, register, when


class HistogramParams(Params):
    bin_cnt: OptInt = Field(None, description="How many bins of equal width; None: the edges are the input `bins`.")
    range: OptFloatTuple = Field(None, description="(left, right): the ends of the bins; with bin_cnt.")


op = register(
    "_histogram",
    HistogramParams,
    inputs=("data", Slot("bins", when("bin_cnt", None))),
    outputs=("output0", "output1"),
)


@op.infer_shape
def _(p: HistogramParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.bin_cnt is None:
        edges = ins.rank(1, 1)
        if edges is not None and 0 <= edges[0] < 2:
            raise ParamError(f"_histogram: bins: expected at least 2 edges, got {edges[0]}")
        edges = ins.merge(1, outs.merge(1, edges))
        if edges is not None and edges[0] >= 0:
            outs.merge(0, (edges[0] - 1,))
        elif outs.rank(0, 1) is not None:
            counts = outs[0]
            assert counts is not None
            ins.merge(1, outs.merge(1, (counts[0] + 1 if counts[0] >= 0 else -1,)))
        return
    if p.bin_cnt < 1:
        raise ParamError(f"_histogram: parameter 'bin_cnt': expected at least 1, got {p.bin_cnt}")
    if p.range is None or len(p.range) != 2 or not p.range[0] <= p.range[1]:
        raise ParamError(f"_histogram: parameter 'range': expected (left, right), left at most right, got {p.range}")
    outs.merge(0, (p.bin_cnt,))
    outs.merge(1, (p.bin_cnt + 1,))


@op.infer_type
def _(p: HistogramParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "int64")
    dtype = outs.merge(1, ins[0])
    if p.bin_cnt is None:
        dtype = ins.merge(1, dtype)
        dtype = outs.merge(1, dtype)
    ins.merge(0, dtype)


@op.compute(allocates="the bin of every number, and the counts, which the library makes itself")
def _(p: HistogramParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data = ctx.xp, inputs[0].reshape(-1)
    if p.bin_cnt is None:
        edges = inputs[1]
        if xp is np and bool((edges[1:] < edges[:-1]).any()):
            raise ParamError("_histogram: bins: expected ascending edges, got edges that descend")
    else:
        assert p.range is not None
        edges = edges_of(xp, p, data.dtype)
    count = len(edges) - 1
    where = xp.searchsorted(edges, data, side="right") - 1
    where[data == edges[-1]] = count - 1
    where = where[(where >= 0) & (where < count)]
    if outputs[0] is not None:
        outputs[0][...] = xp.bincount(where, minlength=count)
    if outputs[1] is not None:
        outputs[1][...] = edges


def edges_of(xp: Any, p: HistogramParams, dtype: Any) -> Any:
    """The edges of bins of equal width."""
    assert p.range is not None
    assert p.bin_cnt is not None
    left, right = p.range
    if left == right:
        left, right = left - 0.5, right + 0.5
    steps = xp.arange(p.bin_cnt + 1, dtype="float64")
    return (left + steps * (right - left) / p.bin_cnt).astype(dtype)
