"""_contrib_box_nms: boxes by descending score, without those that overlap a better one of their class.

data (*batch, n, width), out of the same shape; a row holds four coordinates from coord_start on, a score, and with
id_index a class. Rows with a score above valid_thresh, and not of background_id, are sorted; the first topk of them
compete: one whose overlap with a better one that stays is above overlap_thresh is dropped. The rest follow one
another; the rows after them are -1.

gdata = gout, each row where it came from; formats do not enter into it, as in MXNet.
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import FLOATS, ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, Params
from ..registry import Slot, register, register_backward
from .geometry import BoxFormat, areas, overlap, to_center, to_corner
from .suppress import suppress


class BoxNmsParams(Params):
    overlap_thresh: Float = Field(0.5, description="Overlap above which the worse of two boxes is dropped.")
    valid_thresh: Float = Field(0.0, description="Score that a box must exceed to take part.")
    topk: Int = Field(-1, description="How many of the best compete; negative: all; 0: data stays as it is.")
    coord_start: Int = Field(2, description="Position of the first coordinate in a row.")
    score_index: Int = Field(1, description="Position of the score in a row.")
    id_index: Int = Field(-1, description="Position of the class in a row; negative: boxes have none.")
    background_id: Int = Field(-1, description="A class that is left out.")
    force_suppress: Bool = Field(False, description="Boxes of different classes compete too.")
    in_format: BoxFormat = Field("corner", description="Format of data's boxes.")
    out_format: BoxFormat = Field("corner", description="Format of the output's boxes.")


op = register(
    "_contrib_box_nms",
    BoxNmsParams,
    outputs=("output", Slot("temp", visible=False)),
    aliases=("_contrib_box_non_maximum_suppression",),
)
backward = register_backward("_backward_contrib_box_nms", BoxNmsParams, outputs=("data",))


@op.infer_shape
def _(p: BoxNmsParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is None:
        return
    if len(shape) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(shape)}", side="input", index=0)
    if shape[-1] >= 0:
        _check_columns(p, shape[-1])
    outs.merge(1, (*shape[:-1], 1))


def _check_columns(p: BoxNmsParams, width: int) -> None:
    """Scores, classes and coordinates are in the row, and none in another's place."""
    named = {"score_index": p.score_index, "coord_start": p.coord_start}
    if p.id_index >= 0:
        named["id_index"] = p.id_index
    for name, position in named.items():
        last = width - 4 if name == "coord_start" else width - 1
        if not 0 <= position <= last:
            raise ShapeError(f"{name}: expected between 0 and {last} for rows of {width} numbers, got {position}")
    taken = [name for name in named if 0 <= named[name] - p.coord_start < 4 and name != "coord_start"]
    if taken or (p.id_index == p.score_index):
        got = ", ".join(f"{name} {position}" for name, position in named.items())
        raise ShapeError(f"expected the score, the class and the four coordinates side by side, got {got}")


@op.infer_type
def _(p: BoxNmsParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins.only(0, *FLOATS)))
    outs.merge(1, "int64")


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_contrib_box_nms", node, [ograds[0], node.entries()[1]])


@op.compute(allocates="sorting, and pairs of boxes block by block")
def _(p: BoxNmsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,) = inputs
    xp = ctx.xp
    if not data.size:
        return
    rows = data.reshape(-1, *data.shape[-2:])
    if p.topk:
        order, stays = _choose(p, xp, rows)
    else:
        order = xp.zeros(rows.shape[:2], dtype=xp.int64) + xp.arange(rows.shape[1])
        stays = order >= 0
    if outputs[0] is not None:
        boxes = xp.take_along_axis(rows, order[:, :, None], axis=1)
        if p.topk and p.in_format != p.out_format:
            _convert(p, xp, boxes)
        outputs[0][...] = xp.where(stays[:, :, None], boxes, -1).reshape(data.shape)
    if outputs[1] is not None:
        batch, count = rows.shape[:2]
        order += xp.arange(batch)[:, None] * count
        outputs[1][...] = xp.where(stays, order, -1).reshape(outputs[1].shape)


def _choose(p: BoxNmsParams, xp: Any, rows: Array) -> tuple[Array, Array]:
    """Return the positions of the boxes in the order of the output, and a mask of those that stay."""
    scores = rows[:, :, p.score_index]
    valid = scores > p.valid_thresh
    if p.id_index >= 0:
        valid &= rows[:, :, p.id_index] != p.background_id
    order = xp.argsort(xp.where(valid, -scores, xp.inf), axis=1, kind="stable")
    alive = xp.take_along_axis(valid, order, axis=1)
    if p.topk > 0:
        alive[:, p.topk :] = False
    sorted_rows = xp.take_along_axis(rows, order[:, :, None], axis=1)
    box = [sorted_rows[:, :, p.coord_start + i].copy() for i in range(4)]
    if p.in_format == "center":
        box = to_corner(box)
    by_class = p.id_index >= 0 and not p.force_suppress
    classes = [sorted_rows[:, :, p.id_index].copy()] if by_class else []

    def hits(better: Any, worse: Any) -> Array:
        over = overlap(xp, better, worse) > p.overlap_thresh
        if by_class:
            over &= better[5] == worse[5]
        return over

    suppress(xp, [*box, areas(xp, box), *classes], alive, hits)
    first = xp.argsort(~alive, axis=1, kind="stable")
    return xp.take_along_axis(order, first, axis=1), xp.take_along_axis(alive, first, axis=1)


def _convert(p: BoxNmsParams, xp: Any, rows: Array) -> None:
    """Bring coordinates into the other format; boxes whose first one is negative stay as they are, as in MXNet."""
    box = [rows[:, :, p.coord_start + i].copy() for i in range(4)]
    other = to_center(box) if p.out_format == "center" else to_corner(box)
    for i, plane in enumerate(other):
        rows[:, :, p.coord_start + i] = xp.where(box[0] < 0, box[i], plane)


@backward.compute(allocates="positions of the rows that stayed")
def _(p: BoxNmsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, origin = inputs
    (gdata,) = outputs
    if gdata is None:
        return
    stayed = origin.reshape(-1)
    at = ctx.xp.nonzero(stayed >= 0)[0]
    rows = ctx.xp.zeros((stayed.size, gdata.shape[-1]), gdata.dtype)
    rows[stayed[at]] = gout.reshape(rows.shape)[at]
    gdata[...] = rows.reshape(gdata.shape)
