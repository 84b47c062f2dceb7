"""_contrib_MultiBoxDetection: boxes with class and score from what anchors predict (Liu et al., 2016, SSD).

cls_prob (batch, classes, n), class 0 the background; loc_pred (batch, 4 n), offsets from anchor (1, n, 4) in corners;
out (batch, n, 6): class less 1, score, corners.

An anchor's class is its most probable one but the background; those with a probability of at least threshold come
first, by descending score. One that overlaps a better one of its class by at least nms_threshold (force_suppress: of
any class) becomes class -1 in its place, as do all after the first nms_topk. With nms_threshold not between 0 and 1
they stay in the order of the anchors, all of them. The remaining rows are -1.

The gradient is zero.
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float
from ..params import Bool, Field, Float, FloatTuple, Int, Params
from ..registry import register
from .geometry import areas, overlap, planes, to_center
from .suppress import suppress


class MultiBoxDetectionParams(Params):
    clip: Bool = Field(True, description="Cut the boxes off at the image's edges.")
    threshold: Float = Field(0.01, description="Least probability of a detection.")
    background_id: Int = Field(0, description="Has no effect, as in MXNet on a CPU: the background is class 0.")
    nms_threshold: Float = Field(0.5, description="Overlap from which the worse of two boxes is dropped.")
    force_suppress: Bool = Field(False, description="Boxes of different classes compete too.")
    variances: FloatTuple = Field((0.1, 0.1, 0.2, 0.2), description="Factors on the four parts of loc_pred.")
    nms_topk: Int = Field(-1, description="How many of the best are kept; all of them when it is less than 1.")


op = register(
    "_contrib_MultiBoxDetection",
    MultiBoxDetectionParams,
    inputs=("cls_prob", "loc_pred", "anchor"),
    outputs=("output",),
)
op.set_attr("FGradient", grad_zero)
op.infer_type(all_same_float)


@op.infer_shape
def _(p: MultiBoxDetectionParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.variances) != 4:
        message = f"expected four numbers, got {p.variances}"
        raise ParamError(f"_contrib_MultiBoxDetection: parameter 'variances': {message}")
    batch, count = -1, -1
    for _ in range(2):
        prob, anchor = ins.merge(0, (batch, -1, count)), ins.merge(2, (1, count, 4))
        assert prob is not None
        assert anchor is not None
        batch, count = prob[0], max(prob[2], anchor[1])
        loc = ins.merge(1, (batch, 4 * count if count >= 0 else -1))
        assert loc is not None
        out = outs.merge(0, (loc[0], loc[1] // 4 if loc[1] >= 0 else count, 6))
        assert out is not None
        batch, count = out[:2]


@op.compute(allocates="decoding and sorting, and pairs of boxes block by block")
def _(p: MultiBoxDetectionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    prob, loc, anchor = inputs
    (out,) = outputs
    if out is None:
        return
    xp = ctx.xp
    out[...] = -1
    if prob.shape[1] < 2 or not out.size:
        return
    label, score = prob[:, 1:].argmax(axis=1), prob[:, 1:].max(axis=1)
    valid = (score >= p.threshold) & (score > -1)
    boxes = _decode(p, xp, loc.reshape(*score.shape, 4), anchor)
    rows = xp.stack([label.astype(out.dtype), score, *boxes], axis=2)
    first = xp.argsort(~valid, axis=1, kind="stable")
    images = xp.arange(len(rows))[:, None]
    rows, valid = rows[images, first], valid[images, first]
    if 0 < p.nms_threshold <= 1:
        order = xp.argsort(xp.where(valid, -rows[:, :, 1], xp.inf), axis=1, kind="stable")
        most = p.nms_topk if p.nms_topk > 0 else rows.shape[1]
        # What is beyond nms_topk keeps the place that it had before sorting, as in MXNet.
        rows[:, :most] = rows[images, order[:, :most]]
        stays = valid.copy()
        stays[:, most:] = False
        _suppress(p, xp, rows, stays)
        rows[:, :, 0] = xp.where(stays, rows[:, :, 0], -1)
    out[...] = xp.where(valid[:, :, None], rows, -1)


def _decode(p: MultiBoxDetectionParams, xp: Any, loc: Array, anchor: Array) -> list[Array]:
    """Planes of the boxes' corners."""
    x, y, width, height = to_center(planes(anchor))
    moved_x = loc[..., 0] * p.variances[0] * width + x
    moved_y = loc[..., 1] * p.variances[1] * height + y
    half_width = xp.exp(loc[..., 2] * p.variances[2]) * width / 2
    half_height = xp.exp(loc[..., 3] * p.variances[3]) * height / 2
    corners = [moved_x - half_width, moved_y - half_height, moved_x + half_width, moved_y + half_height]
    return [xp.minimum(xp.maximum(corner, 0), 1) for corner in corners] if p.clip else corners


def _suppress(p: MultiBoxDetectionParams, xp: Any, rows: Array, stays: Array) -> None:
    box = planes(rows[:, :, 2:])

    def hits(better: Any, worse: Any) -> Array:
        over = overlap(xp, better, worse) >= p.nms_threshold
        if not p.force_suppress:
            over &= better[5] == worse[5]
        return over

    suppress(xp, [*box, areas(xp, box), rows[:, :, 0].copy()], stays, hits)
