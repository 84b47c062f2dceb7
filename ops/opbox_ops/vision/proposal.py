"""_contrib_Proposal, _contrib_MultiProposal: regions that a region proposal network finds likely (Ren et al., 2015).

cls_prob (batch, 2 k, height, width): k probabilities of background, then k of an object; bbox_pred (batch, 4 k, height,
width); im_info (batch, 3): height, width and scale of the image. Outputs: rois (batch * rpn_post_nms_top_n, 5): image,
left, top, right, bottom; with output_score their scores (batch * rpn_post_nms_top_n, 1). Proposal takes one image.

Around each position are k = len(ratios) * len(scales) anchors, feature_stride apart. bbox_pred moves them (iou_loss: is
added to their corners), the image's edges cut them off; the rpn_pre_nms_top_n best compete: one that overlaps a better
one by more than threshold is dropped. The rpn_post_nms_top_n best are the rois, repeated from the first on where there
are fewer. Boxes smaller than rpn_min_size * scale are widened and have score -1, as have those beyond the image.

The gradient is zero.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float, show_shape
from ..params import Bool, Field, Float, FloatTuple, Int, Params
from ..pausing import pause
from ..registry import Slot, register, when
from .geometry import areas, overlap
from .suppress import suppress

MAX_REMEMBERED = 4096
"""Anchors of an image up to which they are kept: making them takes longer than a small call."""


TOGETHER = 1 << 18
"""Boxes of images that are worked on together on the CPU: some 50 ms."""


class ProposalParams(Params):
    rpn_pre_nms_top_n: Int = Field(6000, description="How many boxes compete; all when it is less than 1.")
    rpn_post_nms_top_n: Int = Field(300, description="How many regions are returned for an image.")
    threshold: Float = Field(0.7, description="Overlap above which the worse of two boxes is dropped.")
    rpn_min_size: Int = Field(16, description="Least width and height of a box, before the image was scaled.")
    scales: FloatTuple = Field((4.0, 8.0, 16.0, 32.0), description="Sizes of the anchors, in feature_stride.")
    ratios: FloatTuple = Field((0.5, 1.0, 2.0), description="Height to width of the anchors.")
    feature_stride: Int = Field(16, description="Distance of two positions, in the image's pixels.")
    output_score: Bool = Field(False, description="Return the scores too.")
    iou_loss: Bool = Field(False, description="bbox_pred is the distance of the corners.")


proposal, multi_proposal = (
    register(
        name,
        ProposalParams,
        inputs=("cls_prob", "bbox_pred", "im_info"),
        outputs=("output", Slot("score", visible=when("output_score"))),
        doc=doc,
    )
    for name, doc in (
        ("_contrib_Proposal", "Regions of an image that are likely to be objects."),
        ("_contrib_MultiProposal", "Regions of several images that are likely to be objects."),
    )
)


def _infer(p: ProposalParams, ins: ShapeList, outs: ShapeList) -> None:
    anchors = len(p.scales) * len(p.ratios)
    if not anchors or p.rpn_post_nms_top_n < 1 or p.feature_stride < 1:
        message = "expected at least one scale and ratio, and rpn_post_nms_top_n and feature_stride of at least 1"
        raise ParamError(f"{message}, got {p.scales}, {p.ratios}, {p.rpn_post_nms_top_n}, {p.feature_stride}")
    try:
        anchors_of(p.feature_stride, tuple(p.scales), tuple(p.ratios))
    except (ArithmeticError, ValueError):
        message = "expected positive ratios whose anchors have a finite size"
        raise ParamError(f"{message}, got ratios {p.ratios} with feature_stride {p.feature_stride}") from None
    for i in (0, 1):
        ins.rank(i, 4)
    ins.rank(2, 2)
    prob = ins.merge(0, (-1, 2 * anchors, -1, -1))
    assert prob is not None
    pred = ins.merge(1, (prob[0], 4 * anchors, *prob[2:]))
    assert pred is not None
    info = ins.merge(2, (pred[0], 3))
    assert info is not None
    batch = info[0]
    for k in range(len(outs)):
        rows = outs.merge(k, (batch * p.rpn_post_nms_top_n if batch >= 0 else -1, 1 if k else 5))
        assert rows is not None
        if batch < 0 <= rows[0]:
            batch = rows[0] // p.rpn_post_nms_top_n
    prob = ins.merge(0, (batch, 2 * anchors, *pred[2:]))
    ins.merge(1, (batch, 4 * anchors, -1, -1))
    ins.merge(2, (batch, 3))


@multi_proposal.infer_shape
def _(p: ProposalParams, ins: ShapeList, outs: ShapeList) -> None:
    _infer(p, ins, outs)


@proposal.infer_shape
def _(p: ProposalParams, ins: ShapeList, outs: ShapeList) -> None:
    for i in range(3):
        shape = ins[i]
        if shape and shape[0] not in (-1, 1):
            message = f"expected one image (MultiProposal takes several), got {show_shape(shape)}"
            raise ShapeError(message, side="input", index=i)
    ins.merge(0, (1, -1, -1, -1))
    _infer(p, ins, outs)


def anchors_of(
    side: int, scales: tuple[float, ...], ratios: tuple[float, ...]
) -> list[tuple[float, float, float, float]]:
    """The corners of the anchors around the first position, ratios first; `side` is feature_stride."""
    anchors = []
    for ratio in ratios:
        width = math.floor(math.sqrt(math.floor(side * side / ratio)) + 0.5)
        for scale in scales:
            half_width = 0.5 * (width * scale - 1)
            half_height = 0.5 * (math.floor(width * ratio + 0.5) * scale - 1)
            middle = 0.5 * (side - 1)
            anchors.append((middle - half_width, middle - half_height, middle + half_width, middle + half_height))
    return anchors


def _anchors(xp: Any, corners: tuple[Any, ...], height: int, width: int, dtype: Any) -> tuple[Array, ...]:
    """First and last corner, size and middle of all anchors (x and y, 1, height, width, anchor).

    Args:
        corners: the arguments of `anchors_of`.
    """
    anchors = xp.asarray(anchors_of(*corners), dtype=dtype).T.reshape(2, 2, 1, 1, -1)
    x, y = xp.arange(width)[None, :] * corners[0], xp.arange(height)[:, None] * corners[0]
    shift = xp.stack(xp.broadcast_arrays(x, y))[..., None]
    first, last = (anchors[0] + shift)[:, None], (anchors[1] + shift)[:, None]
    size = last - first + 1
    return first, last, size, first + 0.5 * (size - 1)


@lru_cache(maxsize=64)
def _kept_anchors(corners: tuple[Any, ...], height: int, width: int, dtype: Any) -> tuple[Array, ...]:
    anchors = _anchors(np, corners, height, width, dtype)
    for array in anchors:
        array.flags.writeable = False
    return anchors


def _boxes(p: ProposalParams, xp: Any, prob: Array, pred: Array, info: Array) -> tuple[Array, Array]:
    """Corners (4, batch, boxes) and scores (batch, height, width, anchor) of all boxes."""
    batch, _, height, width = pred.shape
    count = len(p.scales) * len(p.ratios)
    corners = (p.feature_stride, tuple(p.scales), tuple(p.ratios))
    small_image = xp is np and count * height * width <= MAX_REMEMBERED
    anchors = _kept_anchors if small_image else lambda *call: _anchors(xp, *call)
    first, last, size, middle = anchors(corners, height, width, pred.dtype)
    moves = pred.reshape(batch, count, 2, 2, height, width).transpose(2, 3, 0, 4, 5, 1)
    boxes = xp.empty((2, 2, batch, height, width, count), first.dtype)
    if p.iou_loss:
        xp.add(first, moves[0], out=boxes[0])
        xp.add(last, moves[1], out=boxes[1])
    else:
        at = moves[0] * size + middle
        reach = 0.5 * (xp.exp(moves[1]) * size - 1)
        xp.subtract(at, reach, out=boxes[0])
        xp.add(at, reach, out=boxes[1])
    edge = (info[:, 1::-1] - 1).T[:, :, None, None, None]
    xp.minimum(boxes, edge, out=boxes)
    xp.maximum(boxes, 0, out=boxes)
    real = (info[:, :2] / p.feature_stride).astype(xp.int64)[:, :, None, None, None]
    beyond = (xp.arange(height)[:, None, None] >= real[:, 0]) | (xp.arange(width)[:, None] >= real[:, 1])
    least = (p.rpn_min_size * info[:, 2])[:, None, None, None]
    extent = boxes[1] - boxes[0] + 1
    small = (extent[0] < least) | (extent[1] < least)
    widened = small * (least / 2)
    boxes[0] -= widened
    boxes[1] += widened
    score = xp.where(beyond | small, -1, prob[:, count:].transpose(0, 2, 3, 1))
    return boxes.reshape(4, batch, -1), score


@multi_proposal.compute(allocates="boxes, sorting, and pairs of boxes block by block")
@proposal.compute(allocates="boxes, sorting, and pairs of boxes block by block")
def _(p: ProposalParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    batch, channels, height, width = inputs[0].shape
    if not inputs[0].size:
        for out in outputs:
            if out is not None:
                out[...] = 0
        return
    rois = None if outputs[0] is None else outputs[0].reshape(batch, -1, 5)
    scores = None if outputs[1] is None else outputs[1].reshape(batch, -1)
    step = max(1, TOGETHER // (channels // 2 * height * width)) if ctx.xp is np else batch
    for first in range(0, batch, step):
        pause()
        at = slice(first, first + step)
        parts = [None if out is None else out[at] for out in (rois, scores)]
        _propose(p, ctx.xp, [array[at] for array in inputs], first, *parts)


def _propose(p: ProposalParams, xp: Any, inputs: Arrays, first: int, rois: Array | None, scores: Array | None) -> None:
    """Write the regions (images, n, 5) and scores (images, n) of some images, from the number `first` on."""
    prob, pred, info = (array.astype(accumulation_type(array.dtype), copy=False) for array in inputs)
    batch = prob.shape[0]
    boxes, score = _boxes(p, xp, prob, pred, info)
    score = score.reshape(batch, -1)
    order = xp.argsort(-score, axis=1, kind="stable")
    if p.rpn_pre_nms_top_n > 0:
        order = order[:, : p.rpn_pre_nms_top_n]
    images = xp.arange(batch)[:, None]
    box = list(boxes[:, images, order])
    alive = xp.ones(order.shape, dtype=bool)
    most = min(p.rpn_post_nms_top_n, order.shape[1])

    def hits(better: Any, worse: Any) -> Array:
        return overlap(xp, better, worse, 1) > p.threshold

    suppress(xp, [*box, areas(xp, box, 1)], alive, hits, most)
    count = xp.minimum(alive.sum(axis=1, keepdims=True), most)
    number = xp.arange(p.rpn_post_nms_top_n) % xp.maximum(count, 1)
    best = order[images, xp.argsort(~alive, axis=1, kind="stable")[images, number]]
    if rois is not None:
        rois[:, :, 0] = images + first
        rois[:, :, 1:] = boxes[:, images, best].transpose(1, 2, 0)
    if scores is not None:
        scores[...] = score[images, best]


for _op in (proposal, multi_proposal):
    _op.set_attr("FGradient", grad_zero)
    _op.infer_type(all_same_float)
