"""Regions of interest: which image each is on, and pooling by bilinear samples of the images.

What pools a region by interpolation is linear in data: every bin of the output is a weighted sum of a few pixels, with
the same weights for many channels. Pixels are rows of a table, their channels side by side, and bins weighted sums of
rows (`index.weighted_rows`), a piece of the samples at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from opbox_protocol.errors import ShapeError

from ..cache import elements
from ..compute import Array, Temp
from ..index.positions import whole
from ..infer import ShapeList

__all__ = [
    "POINTS",
    "Points",
    "check_size",
    "images_of",
    "infer_regions",
    "points_temps",
    "real_samples",
    "round_half_up",
    "samples_of_piece",
    "weigh",
    "write_images",
    "write_neighbours",
]


def infer_regions(ins: ShapeList, outs: ShapeList, channels: int, pooled: tuple[int, int], width: int) -> None:
    """data (batch, channel, height, width), rois (n, `width`), out (n, `channels`, *pooled)."""
    ins.rank(0, 4)
    rois = ins.merge(1, (-1, width))
    assert rois is not None
    out = outs.merge(0, (rois[0], channels, *pooled))
    assert out is not None
    ins.merge(1, (out[0], width))


def check_size(size: Sequence[int]) -> tuple[int, int]:
    """The pooled height and width."""
    if len(size) != 2 or min(size) < 1:
        raise ShapeError(f"pooled_size: expected two positive numbers (height, width), got {tuple(size)}")
    return size[0], size[1]


def images_of(xp: Any, rois: Array, batch: int) -> tuple[Array, Array]:
    """The image of each region, and which regions are on none (their number is out of range)."""
    image = rois[:, 0].astype(xp.int64)
    nowhere = (image < 0) | (image >= batch)
    return xp.where(nowhere, 0, image), nowhere


def write_images(xp: Any, rois: Array, batch: int, image: Array, masks: Array) -> Array:
    """Write the image of each region to `image` (int64), 0 for those on none.

    Returns:
        Which regions are on an image: the first of masks (2, n), which it writes; the second says which are not.
    """
    on, nowhere = masks
    whole(xp, rois[:, 0], image)
    xp.less(image, batch, out=on)
    xp.greater_equal(image, 0, out=nowhere)
    on &= nowhere
    xp.copyto(image, 0, where=xp.logical_not(on, out=nowhere))
    return on


def round_half_up(xp: Any, x: Array, out: Array) -> Array:
    """Write C's round of `x` to `out`, halves away from zero, and return it."""
    xp.copysign(x.dtype.type(0.5), x, out=out)
    out += x
    return xp.trunc(out, out=out)


class Points(NamedTuple):
    """Room for the samples of a piece, P of them, and what is worked out for them.

    Attributes:
        at: where they are along y and x (2, P).
        weight: of each (P,).
        near, cell: for both neighbours along both axes (2, 2, P): how near they are, where they are.
        masks: (2, P).
        whole: the neighbours' numbers (2, 2, P).
        places, weights: of the four neighbours (4, P).
    """

    at: Array
    weight: Array
    near: Array
    cell: Array
    masks: Array
    whole: Array
    places: Array
    weights: Array

    def cut(self, count: int) -> Points:
        """The same memory for `count` samples."""
        sides = [array.shape[:-1] for array in self]
        flat = (array.reshape(-1)[: math.prod(side) * count] for array, side in zip(self, sides, strict=True))
        return Points(*(array.reshape(*side, count) for array, side in zip(flat, sides, strict=True)))


POINTS = len(Points._fields)


def points_temps(count: int, dtype: np.dtype[Any]) -> list[Temp]:
    """The arrays of `Points`."""
    pairs, four = (2, 2, count), (4, count)
    return [
        *(Temp((2, count), dtype), Temp((count,), dtype), Temp(pairs, dtype), Temp(pairs, dtype)),
        *(Temp((2, count), "bool"), Temp(pairs, "int64"), Temp(four, "int64"), Temp(four, dtype)),
    ]


def write_neighbours(xp: Any, points: Points, size: Sequence[int]) -> None:
    """Write places (row * width + column) and nearness of the four pixels around positions, clamped to the image.

    On a pixel, and at the edge that a position was clamped to, both neighbours are one.
    """
    for positions, n in zip(points.at, size, strict=True):
        xp.fmax(xp.fmin(positions, n - 1, out=positions), 0, out=positions)
    first, second = points.cell[:, 0], points.cell[:, 1]
    xp.floor(points.at, out=first)
    xp.subtract(points.at, first, out=points.near[:, 1])
    xp.subtract(1, points.near[:, 1], out=points.near[:, 0])
    xp.ceil(points.at, out=second)
    xp.copyto(points.whole, points.cell, casting="unsafe")
    points.whole[0] *= size[1]
    xp.add(points.whole[0][:, None], points.whole[1], out=points.places.reshape(points.whole.shape))


def weigh(xp: Any, points: Points, along_y: Array, along_x: Array) -> None:
    """Write the products of the neighbours' numbers along y and x (2, P), times the samples' weights."""
    xp.multiply(along_y[:, None], along_x, out=points.weights.reshape(points.whole.shape))
    points.weights[...] *= points.weight


def samples_of_piece(device: str, least: int, channels: int, itemsize: int) -> int:
    """Return the number of samples of a piece: at least `least`, and on the CPU no more than fit the cache."""
    return max(least, 4 * elements(30 * itemsize + 80) if device == "cpu" else 1 << 20)


def real_samples(xp: Any, points: Points, margin: float, size: Sequence[int]) -> Array:
    """Return a mask of the samples no further than `margin` outside an image of `size`; written to the masks' first."""
    real, other = points.masks
    real[...] = True
    for positions, n, beyond in ((points.at[0], size[0], margin), (points.at[1], size[1], margin)):
        real &= xp.greater_equal(positions, -beyond, out=other)
        real &= xp.less_equal(positions, n - 1 + beyond, out=other)
    return real
