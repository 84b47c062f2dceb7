"""_contrib_bipartite_matching: pairs of rows and columns, the pair of the highest score first, each used once.

data (*batch, n, m); outputs: the column of each row (*batch, n), the row of each column (*batch, m), -1 where there is
none. Pairs are taken while their score is above threshold (is_ascend: the lowest first, while below), and with topk no
more than topk + 1 of them, as in MXNet. The gradient is zero.
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float, show_shape, size_of
from ..params import Bool, Field, Float, Int, Params
from ..registry import register
from .matching import match


class BipartiteMatchingParams(Params):
    is_ascend: Bool = Field(False, description="The lowest score is the best.")
    threshold: Float = Field(description="Pairs that are not better than this are not matched.")
    topk: Int = Field(-1, description="Stop after topk + 1 pairs; no bound when it is less than 1.")


op = register("_contrib_bipartite_matching", BipartiteMatchingParams, outputs=("output0", "output1"))
op.set_attr("FGradient", grad_zero)
op.infer_type(all_same_float)


@op.infer_shape
def _(p: BipartiteMatchingParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is not None and len(data) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(data)}", side="input", index=0)
    if data is not None:
        outs.merge(0, data[:-1])
        outs.merge(1, (*data[:-2], data[-1]))
    rows, columns = outs
    if rows is not None and columns is not None:
        outs.merge(0, (*columns[:-1], -1))
        outs.merge(1, (*rows[:-1], -1))
        ins.merge(0, (*rows, columns[-1]))
    elif rows is not None:
        ins.merge(0, (*rows, -1))
    elif columns is not None:
        ins.merge(0, (*columns[:-1], -1, columns[-1]))


@op.compute(allocates="rounds of the best pairs")
def _(p: BipartiteMatchingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp = ctx.xp
    data = inputs[0]
    scores = data.reshape(size_of(data.shape[:-2]), *data.shape[-2:])
    scores, threshold = (-scores, -p.threshold) if p.is_ascend else (scores, p.threshold)
    column_of, row_of = match(xp, scores, threshold)
    if p.topk > 0:
        _keep_best(xp, scores, column_of, row_of, p.topk + 1)
    for out, partner in zip(outputs, (column_of, row_of), strict=True):
        if out is not None:
            out[...] = partner.reshape(out.shape)


def _keep_best(xp: Any, scores: Array, column_of: Array, row_of: Array, count: int) -> None:
    """Undo all but the `count` best pairs of each batch."""
    if not scores.size or count >= column_of.shape[1]:
        return
    best = xp.take_along_axis(scores, xp.maximum(column_of, 0)[:, :, None], axis=2)[:, :, 0]
    order = xp.argsort(xp.where(column_of >= 0, -best, xp.inf), axis=1, kind="stable")
    late = order[:, count:]
    column = xp.take_along_axis(column_of, late, axis=1)
    at, number = xp.nonzero(column >= 0)
    row_of[at, column[at, number]] = -1
    column_of[at, late[at, number]] = -1
