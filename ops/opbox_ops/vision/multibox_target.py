"""_contrib_MultiBoxTarget: what anchors are to predict, from the true boxes (Liu et al., 2016, SSD).

anchor (1, n, 4) in corners; label (batch, m, 5 or more): class and corners, up to the first row of class -1;
cls_pred (batch, classes, n). Outputs: loc_target and loc_mask (batch, 4 n), cls_target (batch, n).

    1. Each true box takes the anchor that overlaps it most, the best pair first.
    2. Any other anchor takes the true box that overlaps it most, if by more than overlap_threshold (unless that is 0).
    3. Matched anchors: cls_target = class + 1, loc_mask = 1, and with the true box t and the anchor a
       loc_target = ((tx - ax) / aw, (ty - ay) / ah, log(tw / aw), log(th / ah)) / variances.
    4. The others are background, 0. With negative_mining_ratio only that many for each matched one: those of the lowest
       predicted probability of the background, among the ones overlapping less than negative_mining_thresh; what
       remains is ignore_label. So is everything in an image without true boxes.

The gradient is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float, show_shape
from ..params import Field, Float, FloatTuple, Int, Params
from ..pausing import pause
from ..registry import register
from .geometry import areas, overlap, planes, to_center, write_overlap
from .matching import match

MIN_OVERLAP = 1e-6
"""Minimum overlap: less counts as none."""
TOGETHER = 1 << 20
"""Pairs of an anchor and a true box whose overlap is worked out together on the CPU: some 20 ms."""


class MultiBoxTargetParams(Params):
    overlap_threshold: Float = Field(0.5, description="Overlap above which an anchor is matched; 0: best pairs only.")
    ignore_label: Float = Field(-1.0, description="cls_target of anchors that take no part.")
    negative_mining_ratio: Float = Field(-1.0, description="Background anchors for each matched one; -1: all of them.")
    negative_mining_thresh: Float = Field(0.5, description="Overlap below which an anchor may be background.")
    minimum_negative_samples: Int = Field(0, description="Has no effect, as in MXNet on a CPU.")
    variances: FloatTuple = Field((0.1, 0.1, 0.2, 0.2), description="What the four parts of loc_target are divided by.")


op = register(
    "_contrib_MultiBoxTarget",
    MultiBoxTargetParams,
    inputs=("anchor", "label", "cls_pred"),
    outputs=("loc_target", "loc_mask", "cls_target"),
)
op.set_attr("FGradient", grad_zero)
op.infer_type(all_same_float)


@op.infer_shape
def _(p: MultiBoxTargetParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.variances) != 4:
        message = f"expected four numbers, got {p.variances}"
        raise ParamError(f"_contrib_MultiBoxTarget: parameter 'variances': {message}")
    label = ins.rank(1, 3)
    if label is not None and 0 <= label[2] < 5:
        message = f"expected rows of a class and four coordinates or more, got {show_shape(label)}"
        raise ShapeError(message, side="input", index=1)
    batch, count = -1, -1
    for _ in range(2):
        anchor, pred = ins.merge(0, (1, count, 4)), ins.merge(2, (batch, -1, count))
        label = ins.merge(1, (batch, -1, -1))
        assert anchor is not None
        assert pred is not None
        assert label is not None
        count = max(anchor[1], pred[2])
        batch = max(pred[0], label[0])
        for i in (0, 1):
            wide = outs.merge(i, (batch, 4 * count if count >= 0 else -1))
            assert wide is not None
            batch = wide[0]
            if wide[1] >= 0:
                count = wide[1] // 4
        narrow = outs.merge(2, (batch, count))
        assert narrow is not None
        batch, count = narrow


@op.compute(allocates="overlaps of all anchors and true boxes")
def _(p: MultiBoxTargetParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    anchor, label, pred = inputs
    if not (anchor.size and label.size):
        for out, value in zip(outputs, (0, 0, p.ignore_label), strict=True):
            if out is not None:
                out[...] = value
        return
    batch = len(label)
    step = max(1, TOGETHER // (anchor.shape[1] * label.shape[1])) if ctx.xp is np else batch
    for first in range(0, batch, step):
        pause()
        at = slice(first, first + step)
        parts = [None if out is None else out[at] for out in outputs]
        _assign(p, ctx.xp, anchor, label[at], pred[at], *parts)


def _overlaps(xp: Any, boxes: list[Array], truth: list[Array]) -> Array:
    """Return the overlap of each anchor with each true box (images, anchors, true boxes)."""
    a = [plane[:, :, None] for plane in (*boxes, areas(xp, boxes))]
    b = [plane[:, None, :] for plane in (*truth, areas(xp, truth))]
    (images, true), count = truth[0].shape, boxes[0].shape[1]
    if xp is not np or images * count * true <= TOGETHER:
        return overlap(xp, a, b)
    pairs = np.empty((images, count, true), truth[0].dtype)
    step = max(1, TOGETHER // (images * true))
    scratch = [np.empty((images, min(step, count), true), dtype) for dtype in (pairs.dtype, pairs.dtype, bool)]
    for first in range(0, count, step):
        pause()
        out = pairs[:, first : first + step]
        height, union, apart = (array[:, : out.shape[1]] for array in scratch)
        write_overlap(np, [plane[:, first : first + step] for plane in a], b, out, height, union, apart)
    return pairs


def _assign(
    p: MultiBoxTargetParams,
    xp: Any,
    anchor: Array,
    label: Array,
    pred: Array,
    loc_target: Array | None,
    loc_mask: Array | None,
    cls_target: Array | None,
) -> None:
    """Write the targets of some images."""
    real = xp.cumprod(label[:, :, 0] != -1, axis=1, dtype=xp.int64).astype(bool)
    boxes, truth = planes(anchor), planes(label[:, :, 1:5])
    pairs = _overlaps(xp, boxes, truth)
    pairs = xp.where(real[:, None, :], pairs, -1)
    # The closest true box of each anchor; for anchors that are the best of a true box, that one.
    chosen, nearest = match(xp, pairs, MIN_OVERLAP)[0], pairs.argmax(axis=2)
    best = xp.take_along_axis(pairs, nearest[:, :, None], axis=2)[:, :, 0]
    matched = chosen >= 0
    chosen = xp.where(matched, chosen, nearest)
    if p.overlap_threshold > 0:
        matched |= best > p.overlap_threshold
    if cls_target is not None:
        labels = xp.take_along_axis(label[:, :, 0], chosen, axis=1) + 1
        other = real[:, :1] & _background(p, xp, pred, best, matched)
        cls_target[...] = xp.where(matched, labels, xp.where(other, 0, p.ignore_label))
    if loc_mask is not None:
        loc_mask.reshape(*matched.shape, 4)[...] = matched[:, :, None]
    if loc_target is not None:
        target = loc_target.reshape(*matched.shape, 4)
        ax, ay, aw, ah = to_center(boxes)
        tx, ty, tw, th = to_center([xp.take_along_axis(plane, chosen, axis=1) for plane in truth])
        offsets = ((tx - ax) / aw, (ty - ay) / ah, xp.log(tw / aw), xp.log(th / ah))
        for i, offset in enumerate(offsets):
            target[..., i] = xp.where(matched, offset / p.variances[i], 0)


def _background(p: MultiBoxTargetParams, xp: Any, pred: Array, best: Array, matched: Array) -> Array:
    """Return a mask of the background anchors: all that are not matched, or the hardest of them."""
    if p.negative_mining_ratio <= 0:
        return ~matched
    positive = matched.sum(axis=1, keepdims=True)
    wanted = (positive * p.negative_mining_ratio).astype(xp.int64)
    wanted = xp.minimum(wanted, matched.shape[1] - positive)
    candidate = ~matched & (best < p.negative_mining_thresh)
    odds = xp.exp(pred - pred.max(axis=1, keepdims=True))
    background = odds[:, 0] / odds.sum(axis=1)
    order = xp.argsort(xp.where(candidate, background, xp.inf), axis=1, kind="stable")
    rank = xp.argsort(order, axis=1, kind="stable")
    return candidate & (rank < wanted)
