"""Bilinear sampling: images read between their elements, and the gradients of that.

An image's value at (y, x) is that of its four neighbours, weighted by their nearness; what lies outside of the image
counts as 0, unless its edges are extended over the last half-open element (`clamp`). The images' elements are rows of a
table, their channels side by side, and samples are weighted sums of rows (`index.weighted_rows`), a piece of the
positions at a time. Images are (m, channel, height * width), positions (m, n), samples (m, channel, n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cache import elements
from ..compute import Array, Arrays, Temp
from ..index.counting import count_up
from ..index.weighted_rows import gather_rows, row_products, spread_rows, weighted_rows_temps
from ..pausing import pause

__all__ = ["sample", "sample_gradients", "sampling_temps"]


class _SampleTemps(NamedTuple):
    """The temporaries of a call; P positions are a piece.

    Attributes:
        columns: the images' elements, their channels side by side, and zeros (m * height * width + 1, channel).
        total: their gradients, for these.
        rows: samples, or their gradients (P, channel).
        starts: where the elements of each image begin (m,).
        last: the last row and column of an image (2, 1).
        at: positions along y and x (2, P).
        near, side, cell: along both axes for both neighbours (2, 2, P): how near they are, 0 where they do not count;
            the derivative of that; where they are.
        real: which of them are in the image (2, 2, P).
        beside: a number for each (P,).
        whole: their numbers (2, 2, P).
        places: the four neighbours' rows (4, P); that of zeros for those that do not count.
        weights, products: a number for each (4, P).
        gather: what the sums of rows need.
    """

    columns: Array
    total: Array
    rows: Array
    starts: Array
    last: Array
    at: Array
    near: Array
    side: Array
    cell: Array
    real: Array
    beside: Array
    whole: Array
    places: Array
    weights: Array
    products: Array
    gather: Arrays


def _piece(device: str, m: int, n: int, channels: int, itemsize: int) -> int:
    """Positions of a piece: of whole images, or of a part of one."""
    most = elements(22 * itemsize + 10 * 8 + channels * itemsize) if device == "cpu" else m * n
    return max(1, min(m, most // max(n, 1)) * n if n <= most else most)


def sampling_temps(
    device: str, m: int, n: int, size: Sequence[int], channels: int, dtype: np.dtype[Any], *, gradients: bool = False
) -> list[Temp]:
    """List the temporaries of `sample`, or with `gradients` of `sample_gradients`.

    The images in another order (and their gradients), and room for a piece of the positions that fits the cache.
    """
    piece, table = _piece(device, m, n, channels, dtype.itemsize), (m * size[0] * size[1] + 1, channels)
    corners = [Temp((2, 2, piece), kind) for kind in (dtype, dtype, dtype, "bool")]
    return [
        Temp(table, dtype),
        Temp(table if gradients else (0, 0), dtype),
        Temp((piece, channels), dtype),
        Temp((m,), "int64"),
        *(Temp((2, 1), dtype), Temp((2, piece), dtype)),
        *corners,
        *(Temp((piece,), "bool"), Temp((2, 2, piece), "int64")),
        *(Temp((4, piece), kind) for kind in ("int64", dtype)),
        Temp((4, piece if gradients else 0), dtype),
        *weighted_rows_temps(device, piece, 4, channels, dtype, spreads=gradients),
    ]


def _pieces(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, slice]]:
    """The images and the positions of each piece."""
    m, n = shape
    if not m * n:
        return
    images, step = (max(1, most // n), n) if n <= most else (1, most)
    for first in range(0, m, images):
        for start in range(0, n, step):
            pause()
            yield slice(first, min(first + images, m)), slice(start, min(start + step, n))


def _begin(xp: Any, images: Array, size: Sequence[int], temps: Arrays) -> _SampleTemps:
    """Put the images' channels side by side."""
    scratch = _SampleTemps._make((*temps[:15], temps[15:]))
    (m, channels, count), (height, width) = images.shape, size
    columns = scratch.columns[:-1].reshape(m, count, channels)
    scratch.columns[-1] = 0
    if channels == 1:
        columns[...] = images.reshape(m, count, 1)
    else:
        columns[...] = images.swapaxes(1, 2)
    xp.multiply(count_up(xp, scratch.starts), count, out=scratch.starts)
    scratch.last[0], scratch.last[1] = height - 1, width - 1
    return scratch


def _meet(
    xp: Any, y: Array, x: Array, at: tuple[slice, slice], size: Sequence[int], scratch: _SampleTemps, *, clamp: bool
) -> _SampleTemps:
    """Work out the neighbours of a piece's positions; what is returned has their number, not a piece's."""
    images, part = at
    shape = (images.stop - images.start, part.stop - part.start)
    count = shape[0] * shape[1]
    if count < scratch.at.shape[1]:
        scratch = scratch._replace(
            rows=scratch.rows[:count],
            beside=scratch.beside[:count],
            at=scratch.at.reshape(-1)[: 2 * count].reshape(2, count),
            **{
                name: getattr(scratch, name).reshape(-1)[: 4 * count].reshape(2, 2, count)
                for name in ("near", "side", "cell", "real", "whole")
            },
            **{
                name: getattr(scratch, name).reshape(-1)[: 4 * count].reshape(-1, count)
                for name in ("places", "weights", "products")
            },
        )
    where, near, side, cell, real, last = (
        scratch.at,
        scratch.near,
        scratch.side,
        scratch.cell,
        scratch.real,
        scratch.last,
    )
    pair = where.reshape(2, *shape)
    pair[0], pair[1] = y[at], x[at]
    if clamp:
        inside = real[0]
        xp.greater_equal(where, 0, out=inside)
        xp.less(where, xp.add(last, 1, out=cell[0, :, :1]), out=real[1])
        inside &= real[1]
        inside[0] &= inside[1]
        side[1] = inside[0]
        side[0] = 1
    # Positions far outside would not fit an integer.
    far = float(max(size) + 2)
    xp.maximum(xp.minimum(where, far, out=where), -far, out=where)
    xp.floor(where, out=cell[:, 0])
    xp.add(cell[:, 0], 1, out=cell[:, 1])
    xp.subtract(where, cell[:, 0], out=near[:, 1])
    xp.subtract(1, near[:, 1], out=near[:, 0])
    # A neighbour of what is no number is somewhere, all the same.
    inner = xp.fmin(cell, last[:, None], out=scratch.weights.reshape(2, 2, count))
    xp.fmax(inner, 0, out=inner)
    if not clamp:
        xp.equal(inner, cell, out=real)
        xp.copyto(side, real)
    near *= side
    xp.not_equal(side, 0, out=real)
    side[:, 0] *= -1
    whole = scratch.whole
    xp.copyto(whole, inner, casting="unsafe")
    whole[0] *= size[1]
    rows = whole[0].reshape(2, *shape)
    rows += scratch.starts[images, None]
    places = scratch.places.reshape(2, 2, count)
    xp.add(whole[0][:, None], whole[1], out=places)
    # An infinity beside a neighbour that does not count is not multiplied by 0.
    for i in (0, 1):
        for j in (0, 1):
            xp.logical_and(real[0, i], real[1, j], out=scratch.beside)
            xp.logical_not(scratch.beside, out=scratch.beside)
            xp.copyto(places[i, j], len(scratch.columns) - 1, where=scratch.beside)
    return scratch


def sample(
    xp: Any,
    images: Array,
    y: Array,
    x: Array,
    size: Sequence[int],
    out: Array,
    temps: Arrays,
    *,
    clamp: bool = False,
) -> None:
    """Write the samples at (y, x), in elements, of images of `size` (height, width) to `out` (m, channel, n).

    It computes in the positions' type; `temps` is what `sampling_temps` says.
    """
    whole = _begin(xp, images, size, temps)
    for at in _pieces(y.shape, whole.at.shape[1]):
        scratch = _meet(xp, y, x, at, size, whole, clamp=clamp)
        _weigh(xp, scratch.near[0], scratch.near[1], scratch.weights)
        gather_rows(xp, scratch.columns, scratch.places, scratch.weights, scratch.rows, scratch.gather)
        target = out[at[0], :, at[1]]
        target[...] = scratch.rows.reshape(len(target), -1, images.shape[1]).swapaxes(1, 2)


def _weigh(xp: Any, along_y: Array, along_x: Array, weights: Array) -> None:
    """Write the products of the neighbours' numbers along y and x (2, P)."""
    xp.multiply(along_y[:, None], along_x, out=weights.reshape(2, *along_x.shape))


def sample_gradients(
    xp: Any,
    images: Array,
    y: Array,
    x: Array,
    size: Sequence[int],
    gsamples: Array,
    gimages: Array | None,
    slopes: tuple[Array, Array] | None,
    temps: Arrays,
    *,
    clamp: bool = False,
) -> None:
    """Write the gradients of images, and of y and x, from those of the samples.

    Args:
        gimages: like images; None where nobody wants it.
        slopes: the gradients of y and x, which may be y and x themselves; None where nobody wants them.
        temps: what `sampling_temps` says with `gradients`.
    """
    whole = _begin(xp, images, size, temps)
    whole.total[...] = 0
    channels = images.shape[1]
    for at in _pieces(y.shape, whole.at.shape[1]):
        scratch = _meet(xp, y, x, at, size, whole, clamp=clamp)
        part = gsamples[at[0], :, at[1]]
        rows = scratch.rows.reshape(len(part), -1, channels)
        rows[...] = part.swapaxes(1, 2)
        if gimages is not None:
            _weigh(xp, scratch.near[0], scratch.near[1], scratch.weights)
            spread_rows(xp, scratch.total, scratch.places, scratch.weights, scratch.rows, scratch.gather)
        if slopes is not None:
            row_products(xp, scratch.columns, scratch.places, scratch.rows, scratch.products, scratch.gather)
            for slope, along_y, along_x in (
                (slopes[0], scratch.side[0], scratch.near[1]),
                (slopes[1], scratch.near[0], scratch.side[1]),
            ):
                _weigh(xp, along_y, along_x, scratch.weights)
                scratch.weights[...] *= scratch.products
                target = slope[at]
                xp.sum(scratch.weights.reshape(4, *target.shape), axis=0, out=target)
    if gimages is not None:
        gimages[...] = whole.total[:-1].reshape(images.shape[0], -1, channels).swapaxes(1, 2)
