"""_contrib_ROIAlign, _contrib_RROIAlign: regions pooled to one size, by bilinear samples (He et al., 2017).

data (batch, channel, height, width); rois (n, 5): image, left, top, right, bottom, times spatial_scale on data;
out (n, channel, *pooled_size). A region has pooled_size bins; each is the mean of a grid of sample_ratio by
sample_ratio samples, with sample_ratio < 1 about one a pixel. A sample more than a pixel outside of data counts as 0.

ROIAlign: regions are at least one pixel large; aligned takes half a pixel off their position instead. With
    position_sensitive data has c * prod(pooled_size) channels, bin (i, j) reads its own: out (n, c, *pooled_size).
RROIAlign: rois (n, 6): image, centre x, y, width, height, degrees counterclockwise.

gdata = gout spread over the samples (RROIAlign has no gradient, as in MXNet); rois' gradient is zero. A region whose
image is not in data is 0.
"""

from __future__ import annotations

import math
from typing import Any

from opbox_protocol.errors import LimitError, ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, Params, Shape
from ..registry import register, register_backward
from .regions import FEW, FewSamples, Samples, bilinear, check_size, images_of, infer_regions, near

MAX_SAMPLES = 1 << 27
"""The most samples that the regions of a call may have together."""
FEW_WEIGHTS = 1 << 22
"""Weights of samples along an axis, up to which the regions' matrix is made of dense ones."""


class RotatedParams(Params):
    pooled_size: Shape = Field(description="Height and width of the output.")
    spatial_scale: Float = Field(description="Size of data's image over that of the regions'.")
    sampling_ratio: Int = Field(-1, description="Samples of a bin along an axis; less than 1: about one a pixel.")


class ROIAlignParams(Params):
    pooled_size: Shape = Field(description="Height and width of the output.")
    spatial_scale: Float = Field(description="Size of data's image over that of the regions'.")
    sample_ratio: Int = Field(-1, description="Samples of a bin along an axis; less than 1: about one a pixel.")
    position_sensitive: Bool = Field(False, description="Each bin has channels of its own.")
    aligned: Bool = Field(False, description="Pixels are at their centres: move regions by half a pixel.")


align = register(
    "_contrib_ROIAlign", ROIAlignParams, inputs=("data", "rois"), doc="Regions pooled by bilinear samples."
)
rotated = register(
    "_contrib_RROIAlign", RotatedParams, inputs=("data", "rois"), doc="Rotated regions pooled by bilinear samples."
)
backward = register_backward("_backward_ROIAlign", ROIAlignParams, outputs=("data", "rois"))
for _op in (align, rotated):
    _op.infer_type(all_same_float)


@align.infer_shape
def _(p: ROIAlignParams, ins: ShapeList, outs: ShapeList) -> None:
    pooled = check_size(p.pooled_size)
    bins = pooled[0] * pooled[1] if p.position_sensitive else 1
    channels = ins[0][1] if ins[0] is not None and len(ins[0]) == 4 else -1
    if channels % bins and channels >= 0:
        message = f"expected a multiple of {bins} channels (position_sensitive), got {show_shape(ins[0])}"
        raise ShapeError(message, side="input", index=0)
    infer_regions(ins, outs, channels // bins if channels >= 0 else -1, pooled, 5)
    out = outs[0]
    ins.merge(0, (-1, out[1] * bins if out is not None and out[1] >= 0 else -1, -1, -1))


@rotated.infer_shape
def _(p: RotatedParams, ins: ShapeList, outs: ShapeList) -> None:
    channels = ins[0][1] if ins[0] is not None and len(ins[0]) == 4 else -1
    infer_regions(ins, outs, channels, check_size(p.pooled_size), 6)
    ins.merge(0, (-1, outs[0][1] if outs[0] is not None else -1, -1, -1))


@align.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_ROIAlign", node, [ograds[0], node.inputs[1]])


def _grid(xp: Any, start: Array, extent: Array, bins: tuple[int, ...], ratio: int) -> tuple[Array, Array, Array]:
    """Positions of the samples along axes with so many bins each.

    Args:
        xp: numpy or cupy.
        start, extent: where regions begin and how long they are (n, axes).
        bins: of each axis.
        ratio: how many samples a bin has; less than 1: about one a pixel.

    Returns:
        The positions (n, axes, most bins, most samples), which of the samples exist (n, axes, 1, most samples), and
        how many a bin has (n, axes).
    """
    step = extent / xp.asarray(bins, dtype=extent.dtype)
    count = xp.full(start.shape, ratio) if ratio > 0 else xp.ceil(step).astype(xp.int64)
    most = ratio if ratio > 0 else max(int(count.max()), 0) if count.size else 0
    _check_samples(most * start.size * max(bins))
    sample, number = xp.arange(most), count[..., None, None]
    parts = xp.arange(max(bins))[:, None] + (sample + 0.5) / xp.maximum(number, 1)
    at = (start[..., None, None] + parts * step[..., None, None]).astype(start.dtype)
    return at, sample < number, count


def _check_samples(count: int) -> None:
    """Their number follows from values, so that no shape has bounded it."""
    if count > MAX_SAMPLES:
        raise LimitError(f"rois: expected regions of at most {MAX_SAMPLES:,} samples in all, got {count:,}")


def _straight(p: ROIAlignParams, xp: Any, rois: Array) -> tuple[Array, Array]:
    """Beginnings and lengths (n, 2) of regions whose sides are parallel to the image's, along x and y."""
    place = rois[:, 1:5] * rois.dtype.type(p.spatial_scale)
    start = place[:, :2]
    extent = place[:, 2:] - start
    return (start - 0.5, extent) if p.aligned else (start, xp.maximum(extent, 1))


def _few_samples(
    p: ROIAlignParams, xp: Any, rois: Array, data: tuple[int, ...], grid: tuple[Array, Array, Array]
) -> FewSamples:
    """The matrix of a few regions: a bin's weights are a product of those along y and along x, as its samples are."""
    batch, _, height, width = data
    (bins_y, bins_x), last = p.pooled_size, xp.asarray([[width - 1], [height - 1]], dtype=rois.dtype)[..., None]
    at, real, count = grid
    weights = near(xp, at, last, max(width, height)) * (real & (at >= -1) & (at <= last + 1))[..., None]
    image, nowhere = images_of(xp, rois, batch)
    share = ~nowhere[:, None] / xp.maximum(count, 1).astype(rois.dtype)
    along = weights.sum(axis=3) * share[..., None, None]
    matrix = along[:, 1, :bins_y, None, :height, None] * along[:, 0, None, :bins_x, None, :width]
    return FewSamples(xp, image, matrix.reshape(len(rois), bins_y * bins_x, height * width), batch)


def _samples(p: Any, xp: Any, rois: Array, data: tuple[int, ...]) -> Samples | FewSamples:
    """The matrix of the regions: a row for each region and bin, a column for each pixel (and bin)."""
    batch, _, height, width = data
    rois = rois.astype(accumulation_type(rois.dtype), copy=False)
    bins_y, bins_x = p.pooled_size
    bins = bins_y * bins_x
    spread = bins if getattr(p, "position_sensitive", False) else 1
    few = spread == 1 and 0 < batch * rois.shape[0] * bins * height * width <= FEW
    straight = isinstance(p, ROIAlignParams)
    if straight:
        start, extent = _straight(p, xp, rois)
        ratio = p.sample_ratio
    else:
        place = rois[:, 1:5] * rois.dtype.type(p.spatial_scale)
        extent = xp.maximum(place[:, 2:], 1)
        start, ratio = -extent / 2, p.sampling_ratio
    image, nowhere = images_of(xp, rois, batch)
    at, exists, count = grid = _grid(xp, start, extent, (bins_x, bins_y), ratio)
    most_x, most_y = xp.maximum(count.max(axis=0), 0).tolist() if count.size else (0, 0)
    samples = len(rois) * bins * most_x * most_y
    _check_samples(samples)
    few = few and (at.size if straight else samples) * max(height, width) <= FEW_WEIGHTS
    if few and straight:
        return _few_samples(p, xp, rois, data, grid)
    x, real_x = at[:, 0, :bins_x, :most_x], exists[:, 0, :, :most_x]
    y, real_y = at[:, 1, :bins_y, :most_y], exists[:, 1, :, :most_y]
    # (n, bin row, bin column, sample row, sample column)
    x, real_x = x[:, None, :, None, :], real_x[:, None, :, None, :]
    y, real_y = y[:, :, None, :, None], real_y[:, :, None, :, None]
    if not straight:
        angle = (rois[:, 5] * (math.pi / 180))[:, None, None, None, None]
        cos, sin = xp.cos(angle), xp.sin(angle)
        center = place[:, :2, None, None, None, None]
        x, y = x * cos + y * sin + center[:, 0], y * cos - x * sin + center[:, 1]
    real = real_x & real_y & ~nowhere[:, None, None, None, None]
    real = real & (y >= -1) & (y <= height) & (x >= -1) & (x <= width)
    share = 1 / xp.maximum(count.prod(axis=1), 1).astype(rois.dtype)
    if few:
        regions = (rois.shape[0], bins, real.shape[3] * real.shape[4])
        weights = real.reshape(regions) * share[:, None, None]
        last = xp.asarray((height - 1, width - 1), dtype=rois.dtype)[:, None, None, None]
        near_y, near_x = near(xp, xp.stack([y, x]).reshape(2, *regions), last, max(height, width))
        matrix = (near_y[..., :height] * weights[..., None]).swapaxes(2, 3) @ near_x[..., :width]
        return FewSamples(xp, image, matrix.reshape(*regions[:2], height * width), batch)
    region, row, column, *_ = at = xp.nonzero(real)
    x, y = xp.broadcast_to(x, real.shape)[at], xp.broadcast_to(y, real.shape)[at]
    bin_ = row * bins_x + column
    share = share[region]
    corners = bilinear(xp, y, x, height, width)
    pixels = [(image[region] * (height * width) + pixel) * spread + bin_ * (spread > 1) for pixel, *_ in corners]
    return Samples(
        xp,
        (rois.shape[0] * bins, batch * height * width * spread),
        xp.tile(region * bins + bin_, 4),
        xp.concatenate(pixels),
        xp.concatenate([weight * share for _, weight, *_ in corners]),
    )


@align.compute(allocates="samples of the regions, data with its channels last")
@rotated.compute(allocates="samples of the regions, data with its channels last")
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, rois = inputs
    (out,) = outputs
    if out is None or not out.size:
        return
    samples = _samples(p, ctx.xp, rois, data.shape)
    channels = out.shape[1]
    pixels = data.reshape(data.shape[0], channels, data.shape[1] // channels, *data.shape[2:]).transpose(0, 3, 4, 2, 1)
    pooled = samples.gather(pixels.reshape(-1, channels).astype(accumulation_type(data.dtype), copy=False))
    out[...] = pooled.reshape(-1, *p.pooled_size, channels).transpose(0, 3, 1, 2)


@backward.compute(allocates="samples of the regions, gradients with their channels last")
def _(p: ROIAlignParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, rois = inputs
    gdata, grois = outputs
    if grois is not None:
        grois[...] = 0
    if gdata is None or not gdata.size:
        return
    batch, all_channels, height, width = gdata.shape
    channels = gout.shape[1]
    samples = _samples(p, ctx.xp, rois, gdata.shape)
    gradient = samples.spread(
        gout.transpose(0, 2, 3, 1).reshape(-1, channels).astype(accumulation_type(gout.dtype), copy=False)
    )
    gradient = gradient.reshape(batch, height, width, all_channels // channels, channels)
    gdata[...] = gradient.transpose(0, 4, 3, 1, 2).reshape(gdata.shape)
