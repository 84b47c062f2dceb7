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
from functools import partial
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.weighted_rows import gather_rows, spread_rows
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, Params, Shape
from ..registry import register, register_backward
from .region_samples import REGIONS, ROWS_AT, Regions, bins_of, bins_temps, regions_of, regions_temps
from .region_windows import gather_windows, spread_windows, window_temps
from .regions import check_size, infer_regions


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


def _own(p: Any) -> int:
    """For how many bins a pixel has channels of its own; 1 if not."""
    return math.prod(p.pooled_size) if getattr(p, "position_sensitive", False) else 1


def _in_windows(p: Any) -> bool:
    """Return whether a bin's weights are products of those along y and along x, the same for all channels."""
    return isinstance(p, ROIAlignParams) and not p.position_sensitive


def _temps(p: Any, call: CallSpec, *, gradient: bool = False) -> list[Temp]:
    """The images, or their gradients, with channels last; the regions; windows, or a piece of the samples."""
    (batch, _, height, width), own = (call.outputs if gradient else call.inputs)[0].shape, _own(p)
    channels, rois = (call.inputs if gradient else call.outputs)[0].shape[1], call.inputs[1]
    dtype, pooled = accumulation_type(rois.dtype), check_size(p.pooled_size)
    if _in_windows(p):
        further = window_temps(rois.shape[0], pooled, (height, width), channels, dtype, gradient=gradient)
    else:
        further = bins_temps(call.device, rois.shape[0], pooled, channels, dtype, spreads=gradient)
    return [Temp((batch * height * width * own, channels), dtype), *regions_temps(rois), *further]


def _regions(p: Any, ctx: OpContext, rois: Array, batch: int, size: tuple[int, int]) -> Regions:
    ratio = p.sample_ratio if isinstance(p, ROIAlignParams) else p.sampling_ratio
    return regions_of(p, ctx.xp, rois, batch, size, ratio, ctx.temp[1 : 1 + REGIONS])


def _pixels(table: Array, data: Array, channels: int) -> tuple[Array, Array]:
    """The table (batch, height, width, own, channels) and data in its order: views."""
    batch, _, height, width = data.shape
    own = data.shape[1] // channels
    apart = data.reshape(batch, channels, own, height, width).transpose(0, 3, 4, 2, 1)
    return table.reshape(batch, height, width, own, channels), apart


@align.compute(temps=_temps)
@rotated.compute(temps=_temps)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data, rois), (out,) = inputs, outputs
    if out is None or not out.size:
        return
    if not data.size:
        out[...] = 0
        return
    xp, table, temps = ctx.xp, ctx.temp[0], ctx.temp[1 + REGIONS :]
    batch, _, height, width = data.shape
    size, channels = (height, width), out.shape[1]
    regions = _regions(p, ctx, rois, batch, size)
    pixels, apart = _pixels(table, data, channels)
    pixels[...] = apart
    if _in_windows(p):
        gather_windows(xp, table, regions, size, out, temps)
        return
    rows, columns = p.pooled_size
    for bins in bins_of((rows, columns), xp, regions, size, _own(p), temps):
        count = (bins.at.stop - bins.at.start) * rows * columns
        total, part = temps[0][:count], temps[1][:count]
        target = out[bins.at]
        if not len(bins.places):
            target[...] = 0
            continue
        gather_rows(xp, table, bins.places, bins.weights, total if bins.first else part, temps[ROWS_AT:])
        if not bins.first:
            total += part
        if bins.last:
            target[...] = total.reshape(len(target), rows, columns, channels).transpose(0, 3, 1, 2)


@backward.compute(temps=partial(_temps, gradient=True))
def _(p: ROIAlignParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout, rois), (gdata, grois) = inputs, outputs
    if grois is not None:
        grois[...] = 0
    if gdata is None or not gdata.size:
        return
    xp, table, temps = ctx.xp, ctx.temp[0], ctx.temp[1 + REGIONS :]
    batch, _, height, width = gdata.shape
    size, channels = (height, width), gout.shape[1]
    regions = _regions(p, ctx, rois, batch, size)
    table[...] = 0
    if _in_windows(p):
        spread_windows(xp, table, regions, size, gout, temps)
    else:
        rows, columns = p.pooled_size
        for bins in bins_of((rows, columns), xp, regions, size, _own(p), temps):
            part = gout[bins.at]
            flat = temps[0][: len(part) * rows * columns]
            if not len(bins.places):
                continue
            if bins.first:
                flat.reshape(len(part), rows, columns, channels)[...] = part.transpose(0, 2, 3, 1)
            spread_rows(xp, table, bins.places, bins.weights, flat, temps[ROWS_AT:])
    pixels, apart = _pixels(table, gdata, channels)
    apart[...] = pixels
