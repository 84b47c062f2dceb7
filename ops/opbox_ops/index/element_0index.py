"""_onehot_encode, fill_element_0index: old operators on one element of each row, as `pick` reads it.

    _onehot_encode       out of rhs' shape (n, k): 1 at lhs[i] in row i, else 0; lhs (n,)
    fill_element_0index  lhs (n, k) with mhs[i] at position rhs[i] of row i; mhs, rhs (n,)

A position outside its row is passed over by _onehot_encode and clipped by fill_element_0index. There is no gradient.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import ShapeList, show_shape
from ..params import NoParams
from ..registry import register
from .counting import count_up
from .positions import positions, put_rows, whole

onehot = register("_onehot_encode", inputs=("lhs", "rhs"), doc="Rows with 1 at a position and 0 elsewhere.")
fill = register(
    "fill_element_0index", inputs=("lhs", "mhs", "rhs"), doc="lhs with one element of each row replaced."
).inplace((0, 0))


@onehot.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    table = ins.rank(1, 2)
    rows = ins.rank(0, 1)
    table = ins.merge(1, outs.merge(0, table if table is not None else None if rows is None else (rows[0], -1)))
    if table is not None:
        rows = ins.merge(0, table[:1])
        assert rows is not None
        ins.merge(1, outs.merge(0, (rows[0], table[1])))


def _hot(p: NoParams, call: CallSpec) -> list[Temp]:
    """The positions, the numbers of a row's elements, and which of them are hot."""
    shape = call.outputs[0].shape
    return [Temp(shape[:1], "int64"), Temp(shape[1:], "int64"), Temp(shape, "bool")]


@onehot.compute(temps=_hot)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (where, numbers, hot) = ctx.xp, ctx.temp
    outputs[0][...] = xp.equal(whole(xp, inputs[0], where)[:, None], count_up(xp, numbers), out=hot)


@fill.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    table = ins.rank(0, 2)
    table = ins.merge(0, outs.merge(0, table))
    rows = -1 if table is None else table[0]
    for _ in range(2):
        for i in (1, 2):
            ins.rank(i, 1)
            line = ins.merge(i, (rows,))
            assert line is not None
            rows = line[0]
    if table is not None:
        if table[1] == 0 and rows > 0:
            raise ShapeError(f"lhs: expected at least one element in a row, got {show_shape(table)}")
        ins.merge(0, outs.merge(0, (rows, table[1])))


@fill.compute(temps=lambda p, call: [Temp(call.inputs[2].shape, "int64")] * 2)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (table, values, index), (out,), (where, rows) = ctx.xp, inputs, outputs, ctx.temp
    positions(xp, index, table.shape[1], "clip", where)
    count_up(xp, rows)
    rows *= table.shape[1]
    where += rows
    if out is not table:
        out[...] = table
    put_rows(xp, out.reshape(-1, 1), where, values.reshape(-1, 1))
