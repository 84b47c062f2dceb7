"""Regions whose sides are parallel to the image's, as two products of matrices each.

The mean of a bin's bilinear samples is a weighted sum of pixels whose weights are a product of one along y and one
along x. So a region's bins are `along y @ pixels @ along x`, over the window of pixels that it covers, for all
channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from ..cache import elements
from ..compute import Array, Arrays, Temp
from ..index.counting import count_up
from ..index.positions import whole
from ..index.zero_weights import lost_to_zero_weights, weighted_sums
from ..pausing import pause
from .region_samples import Regions

__all__ = ["gather_windows", "spread_windows", "window_temps"]

_MAX_SAMPLES = 256
"""Maximum number of samples of a bin, along an axis, that are computed together."""


def _together(n: int, pooled: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Regions whose weights are worked out together, and samples of a bin along an axis."""
    longest = max(pooled)
    regions = max(1, min(n, elements(16 * longest * max(size))))
    return regions, max(1, min(_MAX_SAMPLES, elements(48) // (2 * regions * longest)))


def window_temps(
    n: int, pooled: tuple[int, int], size: tuple[int, int], channels: int, dtype: np.dtype[Any], *, gradient: bool
) -> list[Temp]:
    """Temporaries of this module's functions: windows' bounds, products of a region, weights of some regions."""
    (rows, columns), (height, width), longest = pooled, size, max(pooled)
    regions, samples = _together(n, pooled, size)
    entries = (samples, regions, 2, longest)
    return [
        *(Temp((n, 4), dtype), Temp((n, 4), "int64")),
        *(Temp((height, columns, channels), dtype), Temp((rows, columns, channels), dtype)),
        Temp((height * width * channels if gradient else 0,), dtype),
        *(Temp((regions, 2, longest, max(size)), dtype), Temp((regions, 2, longest), "int64")),
        *(Temp((longest,), "float64"), Temp((samples,), "float64")),
        *(Temp(entries, "float64"), *[Temp(entries, dtype)] * 4, *[Temp(entries, "int64")] * 2, Temp(entries, "bool")),
    ]


_OWN = 5
"""Temporaries before those of `_weights`."""


def _windows(
    xp: Any, regions: Regions, size: tuple[int, int], bounds: Array, numbers: Array
) -> list[tuple[int, int, int, int]]:
    """The pixels that each region may read: the first and behind the last along x, and along y."""
    for axis in (0, 1):
        low, high, last = bounds[:, 2 * axis], bounds[:, 2 * axis + 1], size[1 - axis] - 1
        start = regions.start[:, axis]
        xp.add(start, regions.extent[:, axis], out=high)
        xp.fmin(start, high, out=low)
        xp.fmax(start, high, out=high)
        for bound in (low, high):
            xp.fmax(xp.fmin(bound, last, out=bound), 0, out=bound)
            xp.floor(bound, out=bound)
        high += 2
        xp.minimum(high, last + 1, out=high)
    windows: list[tuple[int, int, int, int]] = whole(xp, bounds, numbers).tolist()
    return windows


def _weights(xp: Any, regions: Regions, size: tuple[int, int], temps: Arrays) -> Iterator[tuple[int, Array]]:
    """The number of the first of some regions, and their bins' weights along x and y (regions, 2, bins, pixels)."""
    along, rows, bins, samples, *scratch = temps
    n, (together, _, _, pixels) = len(regions.on), along.shape
    count_up(xp, bins)
    count_up(xp, rows.reshape(-1))
    rows *= pixels
    for first in range(0, n, together):
        at = slice(first, min(first + together, n))
        weights = along[: at.stop - first]
        weights[...] = 0
        most = max(map(max, regions.counts[at]))
        for start in range(0, most, len(samples)):
            pause()
            k = min(len(samples), most - start)
            sample = count_up(xp, samples[:k])
            sample += start
            position, where, cell, near, share, place, next_place, real = (
                array.reshape(-1)[: k * weights[..., 0].size].reshape(k, *weights.shape[:3]) for array in scratch
            )
            # A sample that a bin does not have, or is outside, or on no image, has no share.
            xp.less(sample[:, None, None, None], regions.number[at, :, None], out=real)
            xp.copyto(share, real)
            share *= regions.part[at, :, None]
            sample += 0.5
            xp.divide(sample[:, None, None, None], regions.divisor[at, :, None], out=position)
            position += bins
            position *= regions.step[at, :, None]
            position += regions.start[at, :, None]
            where[...] = position
            for axis in (0, 1):
                values, inside, last = where[:, :, axis], real[:, :, axis], size[1 - axis] - 1
                share[:, :, axis] *= xp.greater_equal(values, -1, out=inside)
                share[:, :, axis] *= xp.less_equal(values, last + 1, out=inside)
                xp.fmax(xp.fmin(values, last, out=values), 0, out=values)
            xp.floor(where, out=cell)
            xp.subtract(where, cell, out=near)
            near *= share
            share -= near
            xp.copyto(place, cell, casting="unsafe")
            xp.copyto(next_place, xp.ceil(where, out=cell), casting="unsafe")
            for positions, values in ((place, share), (next_place, near)):
                positions += rows[: len(weights)]
                xp.add.at(weights.reshape(-1), positions.reshape(-1), values.reshape(-1))
        yield first, weights


def _covered(
    xp: Any, table: Array, regions: Regions, size: tuple[int, int], pooled: tuple[int, int], temps: Arrays
) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield each region on an image: its number, its window of pixels, and the bins' weights along x and y over it."""
    windows, on = _windows(xp, regions, size, *temps[:2]), regions.on.tolist()
    images = regions.image.tolist()
    (rows, columns), (height, width) = pooled, size
    lines = table.reshape(-1, height, width, table.shape[1])
    for first, weights in _weights(xp, regions, size, temps[_OWN:]):
        for k, (along_x, along_y) in enumerate(weights, first):
            if on[k]:
                left, right, top, bottom = windows[k]
                window = lines[images[k], top:bottom, left:right]
                yield k, window, along_x[:columns, left:right], along_y[:rows, top:bottom]


def gather_windows(xp: Any, table: Array, regions: Regions, size: tuple[int, int], out: Array, temps: Arrays) -> None:
    """Write the bins (n, channel, rows, columns) of images of `size`: `table` has a row for each pixel."""
    _, _, scratch, product, _ = temps[:_OWN]
    pooled: tuple[int, int] = out.shape[2:]
    for k, on in enumerate(regions.on.tolist()):
        if not on:
            out[k] = 0
    for k, window, along_x, along_y in _covered(xp, table, regions, size, pooled, temps):
        across = scratch[: len(window)]
        # Row by row: what a product reads stays in the cache.
        xp.matmul(along_x, window, out=across)
        xp.matmul(along_y, across.reshape(len(across), -1), out=product.reshape(pooled[0], -1))
        if lost_to_zero_weights(xp, product):
            product[...] = weighted_sums(partial(_weigh, along_y, along_x), window)
        out[k] = product.transpose(2, 0, 1)


def spread_windows(xp: Any, table: Array, regions: Regions, size: tuple[int, int], gout: Array, temps: Arrays) -> None:
    """Add the gradient of `gather_windows` to that of its table."""
    _, _, scratch, product, total = temps[:_OWN]
    pooled: tuple[int, int] = gout.shape[2:]
    for k, window, along_x, along_y in _covered(xp, table, regions, size, pooled, temps):
        product[...] = gout[k].transpose(1, 2, 0)
        across = scratch[: len(window)]
        flat = across.reshape(len(across), -1)
        xp.matmul(along_y.T, product.reshape(pooled[0], -1), out=flat)
        part = total[: window.size].reshape(window.shape)
        xp.matmul(along_x.T, across, out=part)
        if lost_to_zero_weights(xp, part):
            part[...] = weighted_sums(partial(_weigh, along_y.T, along_x.T), product)
        window += part


def _weigh(along_y: Array, along_x: Array, pixels: Array, ones: bool) -> Array:
    """along y @ pixels (height, width, channel) @ along x, or by 1 in place of each weight."""
    rows, columns = (weights > 0 if ones else weights for weights in (along_y, along_x))
    return np.einsum("rh,hwc,pw->rpc", rows, pixels, columns, optimize=True)
