"""The samples of regions that are pooled by the mean of a grid in each bin: where they are, and of which pixels.

A region has bins in rows and columns, and each bin the same grid of samples; along an axis that is as many as a
parameter says, or about one a pixel. Samples are numbered before bins, so that a bin's sum is one of weighted rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from opbox_protocol.errors import LimitError

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, ArraySpec, Temp
from ..index.counting import count_up
from ..index.positions import whole
from ..index.weighted_rows import weighted_rows_temps
from ..pausing import pause
from .regions import (
    POINTS,
    Points,
    points_temps,
    real_samples,
    samples_of_piece,
    weigh,
    write_images,
    write_neighbours,
)

__all__ = [
    "MAX_REGIONS",
    "MAX_SAMPLES",
    "REGIONS",
    "ROWS_AT",
    "Bins",
    "Regions",
    "bins_of",
    "bins_temps",
    "regions_of",
    "regions_temps",
]

MAX_SAMPLES = 1 << 27
"""The most samples that the regions of a call may have together."""
MAX_REGIONS = 1 << 20
"""The most regions of a call: how many samples each has is known to the host, in some 100 bytes that nobody counts."""
SLACK = 1e-3
"""The part of a turned region's reach that is added to it: float32's roundings are a thousandth of that."""
MAX_SAMPLES_AT_ONCE = 64
"""Maximum number of samples of a bin that are summed together."""


class Regions(NamedTuple):
    """Bounds and samples of all regions, along x and y.

    Attributes:
        start, extent, step: (n, 2), of the region and of its bins.
        number, divisor: samples of a bin (n, 2), and at least 1 as floats.
        part: of a sample in the mean along an axis (n, 2); 0 on no image.
        counts: `number` on the host.
        image: (n,), 0 where there is none.
        on: which are on an image (n,).
        share: of a sample in its bin (n,); 0 on no image.
        turn: cosine, sine, centre's x and y (4, n); without elements where regions are straight.
    """

    start: Array
    extent: Array
    step: Array
    number: Array
    divisor: Array
    part: Array
    counts: list[list[int]]
    image: Array
    on: Array
    share: Array
    turn: Array


def regions_temps(rois: ArraySpec) -> list[Temp]:
    """Temporaries of `regions_of`."""
    (n, width), dtype = rois.shape, accumulation_type(rois.dtype)
    return [
        Temp(rois.shape if rois.dtype != dtype else (0,), dtype),
        *[Temp((n, 2), dtype)] * 4,
        *(Temp((n, 2), "int64"), Temp((n, 2), "float64"), Temp((n,), "int64"), Temp((2, n), "bool"), Temp((n,), dtype)),
        *(Temp((4, n if width == 6 else 0), dtype), Temp((3, n), dtype)),
    ]


REGIONS, ROWS_AT = 12, 6 + POINTS
"""The number of `regions_temps`, and the position in `bins_temps` of the temporaries for sums of rows."""


def regions_of(p: Any, xp: Any, rois: Array, batch: int, size: tuple[int, int], ratio: int, temps: Arrays) -> Regions:
    """Work out where regions are, and how many samples they have; none, where their image has none of these.

    Args:
        p: the operator's parameters; rotated regions (n, 6) are not `aligned`.
        size: height and width of the images.
        ratio: samples of a bin along an axis; less than 1: about one a pixel.
    """
    wide, start, extent, step, part, number, divisor, image, masks, share, turn, edges = temps
    rois = widened(rois, wide)
    bins, scale = (p.pooled_size[1], p.pooled_size[0]), rois.dtype.type(p.spatial_scale)
    if turn.size:
        xp.multiply(rois[:, 3:5], scale, out=extent)
        xp.maximum(extent, 1, out=extent)
        xp.divide(extent, -2, out=start)
        xp.multiply(rois[:, 5], math.pi / 180, out=share)
        xp.cos(share, out=turn[0])
        xp.sin(share, out=turn[1])
        xp.multiply(rois[:, 1:3].T, scale, out=turn[2:])
    else:
        xp.multiply(rois[:, 1:3], scale, out=start)
        xp.multiply(rois[:, 3:5], scale, out=extent)
        extent -= start
        if p.aligned:
            start -= 0.5
        else:
            xp.maximum(extent, 1, out=extent)
    for axis in (0, 1):
        xp.divide(extent[:, axis], bins[axis], out=step[:, axis])
    if ratio > 0:
        number[...] = ratio
    else:
        whole(xp, xp.ceil(step, out=divisor), number)
        xp.maximum(number, 0, out=number)
    xp.maximum(number, 1, out=divisor)
    if len(rois) > MAX_REGIONS:
        raise LimitError(f"rois: expected at most {MAX_REGIONS:,} regions, got {len(rois):,}")
    on = write_images(xp, rois, batch, image, masks)
    xp.copyto(part, divisor, casting="unsafe")
    xp.divide(1, part, out=part)
    xp.copyto(part, 0, where=masks[1, :, None])
    xp.multiply(part[:, 0], part[:, 1], out=share)
    _leave_out_what_is_beyond(xp, size, start, extent, turn, masks, edges, number)
    counts = number.tolist()
    most_x, most_y = (max((count[axis] for count in counts), default=0) for axis in (0, 1))
    _check_samples(max(most_x, most_y) * start.size * max(bins))
    _check_samples(len(rois) * bins[0] * bins[1] * most_x * most_y)
    return Regions(start, extent, step, number, divisor, part, counts, image, on, share, turn)


def _leave_out_what_is_beyond(
    xp: Any,
    size: tuple[int, int],
    start: Array,
    extent: Array,
    turn: Array,
    masks: Array,
    edges: Array,
    number: Array,
) -> None:
    """Write 0 to the `number` of regions that no sample can have on their image; of the masks the second is scratch."""
    low, high, reach = edges
    there = masks[1]
    for axis in (0, 1):
        if turn.size:
            # x reaches |cos| width / 2 + |sin| height / 2 from the centre.
            xp.abs(turn[0], out=reach)
            reach *= extent[:, axis]
            xp.abs(turn[1], out=low)
            low *= extent[:, 1 - axis]
            reach += low
            reach *= 0.5 + SLACK
            xp.subtract(turn[2 + axis], reach, out=low)
            xp.add(turn[2 + axis], reach, out=high)
        else:
            xp.add(start[:, axis], extent[:, axis], out=high)
            xp.fmin(start[:, axis], high, out=low)
            xp.fmax(start[:, axis], high, out=high)
        # What is compared with NaN is not there; nor is a region of infinite extent, whose samples are all NaN.
        number *= xp.greater_equal(high, -2, out=there)[:, None]
        number *= xp.less_equal(low, size[1 - axis] + 1, out=there)[:, None]
        number *= xp.isfinite(extent[:, axis], out=there)[:, None]


def _check_samples(count: int) -> None:
    """Their number follows from values, so that no shape has bounded it."""
    if count > MAX_SAMPLES:
        raise LimitError(f"rois: expected regions of at most {MAX_SAMPLES:,} samples in all, got {count:,}")


def bins_temps(
    device: str, n: int, pooled: tuple[int, int], channels: int, dtype: np.dtype[Any], *, spreads: bool
) -> list[Temp]:
    """Temporaries of `bins_of`, read by the sums of rows too: for a piece of the samples, at least one of every bin."""
    bins = pooled[0] * pooled[1]
    count = samples_of_piece(device, bins, channels, dtype.itemsize)
    rows = max(1, min(n, count // bins)) * bins
    return [
        *(Temp((rows, channels), dtype), Temp((0 if spreads else rows, channels), dtype)),
        *(Temp((3, count), "int64"), Temp((2, count), "float64"), Temp((2, count), "bool"), Temp((bins,), "int64")),
        *points_temps(count, dtype),
        *weighted_rows_temps(device, count, 4 * MAX_SAMPLES_AT_ONCE, channels, dtype, spreads=spreads),
    ]


class Bins(NamedTuple):
    """Some regions' samples.

    Attributes:
        at: which regions.
        first, last: whether no other samples of them came before, or follow.
        places, weights: for all bins (4 * samples, regions * bins); empty where they have no samples.
    """

    at: slice
    first: bool
    last: bool
    places: Array
    weights: Array


def _pieces(counts: list[list[int]], bins: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """Regions that are worked out together, from and to, and the most samples of a bin along x and y of these."""
    first = 0
    while first < len(counts):
        across, down = counts[first]
        last = first + 1
        while last < len(counts):
            x, y = max(across, counts[last][0]), max(down, counts[last][1])
            if min(x * y, MAX_SAMPLES_AT_ONCE) * (last + 1 - first) * bins > most:
                break
            across, down, last = x, y, last + 1
        yield first, last, across, down
        first = last


def bins_of(
    pooled: tuple[int, int], xp: Any, regions: Regions, size: tuple[int, int], own: int, temps: Arrays
) -> Iterator[Bins]:
    """The pieces of all regions' samples, as weighted rows of the pixels.

    Args:
        size: height and width of the images.
        own: for how many bins a pixel has channels of its own, side by side; 1 if not.
        temps: what `bins_temps` says.
    """
    _, _, numbers, parts, masks, bin_numbers = temps[:6]
    points, (rows, columns) = Points(*temps[6 : 6 + POINTS]), pooled
    bins = rows * columns
    count_up(xp, bin_numbers)
    for first, last, across, down in _pieces(regions.counts, bins, len(points.weight)):
        n, at = last - first, slice(first, last)
        if not across * down:
            yield Bins(at, True, True, points.places[:0], points.weights[:0])
        step = max(1, min(MAX_SAMPLES_AT_ONCE, len(points.weight) // (n * bins)))
        for start in range(0, across * down, step):
            pause()
            k = min(step, across * down - start)
            piece = points.cut(k * n * bins)
            sample = numbers[:2, :k]
            there, other = (mask[: k * n].reshape(k, n) for mask in masks)
            count_up(xp, sample[0])
            sample[0] += start
            xp.remainder(sample[0], across, out=sample[1])
            sample[0] //= across
            there[...] = True
            for axis, length in ((0, rows), (1, columns)):
                # Of regions x comes first.
                along = parts[0, : k * n * length].reshape(k, n, length)
                half = parts[1, : k * n].reshape(k, n)
                half[...] = sample[axis][:, None]
                half += 0.5
                half /= regions.divisor[at, 1 - axis]
                along[...] = bin_numbers[:length]
                along += half[..., None]
                along *= regions.step[at, 1 - axis, None]
                along += regions.start[at, 1 - axis, None]
                target = piece.at[axis].reshape(k, n, rows, columns)
                target[...] = along[..., None] if axis == 0 else along[:, :, None]
                there &= xp.less(sample[axis][:, None], regions.number[at, 1 - axis], out=other)
            if regions.turn.size:
                _turn(xp, piece, regions.turn[:, at, None], (k, n, bins))
            real = real_samples(xp, piece, 1, size).reshape(k, n, bins)
            real &= there[..., None]
            weight = piece.weight.reshape(k, n, bins)
            xp.copyto(weight, real)
            weight *= regions.share[at, None]
            write_neighbours(xp, piece, size)
            weigh(xp, piece, piece.near[0], piece.near[1])
            places = piece.places.reshape(4, k, n, bins)
            base = numbers[2, :n]
            xp.multiply(regions.image[at], size[0] * size[1], out=base)
            places += base[:, None]
            if own > 1:
                places *= own
                places += bin_numbers[:bins]
            yield Bins(
                at,
                not start,
                start + k == across * down,
                places.reshape(4 * k, n * bins),
                piece.weights.reshape(4 * k, n * bins),
            )


def _turn(xp: Any, points: Points, turn: Array, shape: tuple[int, ...]) -> None:
    """Turn positions that are relative to their regions' centres, and add these."""
    cos, sin, center_x, center_y = turn
    y, x, rotated, part = (
        array.reshape(shape) for array in (points.at[0], points.at[1], points.near[0, 0], points.near[0, 1])
    )
    xp.multiply(x, cos, out=rotated)
    rotated += xp.multiply(y, sin, out=part)
    rotated += center_x
    y *= cos
    y -= xp.multiply(x, sin, out=part)
    y += center_y
    x[...] = rotated
