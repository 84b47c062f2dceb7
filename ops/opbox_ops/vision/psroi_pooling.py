"""_contrib_PSROIPooling: regions pooled by the mean of each bin, which has its own channels (R-FCN: Dai et al., 2016).

data (batch, output_dim * group_size^2, height, width); rois (n, 5): image, left, top, right, bottom, inclusive, times
spatial_scale on data; out (n, output_dim, pooled_size, pooled_size). group_size 0 is pooled_size.

    out[n, c, i, j] = mean of data[image, (c group_size + gi) group_size + gj] over the pixels that bin (i, j) touches
    gi = floor(i group_size / pooled_size)        gdata = gout / pixels, on each of them

Bins are summed from a table of the sums of all rectangles from the first pixel on, in double precision; small images
are multiplied with a matrix. An empty bin, and a region whose image is not in data, is 0. rois' gradient is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Field, Float, NonNegativeInt, Params, PositiveInt
from ..registry import register, register_backward
from .few_bins import FewBins, bin_tables, few
from .regions import Samples, images_of, infer_regions


class PSROIPoolingParams(Params):
    spatial_scale: Float = Field(description="Size of data's image over that of the regions'.")
    output_dim: PositiveInt = Field(description="Channels of the output.")
    pooled_size: PositiveInt = Field(description="Height and width of the output.")
    group_size: NonNegativeInt = Field(0, description="Groups of channels along an axis; 0: pooled_size.")


op = register("_contrib_PSROIPooling", PSROIPoolingParams, inputs=("data", "rois"))
op.infer_type(all_same_float)
backward = register_backward("_backward_PSROIPooling", PSROIPoolingParams, outputs=("data", "rois"))


@op.infer_shape
def _(p: PSROIPoolingParams, ins: ShapeList, outs: ShapeList) -> None:
    group = p.group_size or p.pooled_size
    infer_regions(ins, outs, p.output_dim, (p.pooled_size, p.pooled_size), 5)
    ins.merge(0, (-1, p.output_dim * group * group, -1, -1))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_PSROIPooling", node, [ograds[0], node.inputs[1]])


def round_half_up(xp: Any, x: Array) -> Array:
    """C's round: halves away from zero."""
    return xp.trunc(x + xp.copysign(x.dtype.type(0.5), x))


def _edges(xp: Any, p: PSROIPoolingParams, first: Array, last: Array, size: int) -> tuple[Array, Array]:
    """Where each bin begins and ends along an axis (n, pooled_size), from the region's first and last pixel."""
    number = first.dtype.type
    start = round_half_up(xp, first) * number(p.spatial_scale)
    end = (round_half_up(xp, last) + 1) * number(p.spatial_scale)
    step = (xp.maximum(end - start, number(0.1)) / p.pooled_size)[:, None]
    bins = xp.arange(p.pooled_size).astype(first.dtype)
    begin = xp.floor(bins * step + start[:, None])
    stop = xp.ceil((bins + 1) * step + start[:, None])
    return xp.clip(begin, 0, size).astype(xp.int64), xp.clip(stop, 0, size).astype(xp.int64)


def _corners(p: PSROIPoolingParams, xp: Any, rois: Array, data: tuple[int, ...]) -> Samples:
    """A row for each region and bin: its mean from four cells of the table (batch, height + 1, width + 1, group)."""
    batch, _, height, width = data
    rois = rois.astype(accumulation_type(rois.dtype), copy=False)
    group = p.group_size or p.pooled_size
    image, nowhere = images_of(xp, rois, batch)
    left, right = _edges(xp, p, rois[:, 1], rois[:, 3], width)
    top, bottom = _edges(xp, p, rois[:, 2], rois[:, 4], height)
    area = xp.maximum(bottom - top, 0)[:, :, None] * xp.maximum(right - left, 0)[:, None, :]
    area[nowhere] = 0
    weight = xp.where(area > 0, 1 / xp.maximum(area, 1), 0).reshape(-1)
    of_bin = xp.arange(p.pooled_size) * group // p.pooled_size
    channel = of_bin[:, None] * group + of_bin[None]
    cells = [
        (((image[:, None, None] * (height + 1) + y[:, :, None]) * (width + 1) + x[:, None, :]) * group**2 + channel)
        for y in (top, bottom)
        for x in (left, right)
    ]
    full = xp.nonzero(weight)[0]
    weight = weight[full]
    return Samples(
        xp,
        (area.size, batch * (height + 1) * (width + 1) * group**2),
        xp.tile(full, 4),
        xp.concatenate([cell.reshape(-1)[full] for cell in cells]),
        xp.concatenate([weight, -weight, -weight, weight]),
    )


def _few_means(p: PSROIPoolingParams, rois: Array, data: tuple[int, ...]) -> tuple[FewBins, Array]:
    """The same means for few numbers, and their matrix."""
    rois = rois.astype(accumulation_type(rois.dtype), copy=False)
    tables = bin_tables(p.pooled_size, p.group_size or p.pooled_size, data[2:], rois.dtype)
    edges = round_half_up(np, rois[:, 1:])
    edges[:, 2:] += 1
    edges *= p.spatial_scale
    start = edges[:, :2]
    step = (np.maximum(edges[:, 2:] - start, 0.1) / p.pooled_size)[:, :, None]
    start = start[:, :, None]
    begin = np.floor(tables.along * step + start)
    stop = np.ceil((tables.along + 1) * step + start)
    stop = np.minimum(stop, tables.last + 1)
    weight = (tables.places >= begin[..., None]) & (tables.places < stop[..., None])
    share = weight.astype(rois.dtype)
    share /= np.maximum(share.sum(axis=3, keepdims=True), 1)
    bins = FewBins(tables, rois, data)
    return bins, bins.matrix(share[None, :, 0], share[None, :, 1])


@op.compute(allocates="a table of sums")
def _(p: PSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, rois = inputs
    (out,) = outputs
    if out is None or not out.size:
        return
    xp = ctx.xp
    if few(xp, data.shape, rois, p.pooled_size, p.output_dim):
        bins, matrix = _few_means(p, rois, data.shape)
        target = bins.by_class(out)
        target[...] = bins.gather(matrix, data).reshape(target.shape)
        return
    batch, channels, height, width = data.shape
    sums = xp.zeros((batch, height + 1, width + 1, channels // p.output_dim, p.output_dim), xp.float64)
    by_group = data.reshape(batch, p.output_dim, channels // p.output_dim, height, width).transpose(0, 3, 4, 2, 1)
    xp.cumsum(by_group, axis=1, out=sums[:, 1:, 1:])
    xp.cumsum(sums, axis=2, out=sums)
    means = _corners(p, xp, rois, data.shape).gather(sums.reshape(-1, p.output_dim))
    out[...] = means.reshape(-1, p.pooled_size, p.pooled_size, p.output_dim).transpose(0, 3, 1, 2)


@backward.compute(allocates="a table of sums")
def _(p: PSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, rois = inputs
    gdata, grois = outputs
    if grois is not None:
        grois[...] = 0
    if gdata is None or not gdata.size:
        return
    xp = ctx.xp
    if few(xp, gdata.shape, rois, p.pooled_size, p.output_dim):
        bins, matrix = _few_means(p, rois, gdata.shape)
        bins.spread(matrix, bins.flat(gout, matrix.dtype), gdata)
        return
    batch, channels, height, width = gdata.shape
    flat = gout.transpose(0, 2, 3, 1).reshape(-1, p.output_dim).astype(xp.float64)
    steps = _corners(p, xp, rois, gdata.shape).spread(flat)
    steps = steps.reshape(batch, height + 1, width + 1, channels // p.output_dim, p.output_dim)
    # The transpose of a sum from the first pixel on is a sum from the last.
    for axis in (1, 2):
        steps = xp.flip(xp.cumsum(xp.flip(steps, axis), axis=axis), axis)
    gdata[...] = steps[:, 1:, 1:].transpose(0, 4, 3, 1, 2).reshape(gdata.shape)
