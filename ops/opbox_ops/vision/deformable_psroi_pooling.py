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

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from opbox_protocol.errors import LimitError, ShapeError

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.weighted_rows import gather_rows, row_products, spread_rows, weighted_rows_temps
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, NonNegativeInt, Params, PositiveInt
from ..pausing import pause
from ..registry import Slot, register, register_backward, unless
from .region_samples import MAX_SAMPLES as MAX_ALL_SAMPLES
from .regions import (
    POINTS,
    Points,
    infer_regions,
    points_temps,
    real_samples,
    round_half_up,
    samples_of_piece,
    weigh,
    write_images,
    write_neighbours,
)

MAX_SAMPLES = 1 << 16
"""The most samples that a region may have in all its bins; 7 by 7 bins of 4 by 4 samples have 784 for each class."""


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


def _trans(p: DeformablePSROIPoolingParams, inputs: Sequence[Any]) -> Any:
    """trans, an array or what is known of it; None without."""
    return None if p.no_trans else inputs[-1]


def _temps(p: DeformablePSROIPoolingParams, call: CallSpec, *, gradients: bool = False) -> list[Temp]:
    """List the temporaries of `_BinTemps`: for all pixels and regions, and for the bins and samples of some regions."""
    inputs = call.inputs[1:] if gradients else call.inputs
    (batch, channels, height, width), rois, trans = inputs[0].shape, inputs[1], _trans(p, inputs)
    n, pooled, part, dtype = rois.shape[0], p.pooled_size, p.part_size or p.pooled_size, accumulation_type(rois.dtype)
    classes = max(1, trans.shape[1] // 2 if trans is not None else 1)
    share, bins, samples = p.output_dim // classes, classes * pooled**2, p.sample_per_part**2
    _check_samples(bins * samples, n)
    most = samples_of_piece(call.device, bins * samples, share, dtype.itemsize)
    regions = max(1, min(n, most // (bins * samples)))
    rows, count = regions * bins, regions * bins * samples
    table = (batch * height * width * (channels // share), share)
    return [
        *(Temp(table, dtype), Temp(table if gradients else (0, 0), dtype)),
        *(Temp(rois.shape if rois.dtype != dtype else (0,), dtype), Temp((n,), "int64"), Temp((2, n), "bool")),
        *(
            Temp((4, 2, n), dtype),
            Temp((3, pooled), "int64"),
            Temp((pooled,), dtype),
            Temp((p.sample_per_part,), dtype),
        ),
        *(Temp((2, regions, classes, pooled, pooled), dtype), Temp((rows,), dtype), Temp((rows, share), dtype)),
        *(Temp((6 if gradients else 0, count), dtype), Temp((pooled, part), dtype)),
        *(Temp((regions if gradients else 0, classes, size, part), dtype) for size in (pooled, part)),
        *points_temps(count, dtype),
        *weighted_rows_temps(call.device, rows, 4 * samples, share, dtype, spreads=gradients),
    ]


def _check_samples(of_region: int, n: int) -> None:
    """A region's samples are worked out together; no shape has bounded them."""
    if of_region > MAX_SAMPLES:
        raise LimitError(f"rois: expected at most {MAX_SAMPLES:,} samples of a region, got {of_region:,}")
    if of_region * n > MAX_ALL_SAMPLES:
        message = f"rois: expected regions of at most {MAX_ALL_SAMPLES:,} samples in all, got {of_region * n:,}"
        raise LimitError(message)


class _BinTemps(NamedTuple):
    """The temporaries of a call.

    Attributes:
        table, total: the pixels (batch * pixels * groups * classes, channels of a class), and their gradients.
        wide, image, masks: regions in the type that is computed in; where their images begin (n,); for which are on
            one (2, n).
        axes: along x and y, where a region begins, how long it is, and a bin's and a sample's step (4, 2, n).
        groups: the number of each bin, and of its group, for columns and rows of a pixel's groups (3, pooled).
        bins, steps: numbers of bins and of samples along an axis.
        moved: positions of bins, and what these are moved by (2, regions, classes, rows, columns).
        sums: a number for each bin (bins,).
        rows: means, or their gradients (bins, channels of a class).
        slopes: products with a sample's neighbours, and two of these (6, P).
        of_part: 1 where a bin is of a part (pooled, part).
        along, both: sums over the bins of a part.
        points: the samples.
        gather: what the sums of rows need.
    """

    table: Array
    total: Array
    wide: Array
    image: Array
    masks: Array
    axes: Array
    groups: Array
    bins: Array
    steps: Array
    moved: Array
    sums: Array
    rows: Array
    slopes: Array
    of_part: Array
    along: Array
    both: Array
    points: Points
    gather: Arrays


_OWN = 16
"""Temporaries before the samples'."""


def _begin(
    p: DeformablePSROIPoolingParams, xp: Any, data: Array, rois: Array, temps: Arrays
) -> tuple[_BinTemps, Array]:
    """Put the pixels' channels side by side, and work out where regions are, and which are on an image."""
    points = Points(*temps[_OWN : _OWN + POINTS])
    scratch = _BinTemps._make((*temps[:_OWN], points, temps[_OWN + POINTS :]))
    classes, number = scratch.moved.shape[2], scratch.axes.dtype.type
    pixels, apart = _pixels(p, scratch.table, data, classes)
    pixels[...] = apart
    rois, (starts, extents, steps, samples) = widened(rois, scratch.wide), scratch.axes
    for axis in (0, 1):
        start, extent = starts[axis], extents[axis]
        for edge, target, more in ((1, start, 0), (3, extent, 1)):
            round_half_up(xp, rois[:, edge + axis], target)
            target += more
            target *= number(p.spatial_scale)
            target -= number(0.5)
        extent -= start
        xp.maximum(extent, number(0.1), out=extent)
        xp.divide(extent, p.pooled_size, out=steps[axis])
        xp.divide(steps[axis], p.sample_per_part, out=samples[axis])
    number_of_bin, column_group, row_group = scratch.groups
    xp.multiply(count_up(xp, number_of_bin), p.group_size, out=column_group)
    column_group //= p.pooled_size
    column_group *= classes
    xp.multiply(column_group, p.group_size, out=row_group)
    count_up(xp, scratch.bins)
    count_up(xp, scratch.steps)
    on = write_images(xp, rois, data.shape[0], scratch.image, scratch.masks)
    scratch.image[...] *= data.shape[2] * data.shape[3]
    return scratch, on


def _pixels(p: DeformablePSROIPoolingParams, table: Array, data: Array, classes: int) -> tuple[Array, Array]:
    """The table with a row for each pixel, group and class, and data in its order: views."""
    batch, _, height, width = data.shape
    share, groups = p.output_dim // classes, p.group_size**2
    apart = data.reshape(batch, classes, share, groups, height, width).transpose(0, 4, 5, 3, 1, 2)
    return table.reshape(apart.shape), apart


def _by_bin(out: Array, rows: Array, classes: int) -> tuple[Array, Array]:
    """An array like some regions' part of out, and rows for their bins, in one order: views."""
    apart = out.reshape(len(out), classes, out.shape[1] // classes, *out.shape[2:]).transpose(0, 1, 3, 4, 2)
    return apart, rows[: math.prod(apart.shape[:-1])].reshape(apart.shape)


def _pieces(
    p: DeformablePSROIPoolingParams, xp: Any, trans: Array | None, on: Array, size: Sequence[int], scratch: _BinTemps
) -> Iterator[tuple[slice, Points]]:
    """Some regions, and the neighbours of their bins' samples: places, and how near they are."""
    together, classes, pooled, _ = scratch.moved.shape[1:]
    side, number = p.sample_per_part, scratch.axes.dtype.type
    for first in range(0, len(on), together):
        pause()
        at = slice(first, min(first + together, len(on)))
        n = at.stop - first
        shape = (side, side, n, classes, pooled, pooled)
        points = scratch.points.cut(math.prod(shape))
        for axis in (0, 1):
            place, moves = scratch.moved[:, :n]
            start, extent, step, sample = (values[axis, at, None, None, None] for values in scratch.axes)
            xp.multiply(scratch.bins[:, None] if axis else scratch.bins, step, out=place)
            place += start
            if trans is not None:
                _of_bins(trans[at, axis::2], moves)
                moves *= number(p.trans_std)
                moves *= extent
                place += moves
            target = points.at[1 - axis].reshape(shape)
            steps = scratch.steps[:, None, None, None, None]
            xp.multiply(steps[:, None] if axis else steps, sample, out=target)
            target += place
        real = real_samples(xp, points, 0.5, size).reshape(side * side, n, -1)
        real &= on[at, None]
        xp.copyto(points.weight, real.reshape(-1))
        weight = points.weight.reshape(side * side, -1)
        count = xp.sum(weight, axis=0, out=scratch.sums[: weight.shape[1]])
        weight /= xp.maximum(count, 1, out=count)
        write_neighbours(xp, points, size)
        places = points.places.reshape(4 * side * side, *shape[2:])
        places += scratch.image[at, None, None, None]
        places *= p.group_size**2 * classes
        places += scratch.groups[2][:, None]
        places += scratch.groups[1]
        for k in range(1, classes):
            one = places[:, :, k]
            one += k
        yield at, points


def _of_bins(trans: Array, moves: Array) -> None:
    """Write what each bin is moved by, from that of its part."""
    part, pooled = trans.shape[2], moves.shape[2]
    for row in range(pooled):
        for column in range(pooled):
            moves[:, :, row, column] = trans[:, :, row * part // pooled, column * part // pooled]


@op.compute(temps=_temps)
def _(p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data, rois, *_), (out,) = inputs, outputs
    if out is None or not out.size:
        return
    if not data.size:
        out[...] = 0
        return
    xp, trans, (scratch, on) = ctx.xp, _trans(p, inputs), _begin(p, ctx.xp, data, rois, ctx.temp)
    for at, points in _pieces(p, xp, trans, on, data.shape[2:], scratch):
        weigh(xp, points, points.near[0], points.near[1])
        apart, means = _by_bin(out[at], scratch.rows, scratch.moved.shape[2])
        rows = means.reshape(-1, means.shape[-1])
        places = points.places.reshape(-1, len(rows))
        gather_rows(xp, scratch.table, places, points.weights.reshape(places.shape), rows, scratch.gather)
        apart[...] = means


@backward.compute(temps=partial(_temps, gradients=True))
def _(p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, data, rois, *_ = inputs
    gdata, grois, *further = outputs
    gtrans = further[0] if further else None
    if grois is not None:
        grois[...] = 0
    if not data.size or not gout.size:
        for target in (gdata, gtrans):
            if target is not None:
                target[...] = 0
        return
    if gdata is None and gtrans is None:
        return
    xp, trans, (scratch, on) = ctx.xp, _trans(p, inputs), _begin(p, ctx.xp, data, rois, ctx.temp)
    classes = scratch.moved.shape[2]
    scratch.total[...] = 0
    _write_parts(scratch.of_part)
    for at, points in _pieces(p, xp, trans, on, data.shape[2:], scratch):
        apart, gradients = _by_bin(gout[at], scratch.rows, classes)
        gradients[...] = apart
        rows = gradients.reshape(-1, gradients.shape[-1])
        places = points.places.reshape(-1, len(rows))
        if gdata is not None:
            weigh(xp, points, points.near[0], points.near[1])
            spread_rows(xp, scratch.total, places, points.weights.reshape(places.shape), rows, scratch.gather)
        if gtrans is not None:
            slopes = scratch.slopes.reshape(-1)[: 6 * points.weight.size].reshape(3, 2, -1)
            row_products(xp, scratch.table, places, rows, slopes[:2].reshape(places.shape), scratch.gather)
            _move(p, xp, points, slopes, scratch, gtrans, at)
    if gdata is not None:
        pixels, apart = _pixels(p, scratch.total, gdata, classes)
        apart[...] = pixels


def _write_parts(of_part: Array) -> None:
    """Write a 1 where a bin (row) is of a part (column)."""
    pooled, part = of_part.shape
    of_part[...] = 0
    for k in range(pooled):
        of_part[k, k * part // pooled] = 1


def _move(
    p: DeformablePSROIPoolingParams,
    xp: Any,
    points: Points,
    slopes: Array,
    scratch: _BinTemps,
    gtrans: Array,
    at: slice,
) -> None:
    """The gradient of trans for some regions: of each bin's position, added up over the bins of a part.

    Args:
        slopes: the products of gout with a sample's neighbours (upper and lower, left and right, P); behind them room
            for two numbers a sample.
    """
    n, products, steep = at.stop - at.start, slopes[:2], slopes[2]
    bins = scratch.moved[0, :n]
    for axis, more, less, across in (
        (0, products[:, 1], products[:, 0], points.near[0]),
        (1, products[1], products[0], points.near[1]),
    ):
        xp.subtract(more, less, out=steep)
        steep *= across
        steep[0] += steep[1]
        steep[0] *= points.weight
        xp.sum(steep[0].reshape(-1, *bins.shape), axis=0, out=bins)
        along, both = scratch.along[:n], scratch.both[:n]
        xp.matmul(scratch.of_part.T, xp.matmul(bins, scratch.of_part, out=along), out=both)
        both *= scratch.axes[1, axis, at, None, None, None]
        both *= p.trans_std
        gtrans[at, axis::2] = both
