"""_contrib_DeformablePSROIPooling: position-sensitive pooling whose bins are moved by offsets (Dai et al., 2017).

data (batch, output_dim * group_size^2, height, width); rois (n, 5): image, left, top, right, bottom, inclusive, times
spatial_scale on data; trans (n, 2 * classes, part_size, part_size): offsets (x, y) by class, in parts of the region
times trans_std; out (n, output_dim, pooled_size, pooled_size). part_size 0 is pooled_size; with no_trans there is no
trans.

Each bin is the mean of sample_per_part by sample_per_part bilinear samples, those more than half a pixel outside of
data left out. Bin i along an axis reads group floor(i group_size / pooled_size) of the channels and is moved by part
floor(i part_size / pooled_size); output channel c is of class c // (output_dim / classes).

gdata = gout spread over the samples; gtrans = sum over a part's bins and channels of gout times the derivative of the
bin's mean by its position; rois' gradient is zero. A region whose image is not in data is 0.
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, NonNegativeInt, Params, PositiveInt
from ..registry import Slot, register, register_backward, unless
from .few_bins import few
from .few_deformed_bins import FewDeformedBins
from .psroi_pooling import round_half_up
from .regions import Samples, bilinear, images_of, infer_regions


class DeformablePSROIPoolingParams(Params):
    spatial_scale: Float = Field(description="Size of data's image over that of the regions'.")
    output_dim: PositiveInt = Field(description="Channels of the output.")
    group_size: PositiveInt = Field(description="Groups of channels along an axis.")
    pooled_size: PositiveInt = Field(description="Height and width of the output.")
    part_size: NonNegativeInt = Field(0, description="Height and width of trans; 0: pooled_size.")
    sample_per_part: PositiveInt = Field(1, description="Samples of a bin along an axis.")
    trans_std: Float = Field(0.0, description="Factor on trans.")
    no_trans: Bool = Field(False, description="Bins are not moved.")


op = register(
    "_contrib_DeformablePSROIPooling",
    DeformablePSROIPoolingParams,
    inputs=("data", "rois", Slot("trans", unless("no_trans"))),
)
op.infer_type(all_same_float)
backward = register_backward(
    "_backward_DeformablePSROIPooling",
    DeformablePSROIPoolingParams,
    outputs=("data", "rois", Slot("trans", unless("no_trans"))),
)


@op.infer_shape
def _(p: DeformablePSROIPoolingParams, ins: ShapeList, outs: ShapeList) -> None:
    infer_regions(ins, outs, p.output_dim, (p.pooled_size, p.pooled_size), 5)
    ins.merge(0, (-1, p.output_dim * p.group_size**2, -1, -1))
    if not p.no_trans:
        rois, part = ins[1], p.part_size or p.pooled_size
        trans = ins.merge(2, (rois[0] if rois is not None else -1, -1, part, part))
        assert trans is not None
        classes = trans[1]
        if classes > 0 and (classes % 2 or p.output_dim % (classes // 2)):
            message = (
                f"expected two offsets for each of some classes that divide {p.output_dim}, got {show_shape(trans)}"
            )
            raise ShapeError(message, side="input", index=2)
        infer_regions(ins, outs, p.output_dim, (p.pooled_size, p.pooled_size), 5)
        ins.merge(1, (trans[0], 5))
        outs.merge(0, (trans[0], -1, -1, -1))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_DeformablePSROIPooling", node, [ograds[0], *node.inputs])


class _Bins:
    """Where the bins' samples are: rows are (region, class, bin row, bin column)."""

    def __init__(self, p: DeformablePSROIPoolingParams, xp: Any, rois: Array, trans: Array, data: Any) -> None:
        self.p, self.xp, self.data = p, xp, data
        batch, _, height, width = data
        rois = rois.astype(accumulation_type(rois.dtype), copy=False)
        number = rois.dtype.type
        bins = xp.arange(p.pooled_size)
        self.part = bins * (p.part_size or p.pooled_size) // p.pooled_size
        group = bins * p.group_size // p.pooled_size
        self.classes = trans.shape[1] // 2 if trans is not None else 1
        image, nowhere = images_of(xp, rois, batch)
        places, self.extents = [], []
        for axis in (0, 1):
            start = round_half_up(xp, rois[:, 1 + axis]) * number(p.spatial_scale) - number(0.5)
            end = (round_half_up(xp, rois[:, 3 + axis]) + 1) * number(p.spatial_scale) - number(0.5)
            extent = xp.maximum(end - start, number(0.1))
            step = extent / p.pooled_size
            along = bins[:, None] if axis else bins[None]
            moved = along * step[:, None, None] + start[:, None, None]
            # (region, class, bin row, bin column, sample row, sample column)
            place = xp.broadcast_to(moved[:, None], (len(rois), self.classes, *moved.shape[1:-2], *[p.pooled_size] * 2))
            if trans is not None:
                shift = trans[:, axis::2][:, :, self.part[:, None], self.part[None]].astype(rois.dtype, copy=False)
                place = place + shift * number(p.trans_std) * extent[:, None, None, None]
            sample = xp.arange(p.sample_per_part).astype(rois.dtype) * (step / p.sample_per_part)[:, None]
            sample = sample[:, None, None, None, :, None] if axis else sample[:, None, None, None, None, :]
            places.append(place[..., None, None] + sample)
            self.extents.append(extent)
        x, y = xp.broadcast_arrays(*places)
        real = (x >= -0.5) & (x <= width - 0.5) & (y >= -0.5) & (y <= height - 0.5)
        real &= ~nowhere[:, None, None, None, None, None]
        count = real.sum(axis=(4, 5))
        at = xp.nonzero(real)
        region, of_class, row, column, *_ = at
        self.rows = ((region * self.classes + of_class) * p.pooled_size + row) * p.pooled_size + column
        self.share = (1 / xp.maximum(count, 1)).astype(rois.dtype).reshape(-1)[self.rows]
        channel = (group[row] * p.group_size + group[column]) * self.classes + of_class
        self.corners = bilinear(xp, y[at], x[at], height, width)
        pixels = [image[region] * (height * width) + pixel for pixel, *_ in self.corners]
        self.columns = xp.concatenate([pixel * (p.group_size**2 * self.classes) + channel for pixel in pixels])
        self.size = (count.size, batch * height * width * p.group_size**2 * self.classes)

    def samples(self, kind: int) -> Samples:
        """The matrix of the means (1), or of their derivatives by y (2) and x (3)."""
        weights = [corner[kind] * self.share for corner in self.corners]
        return Samples(self.xp, self.size, self.xp.tile(self.rows, 4), self.columns, self.xp.concatenate(weights))

    def pixels(self, data: Array) -> Array:
        """data with a row for each pixel, group and class, and the class's channels last."""
        p, (batch, _, height, width) = self.p, data.shape
        share = p.output_dim // self.classes
        apart = data.reshape(batch, self.classes, share, p.group_size**2, height, width).transpose(0, 4, 5, 3, 1, 2)
        return apart.reshape(self.size[1], share).astype(accumulation_type(data.dtype), copy=False)

    def outputs(self, gout: Array) -> Array:
        """An array like out with a row for each region, class and bin, and the class's channels last."""
        p = self.p
        share = p.output_dim // self.classes
        apart = gout.reshape(gout.shape[0], self.classes, share, p.pooled_size, p.pooled_size).transpose(0, 1, 3, 4, 2)
        return apart.reshape(self.size[0], share).astype(accumulation_type(gout.dtype), copy=False)


def _trans(p: DeformablePSROIPoolingParams, inputs: Arrays) -> Array | None:
    return None if p.no_trans else inputs[-1]


@op.compute(allocates="samples of the regions, data with its channels last")
def _(p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, rois, *_ = inputs
    (out,) = outputs
    if out is None or not out.size:
        return
    trans = _trans(p, inputs)
    if few(ctx.xp, data.shape, rois, p.pooled_size, p.output_dim):
        few_bins = FewDeformedBins(p, rois, trans, data.shape)
        target = few_bins.by_class(out)
        target[...] = few_bins.gather(few_bins.matrix(*few_bins.weights()), data).reshape(target.shape)
        return
    bins = _Bins(p, ctx.xp, rois, trans, data.shape)
    means = bins.samples(1).gather(bins.pixels(data))
    means = means.reshape(len(rois), bins.classes, p.pooled_size, p.pooled_size, -1).transpose(0, 1, 4, 2, 3)
    out[...] = means.reshape(out.shape)


@backward.compute(allocates="samples of the regions, arrays with their channels last")
def _(p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, data, rois, *_ = inputs
    gdata, grois, *gtrans = outputs
    if grois is not None:
        grois[...] = 0
    wanted = [array for array in (gdata, *gtrans) if array is not None and array.size]
    if not wanted:
        return
    trans = _trans(p, inputs)
    if few(ctx.xp, data.shape, rois, p.pooled_size, p.output_dim):
        few_bins = FewDeformedBins(p, rois, trans, data.shape)
        flat = few_bins.flat(gout, few_bins.share.dtype)
        if gdata is not None:
            few_bins.spread(few_bins.matrix(*few_bins.weights()), flat, gdata)
        if gtrans and gtrans[0] is not None:
            few_bins.move(p, data, flat, gtrans[0])
        return
    bins = _Bins(p, ctx.xp, rois, trans, data.shape)
    flat = bins.outputs(gout)
    if gdata is not None:
        batch, _, height, width = data.shape
        gradient = bins.samples(1).spread(flat)
        gradient = gradient.reshape(batch, height, width, p.group_size**2, bins.classes, -1).transpose(0, 4, 5, 3, 1, 2)
        gdata[...] = gradient.reshape(gdata.shape)
    if gtrans and gtrans[0] is not None:
        _move(p, ctx.xp, bins, flat, data, gtrans[0])


def _move(p: DeformablePSROIPoolingParams, xp: Any, bins: _Bins, flat: Array, data: Array, gtrans: Array) -> None:
    """The gradient of trans: of each bin's position, added up over the bins of a part."""
    pixels, part = bins.pixels(data), gtrans.shape[2]
    of_part = bins.part[:, None] == xp.arange(part)[None]
    for axis, kind in ((0, 3), (1, 2)):
        moved = (bins.samples(kind).gather(pixels) * flat).sum(axis=1)
        moved = moved.reshape(gtrans.shape[0], bins.classes, p.pooled_size, p.pooled_size)
        moved = of_part.T.astype(moved.dtype) @ moved @ of_part.astype(moved.dtype)
        gtrans[:, axis::2] = moved * (bins.extents[axis] * p.trans_std)[:, None, None, None]
