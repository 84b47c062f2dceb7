"""im2col and col2im: the columns of a convolution's sliding windows, and what they add up to.

    im2col  data (batch, channel, *spatial) to out (batch, channel * prod(kernel), prod(windows)): a column for each
            window, row-major, with the values under it channel by channel; 0 where it is over the padding
    col2im  the transpose: data (batch, channel * prod(kernel), prod(windows)) to out (batch, channel, *output_size),
            where values of several windows add up

with windows = (spatial + 2 pad - dilate (kernel - 1) - 1) // stride + 1, for one to three spatial dimensions. Each is
the other's gradient. Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing"
(2006).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, known, show_shape
from ..node import Entry, Node
from ..params import Field, Params, Shape
from ..pausing import pause
from ..registry import register, register_backward
from .window import data_shape, spatial, under


class Im2colParams(Params):
    kernel: Shape = Field(description="Size of the window, one number a spatial dimension.")
    stride: Shape = Field((), description="Step of the window; 1 by default.")
    dilate: Shape = Field((), description="Distance of the window's taps; 1 by default.")
    pad: Shape = Field((), description="Zeros before and after each spatial dimension; 0 by default.")


class Col2imParams(Im2colParams):
    output_size: Shape = Field(description="Spatial dimensions of out.")
    positional = ("output_size", "kernel", "stride", "dilate", "pad")


im2col = register("im2col", Im2colParams)
col2im = register("col2im", Col2imParams)
im2col_backward = register_backward("_backward_im2col", Im2colParams, outputs=("data",))
col2im_backward = register_backward("_backward_col2im", Col2imParams, outputs=("data",))


def _strides(p: Im2colParams) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    ndim = len(p.kernel)
    if not 1 <= ndim <= 3 or min(p.kernel) < 1:
        raise ShapeError(f"kernel: expected one to three positive numbers, got {p.kernel}")
    stride, dilate = spatial(p.stride, ndim, 1, "stride", 1), spatial(p.dilate, ndim, 1, "dilate", 1)
    return stride, dilate, spatial(p.pad, ndim, 0, "pad", 0)


def _windows(p: Im2colParams, size: Sequence[int]) -> tuple[int, ...]:
    """Return the number of windows along each spatial dimension of `size` (-1: unknown)."""
    counts = []
    for n, k, s, d, q in zip(size, p.kernel, *_strides(p), strict=True):
        span = n + 2 * q - d * (k - 1) - 1
        if n >= 0 and span < 0:
            raise ShapeError(f"expected spatial dimensions that the kernel {p.kernel} fits into, got {tuple(size)}")
        counts.append(span // s + 1 if n >= 0 else -1)
    return tuple(counts)


@im2col.infer_shape
def _(p: Im2colParams, ins: ShapeList, outs: ShapeList) -> None:
    _strides(p)
    taps, data = math.prod(p.kernel), data_shape(ins, p.kernel) or (-1,) * (len(p.kernel) + 2)
    windows = _windows(p, data[2:])
    rows = data[1] * taps if data[1] >= 0 else -1
    out = outs.merge(0, (data[0], rows, math.prod(windows) if known(windows) else -1)) or ()
    ins.merge(0, (out[0], _channels(out[1], taps, "output"), *data[2:]))


@col2im.infer_shape
def _(p: Col2imParams, ins: ShapeList, outs: ShapeList) -> None:
    _strides(p)
    if len(p.output_size) != len(p.kernel) or min(p.output_size) < 1:
        message = f"output_size: expected {len(p.kernel)} positive numbers, as many as kernel has, got {p.output_size}"
        raise ShapeError(message)
    taps = math.prod(p.kernel)
    data = ins.merge(0, (-1, -1, math.prod(_windows(p, p.output_size)))) or ()
    out = outs.merge(0, (data[0], _channels(data[1], taps, "input"), *p.output_size)) or ()
    ins.merge(0, (out[0], out[1] * taps if out[1] >= 0 else -1, data[2]))


def _channels(rows: int, taps: int, side: str) -> int:
    if rows >= 0 and rows % taps:
        message = f"expected a second dimension that the kernel's {taps} taps divide, got {show_shape((rows,))}"
        raise ShapeError(message, side=side, index=0)
    return rows // taps if rows >= 0 else -1


@im2col.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_im2col", node, ograds)


@col2im.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_col2im", node, ograds)


def _taps(p: Im2colParams, image: Array, columns: Array) -> Iterator[tuple[Array, tuple[Any, ...], Array]]:
    """For each tap: its columns (batch, channel, *windows), where they are inside the image, the image there."""
    size = image.shape[2:]
    windows = _windows(p, size)
    split = columns.reshape(*image.shape[:2], math.prod(p.kernel), *windows)
    for number, tap in enumerate(itertools.product(*map(range, p.kernel))):
        pause()
        met = [under(t * d - q, o, s, n) for t, o, n, s, d, q in zip(tap, windows, size, *_strides(p), strict=True)]
        yield split[:, :, number], (..., *(valid for valid, _ in met)), image[(..., *(source for _, source in met))]


def _gather(p: Im2colParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    outputs[0][...] = 0
    for part, valid, source in _taps(p, inputs[0], outputs[0]):
        part[valid] = source


def _scatter(p: Im2colParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    total, columns = ctx.temp
    total[...] = 0
    columns[...] = inputs[0]
    for part, valid, target in _taps(p, total, columns):
        target += part[valid]
    outputs[0][...] = total


def _temps(p: Im2colParams, call: CallSpec) -> Sequence[Temp]:
    """Images are summed, and columns read, in the wide type: contiguous copies."""
    return [Temp(spec.shape, accumulation_type(spec.dtype)) for spec in (call.outputs[0], call.inputs[0])]


im2col.compute()(_gather)
col2im_backward.compute()(_gather)
col2im.compute(temps=_temps)(_scatter)
im2col_backward.compute(temps=_temps)(_scatter)
