"""ROIPooling: the maxima over a grid of parts of each region of interest.

data (batch, channel, height, width), rois (regions, 5) with rows (image, x1, y1, x2, y2), out (regions, channel,
*pooled_size). A region's corners are multiplied by spatial_scale and rounded, both ends counted; it is cut into
pooled_size parts that may share rows and columns, and out is each part's maximum, 0 where a part is outside of data
or its image is not there.

gdata is gout at the first maximum (row by row) of each part, and 0 elsewhere; rois' gradient is 0.
Girshick, "Fast R-CNN" (2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..cache import REGION_PIECE
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Field, Float, Params, Shape
from ..pausing import pause
from ..registry import register, register_backward
from ..vision.regions import images_of


class ROIPoolingParams(Params):
    pooled_size: Shape = Field(description="Height and width of out.")
    spatial_scale: Float = Field(description="What the regions' corners are multiplied by to be positions in data.")


op = register("ROIPooling", ROIPoolingParams, inputs=("data", "rois"))
backward = register_backward("_backward_ROIPooling", ROIPoolingParams, outputs=("data", "rois"))


@op.infer_shape
def _(p: ROIPoolingParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.pooled_size) != 2 or min(p.pooled_size) < 1:
        raise ShapeError(f"pooled_size: expected a height and a width, got {p.pooled_size}")
    data, rois = ins.rank(0, 4) or (-1,) * 4, ins.merge(1, (-1, 5)) or ()
    out = outs.merge(0, (rois[0], data[1], *p.pooled_size)) or ()
    ins.merge(0, (data[0], out[1], *data[2:]))
    ins.merge(1, (out[0], 5))


op.infer_type(all_same_float)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_ROIPooling", node, [*ograds, *node.inputs, *node.entries()])


class _Parts:
    """The parts of all regions: rows and columns (regions, parts) where each begins and ends, and the images."""

    def __init__(self, p: ROIPoolingParams, xp: Any, rois: Array, data: tuple[int, ...]) -> None:
        self.xp, self.shape = xp, data
        rois = rois.astype(accumulation_type(rois.dtype), copy=False)
        self.images, nowhere = images_of(xp, rois, data[0])
        # Half is rounded away from zero, as C does.
        scaled = rois[:, 1:] * rois.dtype.type(p.spatial_scale)
        ends = xp.trunc(scaled + xp.copysign(rois.dtype.type(0.5), scaled))
        # Along x and y in one; the axis with fewer parts has some in vain.
        first, length = ends[:, :2, None], xp.maximum(ends[:, 2:] - ends[:, :2] + 1, 1)
        pooled_y, pooled_x = p.pooled_size
        length = (length / xp.asarray((pooled_x, pooled_y), dtype=ends.dtype))[..., None]
        steps = xp.arange(max(p.pooled_size) + 1, dtype=ends.dtype)
        size = xp.asarray(((data[3],), (data[2],)), dtype=ends.dtype)
        begin, end = (
            xp.fmin(xp.fmax(edge + first, 0), size).astype(int)  # an edge that is no number is 0
            for edge in (xp.floor(steps[:-1] * length), xp.ceil(steps[1:] * length))
        )
        self.columns = begin[:, 0, :pooled_x], end[:, 0, :pooled_x]
        self.rows = begin[:, 1, :pooled_y], end[:, 1, :pooled_y]
        xp.copyto(self.rows[1], self.rows[0], where=nowhere[:, None])  # nothing is in a part without rows

    def pieces(self, channels: int) -> Iterator[tuple[slice, Array]]:
        """Some regions at a time: their parts, and (parts, places) positions in all images, row by row.

        What is in a part's row of places but not in the part is the position behind the last one.
        """
        xp, (top, bottom), (left, right) = self.xp, self.rows, self.columns
        batch, _, height, width = self.shape
        reach_y, reach_x = (max(0, int((end - begin).max())) for begin, end in (self.rows, self.columns))
        y, x = top[:, :, None] + xp.arange(reach_y), left[:, :, None] + xp.arange(reach_x)
        in_y, in_x = y < bottom[:, :, None], x < right[:, :, None]
        y = y * width + self.images[:, None, None] * (height * width)
        parts, places = top.shape[1] * left.shape[1], reach_y * reach_x
        step = max(1, REGION_PIECE // max(parts * places * channels, 1))
        for start in range(0, len(self.images) if places else 0, step):
            pause()
            some = slice(start, start + step)
            inside = in_y[some, :, None, :, None] & in_x[some, None, :, None, :]
            place = y[some, :, None, :, None] + x[some, None, :, None, :]
            place = xp.where(inside, place, batch * height * width).reshape(-1, places)
            yield slice(start * parts, start * parts + len(place)), place


def _columns(data: Array) -> Array:
    """(batch, channel, height, width) as (batch * height * width, channel): an element's channels are one run."""
    return data.transpose(0, 2, 3, 1).reshape(-1, data.shape[1])


def _source(xp: Any, data: Array) -> Array:
    """The columns of data, and a last one that is no part's maximum; nor are numbers that are none."""
    columns = _columns(data)
    source = xp.empty((len(columns) + 1, columns.shape[1]), data.dtype)
    source[-1] = -np.inf
    xp.copyto(source[:-1], columns)
    xp.copyto(source, -np.inf, where=xp.isnan(source))
    return source


def _from_columns(values: Array, shape: tuple[int, ...]) -> Array:
    """(regions * parts, channel) as (regions, channel, *parts): a view."""
    regions, channels, height, width = shape
    return values.reshape(regions, height, width, channels).transpose(0, 3, 1, 2)


@op.compute(allocates="the parts, and data with the channels last")
def _(p: ROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None or not outputs[0].size:
        return
    xp, data, out = ctx.xp, inputs[0], outputs[0]
    if not data.size:
        out[...] = 0
        return
    source, best = _source(xp, data), xp.zeros((out.size // out.shape[1], out.shape[1]), data.dtype)
    for parts, place in _Parts(p, xp, inputs[1], data.shape).pieces(data.shape[1]):
        xp.max(source.take(place, axis=0), axis=1, out=best[parts])
    best[best == -np.inf] = 0
    out[...] = _from_columns(best, out.shape)


def _added(xp: Any, places: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of `shape` with each of the values added at its place (in the flat array)."""
    total = xp.bincount(places.reshape(-1), values.reshape(-1), minlength=math.prod(shape))
    return total.reshape(shape).astype(values.dtype, copy=False)


@backward.compute(allocates="the parts, and the places of the maxima")
def _(p: ROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[1] is not None:
        outputs[1][...] = 0
    if outputs[0] is None:
        return
    xp, (gout, data, rois, out) = ctx.xp, inputs
    if not gout.size or not data.size:
        outputs[0][...] = 0
        return
    source, top, gtop = _source(xp, data), _columns(out), _columns(gout)
    places, gplaces = xp.zeros(top.shape, xp.int64), xp.zeros(top.shape, accumulation_type(gout.dtype))
    for parts, place in _Parts(p, xp, rois, data.shape).pieces(data.shape[1]):
        # The places last: the search for the first one is fast on what lies together.
        hits = xp.ascontiguousarray((source.take(place, axis=0) == top[parts, None]).swapaxes(1, 2))
        places[parts] = xp.take_along_axis(place, hits.argmax(axis=2), axis=1)
        gplaces[parts] = gtop[parts] * hits.any(axis=2)
    places = xp.minimum(places, len(source) - 2) * data.shape[1] + xp.arange(data.shape[1])
    batch, channels, height, width = data.shape
    total = _added(xp, places, gplaces, (batch, height, width, channels))
    outputs[0][...] = total.transpose(0, 3, 1, 2)
