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

from ..cache import INDEX_PIECE
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..index.counting import count_up
from ..index.searched import search_rows, search_rows_temps
from ..infer import ShapeList, TypeList, size_of
from ..params import Field, OptFloatTuple, OptInt, Params
from ..pausing import pause
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


def _bins(p: HistogramParams, call: CallSpec) -> int:
    return call.inputs[1].shape[0] - 1 if p.bin_cnt is None else p.bin_cnt


def _temps(p: HistogramParams, call: CallSpec) -> list[Temp]:
    """Temporaries: the edges, also in double precision; the counts, with those below and above, and a 1 to count with;
    for a piece of data the bins, and what the search for them takes."""
    data, bins = call.inputs[0], _bins(p, call)
    count = size_of(data.shape)
    piece = min(count, INDEX_PIECE) if call.device == "cpu" else count
    return [
        Temp((1, bins + 1), data.dtype),
        Temp((bins + 1,), "float64"),
        Temp((bins,), "bool"),
        Temp((bins + 2,), "uint64"),
        Temp((1,), "uint64"),
        Temp((1, piece), "int64"),
        *search_rows_temps((1, piece), data.dtype),
    ]


@op.compute(temps=_temps)
def _(p: HistogramParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data = ctx.xp, inputs[0].reshape(1, -1)
    edges, exact, descending, counts, one, where, *searching = ctx.temp
    if p.bin_cnt is None:
        xp.copyto(edges[0], inputs[1])
        if xp is np and bool(np.less(edges[0, 1:], edges[0, :-1], out=descending).any()):
            raise ParamError("_histogram: bins: expected ascending edges, got edges that descend")
    else:
        write_edges(xp, p, exact, edges[0])
    if outputs[1] is not None:
        xp.copyto(outputs[1], edges[0])
    if outputs[0] is None:
        return
    counts.fill(0)
    one.fill(1)
    for start in range(0, data.size, max(where.size, 1)):
        pause()
        part = data[:, start : start + where.size]
        bins, probes, probed, reached = (temp[:, : part.size] for temp in (where, *searching[:3]))
        search_rows(xp, edges, part, bins, [probes, probed, reached, searching[3]])
        xp.subtract(bins, xp.equal(part, edges[0, -1:], out=reached), out=bins)
        xp.add.at(counts, bins.reshape(-1), one)  # CuPy adds at positions in few types
    xp.copyto(outputs[0], counts[1:-1], casting="unsafe")


def write_edges(xp: Any, p: HistogramParams, exact: Array, out: Array) -> None:
    """Write the edges of bins of equal width to `out`; `exact` is as long, in double precision."""
    assert p.range is not None
    assert p.bin_cnt is not None
    left, right = p.range
    if left == right:
        left, right = left - 0.5, right + 0.5
    count_up(xp, exact)
    xp.multiply(exact, right - left, out=exact)
    xp.divide(exact, p.bin_cnt, out=exact)
    xp.add(exact, left, out=exact)
    xp.copyto(out, exact, casting="unsafe")
