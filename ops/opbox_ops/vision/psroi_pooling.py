"""_contrib_PSROIPooling: regions pooled by the mean of each bin, which has its own channels (R-FCN: Dai et al., 2016).

data (batch, output_dim * group_size^2, height, width); rois (n, 5): image, left, top, right, bottom, inclusive, times
spatial_scale on data; out (n, output_dim, pooled_size, pooled_size). group_size 0 is pooled_size.

    out[n, c, i, j] = mean of data[image, (c group_size + gi) group_size + gj] over the pixels that bin (i, j) touches
    gi = floor(i group_size / pooled_size)        gdata = gout / pixels, on each of them

Bins are summed from a table of the sums of all rectangles from the first pixel on, in double precision. An empty bin,
and a region whose image is not in data, is 0. rois' gradient is zero.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.weighted_rows import gather_rows, spread_rows, weighted_rows_temps
from ..index.zero_weights import lost_to_zero_weights, weighted_sums
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Field, Float, NonNegativeInt, Params, PositiveInt
from ..pausing import pause
from ..registry import register, register_backward
from .regions import infer_regions, round_half_up, write_images


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


def _temps(p: PSROIPoolingParams, call: CallSpec, *, gradient: bool = False) -> list[Temp]:
    """The table of sums; the regions, their images and bins' edges; cells, weights and sums of all bins."""
    (batch, channels, height, width), rois = (call.outputs if gradient else call.inputs)[0].shape, call.inputs[1]
    n, pooled, dtype = rois.shape[0], p.pooled_size, accumulation_type(rois.dtype)
    bins = n * pooled**2
    return [
        Temp((batch, height + 1, width + 1, channels // p.output_dim, p.output_dim), "float64"),
        Temp(rois.shape if rois.dtype != dtype else (0,), dtype),
        *(Temp((n,), "int64"), Temp((2, n), "bool"), Temp((3, n), dtype), Temp((pooled,), dtype)),
        *(Temp((n, pooled), dtype), Temp((4, n, pooled), "int64"), Temp((2, pooled), "int64")),
        *(Temp((4, bins), "int64"), Temp((4, bins), "float64"), Temp((bins, p.output_dim), "float64")),
        *weighted_rows_temps(call.device, bins, 4, p.output_dim, np.dtype("float64"), spreads=gradient),
    ]


_OWN = 12
"""Temporaries before those of the sums of rows."""


def _edges(
    p: PSROIPoolingParams, xp: Any, rois: Array, axis: int, size: int, edges: Array, scratch: tuple[Array, Array, Array]
) -> None:
    """Write where each bin begins and ends along an axis (2, n, pooled_size)."""
    (start, end, step), bins, place = scratch
    number = rois.dtype.type
    round_half_up(xp, rois[:, 1 + axis], start)
    start *= number(p.spatial_scale)
    round_half_up(xp, rois[:, 3 + axis], end)
    end += 1
    end *= number(p.spatial_scale)
    xp.subtract(end, start, out=step)
    xp.maximum(step, number(0.1), out=step)
    step /= p.pooled_size
    count_up(xp, bins)
    for edge, to_whole in ((edges[0], xp.floor), (edges[1], xp.ceil)):
        xp.multiply(bins, step[:, None], out=place)
        place += start[:, None]
        xp.fmax(xp.fmin(to_whole(place, out=place), size, out=place), 0, out=place)
        xp.copyto(edge, place, casting="unsafe")
        bins += 1


def _cells(p: PSROIPoolingParams, xp: Any, rois: Array, data: tuple[int, ...], temps: Arrays) -> tuple[Array, Array]:
    """For each region and bin the four cells of the table (batch, height + 1, width + 1, group) and their weights."""
    wide, image, masks, sides, bins, place, edges, groups, places, weights = temps[1 : _OWN - 1]
    (batch, _, height, width), pooled, group = data, p.pooled_size, p.group_size or p.pooled_size
    rois = widened(rois, wide)
    on = write_images(xp, rois, batch, image, masks)
    across, down = edges[:2], edges[2:]
    for axis, size, ends in ((0, width, across), (1, height, down)):
        _edges(p, xp, rois, axis, size, ends, (sides, bins, place))

    shape = (len(rois), pooled, pooled)
    share, area = (array.reshape(shape) for array in weights[:2])
    xp.subtract(down[1, :, :, None], down[0, :, :, None], out=area)
    xp.maximum(area, 0, out=area)
    xp.subtract(across[1, :, None], across[0, :, None], out=share)
    xp.maximum(share, 0, out=share)
    area *= share
    # An empty bin, and one on no image, has no share.
    xp.minimum(area, 1, out=share)
    share *= on[:, None, None]
    share /= xp.maximum(area, 1, out=area)
    xp.negative(weights[0], out=weights[1])
    weights[2], weights[3] = weights[1], weights[0]

    column_group, row_group = groups
    xp.multiply(count_up(xp, column_group), group, out=column_group)
    column_group //= pooled
    xp.multiply(column_group, group, out=row_group)
    image *= height + 1
    down += image[:, None]
    down *= width + 1
    for k, cell in enumerate(places):
        cells = cell.reshape(shape)
        xp.add(down[k // 2, :, :, None], across[k % 2, :, None], out=cells)
        cells *= group**2
        cells += row_group[:, None]
        cells += column_group
    return places, weights


def _copy(xp: Any, target: Array, source: Array) -> None:
    """Copy images, on the CPU one by one."""
    step = 1 if xp is np else len(target)
    for first in range(0, len(target), step):
        pause()
        target[first : first + step] = source[first : first + step]


@op.compute(temps=_temps)
def _(p: PSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data, rois), (out,) = inputs, outputs
    if out is None or not out.size:
        return
    if not data.size:
        out[...] = 0
        return
    xp, sums, means = ctx.xp, ctx.temp[0], ctx.temp[_OWN - 1]
    batch, channels, height, width = data.shape
    sums[:, 0] = 0
    sums[:, :, 0] = 0
    by_group = data.reshape(batch, p.output_dim, channels // p.output_dim, height, width).transpose(0, 3, 4, 2, 1)
    places, weights = _cells(p, xp, rois, data.shape, ctx.temp)

    def weigh(images: Array, ones: bool) -> Array:
        _copy(xp, sums[:, 1:, 1:], images)
        for row in range(2, height + 1):
            pause()
            sums[:, row] += sums[:, row - 1]
        for column in range(2, width + 1):
            pause()
            sums[:, :, column] += sums[:, :, column - 1]
        factors = xp.sign(weights) if ones else weights
        gather_rows(xp, sums.reshape(-1, p.output_dim), places, factors, means, ctx.temp[_OWN:])
        return means

    # An infinity in the table is in the sums of all bins behind it.
    if lost_to_zero_weights(xp, weigh(by_group, False)):
        means[...] = weighted_sums(lambda images, ones: weigh(images, ones).copy(), by_group)
    out[...] = means.reshape(-1, p.pooled_size, p.pooled_size, p.output_dim).transpose(0, 3, 1, 2)


@backward.compute(temps=partial(_temps, gradient=True))
def _(p: PSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout, rois), (gdata, grois) = inputs, outputs
    if grois is not None:
        grois[...] = 0
    if gdata is None or not gdata.size:
        return
    xp, steps, flat = ctx.xp, ctx.temp[0], ctx.temp[_OWN - 1]
    batch, channels, height, width = gdata.shape
    flat.reshape(-1, p.pooled_size, p.pooled_size, p.output_dim)[...] = gout.transpose(0, 2, 3, 1)
    places, weights = _cells(p, xp, rois, gdata.shape, ctx.temp)

    def weigh(gradients: Array, ones: bool) -> Array:
        steps[...] = 0
        factors = xp.sign(weights) if ones else weights
        spread_rows(xp, steps.reshape(-1, p.output_dim), places, factors, gradients, ctx.temp[_OWN:])
        # The transpose of a sum from the first pixel on is a sum from the last.
        for row in range(height - 1, 0, -1):
            pause()
            steps[:, row] += steps[:, row + 1]
        for column in range(width - 1, 0, -1):
            pause()
            steps[:, :, column] += steps[:, :, column + 1]
        pixels: Array = steps[:, 1:, 1:]
        return pixels

    pixels = weigh(flat, False)
    if lost_to_zero_weights(xp, pixels):
        pixels = weighted_sums(lambda gradients, ones: weigh(gradients, ones).copy(), flat)
    apart = gdata.reshape(batch, p.output_dim, channels // p.output_dim, height, width)
    _copy(xp, apart, pixels.transpose(0, 4, 3, 1, 2))
