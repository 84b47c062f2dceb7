"""Deformable position-sensitive pooling of few numbers: the weights of a bin's samples for the matrix of `few_bins`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array
from .few_bins import FewBins, bin_tables
from .psroi_pooling import round_half_up

__all__ = ["FewDeformedBins"]


class FewDeformedBins(FewBins):
    """Weights along x and y, of each sample's neighbours, added up for each bin.

    Args:
        p: the operator's parameters.
        rois, trans: its inputs; no trans: bins are not moved.
        data: data's shape.
    """

    def __init__(self, p: Any, rois: Array, trans: Array | None, data: tuple[int, ...]) -> None:
        rois = rois.astype(accumulation_type(rois.dtype), copy=False)
        tables = bin_tables(p.pooled_size, p.group_size, data[2:], rois.dtype)
        super().__init__(tables, rois, data, trans.shape[1] // 2 if trans is not None else 1)
        edges = round_half_up(np, rois[:, 1:])
        edges[:, 2:] += 1
        edges *= p.spatial_scale
        edges -= 0.5
        start = edges[:, :2]
        self.extents = np.maximum(edges[:, 2:] - start, 0.1)
        step = self.extents[:, :, None] / p.pooled_size
        # (classes, n, x and y, bins, samples)
        place = (tables.along * step + start[:, :, None])[None, ..., None]
        if trans is not None:
            part = trans.shape[2]
            column, row = tables.along.astype(np.int64) * part // p.pooled_size
            shift = trans.reshape(len(rois), self.classes, 2, part * part)[..., row * part + column].swapaxes(0, 1)
            moves = shift.astype(rois.dtype, copy=False) * p.trans_std * self.extents[:, :, None]
            place = place + moves[..., None]
        if p.sample_per_part > 1:
            place = place + np.arange(p.sample_per_part, dtype=rois.dtype) * (step / p.sample_per_part)[..., None]
        last = tables.last[:, :, None]
        real = (place >= -0.5) & (place <= last + 0.5)
        count = real.sum(axis=4, keepdims=True, dtype=rois.dtype)
        self.share = (real / np.maximum(count, 1))[..., None, :]
        self.away = np.fmin(np.fmax(place, 0), last)[..., None] - tables.places
        self.near = np.abs(self.away)

    def weights(self) -> Array:
        """(x and y, classes, n, bins, places): the bins' means."""
        return (self.share @ np.maximum(1 - self.near, 0))[..., 0, :].transpose(2, 0, 1, 3, 4)

    def slopes(self) -> Array:
        """The derivatives of `weights` by the bins' positions, in the same shape."""
        return (self.share @ (-np.sign(self.away) * (self.near < 1)))[..., 0, :].transpose(2, 0, 1, 3, 4)

    def move(self, p: Any, data: Array, flat: Array, gtrans: Array) -> None:
        """The gradient of trans: of each bin's position, added up over the bins of a part."""
        weights, slopes, part = self.weights(), self.slopes(), gtrans.shape[2]
        of_part = np.equal.outer(np.arange(p.pooled_size) * part // p.pooled_size, np.arange(part)).astype(flat.dtype)
        matrices = (self.matrix(slopes[0], weights[1]), self.matrix(weights[0], slopes[1]))
        for axis, matrix in enumerate(matrices):
            moved = (self.gather(matrix, data) * flat).sum(axis=1)
            moved = moved.reshape(self.classes, -1, p.pooled_size, p.pooled_size).swapaxes(0, 1)
            moved = of_part.T @ moved @ of_part
            gtrans[:, axis::2] = moved * (self.extents[:, axis] * p.trans_std)[:, None, None, None]
