"""Correlation: how alike two images are around each place, for every displacement of the second one.

data1 and data2 (batch, channel, height, width), padded with pad_size zeros; out (batch, (2 r + 1)^2, *places), with
r = max_displacement // stride2 and places = ceil((size + 2 pad_size - 2 max_displacement - kernel_size + 1) / stride1).
Channel (2 r + 1) a + b of out is for the displacement (a - r, b - r) stride2:

    out = sum over channels and a kernel of kernel_size of data1 * data2 displaced, / (kernel_size^2 channels)

or of |data1 - data2| without is_multiply. gdata1 = gout data2 and gdata2 = gout data1 at the places that met, divided
likewise; without is_multiply gout by the difference's sign. Dosovitskiy et al., "FlowNet" (2015).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type
from ..cache import elements
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape, size_of
from ..node import Entry, Node
from ..params import Bool, Count, Field, NonNegativeInt, Params, PositiveInt
from ..pausing import pause
from ..registry import register, register_backward


class CorrelationParams(Params):
    kernel_size: Count = Field(1, description="Size of the kernel; odd.")
    max_displacement: NonNegativeInt = Field(1, description="How far data2 is displaced, in elements.")
    stride1: PositiveInt = Field(1, description="Distance of the places in data1.")
    stride2: PositiveInt = Field(1, description="Distance of the displacements.")
    pad_size: NonNegativeInt = Field(0, description="Zeros around the images.")
    is_multiply: Bool = Field(True, description="Multiply, or else take the absolute difference.")


_BOTH = ("data1", "data2")

op = register("Correlation", CorrelationParams, inputs=_BOTH)
op.infer_type(all_same_float)
backward = register_backward("_backward_Correlation", CorrelationParams, outputs=_BOTH)


@op.infer_shape
def _(p: CorrelationParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.kernel_size % 2 == 0:
        raise ParamError(f"Correlation: parameter 'kernel_size': expected an odd number, got {p.kernel_size}")
    data = ins.rank(0, 4)
    data = ins.merge(0, ins.merge(1, data)) or (-1,) * 4
    sizes = []
    for n in data[2:]:
        free = n + 2 * p.pad_size - 2 * p.max_displacement - p.kernel_size + 1
        if n >= 0 and free < 1:
            message = f"expected images that kernel and displacements fit into, got {show_shape(data)}"
            raise ShapeError(message, side="input", index=0)
        sizes.append(-(-free // p.stride1) if n >= 0 else -1)
    out = outs.merge(0, (data[0], width_of(p) ** 2, *sizes)) or ()
    for k in (0, 1):
        ins.merge(k, (out[0], *data[1:]))


def width_of(p: CorrelationParams) -> int:
    """Displacements along one dimension."""
    return 2 * (p.max_displacement // p.stride2) + 1


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Correlation", node, [*ograds, *node.inputs])


def _padded(p: CorrelationParams, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:2], *(n + 2 * p.pad_size for n in shape[2:]))


def _pad(p: CorrelationParams, data: Array, target: Array) -> None:
    target[...] = 0
    _inside(p, target)[...] = data


def _inside(p: CorrelationParams, padded: Array) -> Array:
    """The image without its padding: a view."""
    q = p.pad_size
    return padded[:, :, q : padded.shape[2] - q, q : padded.shape[3] - q]


def _meetings(p: CorrelationParams, places: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...], tuple[Any, ...]]]:
    """For each displacement and tap of the kernel: channel of out, the places in data1 and in data2."""
    radius = p.max_displacement // p.stride2
    shifts = range(-radius * p.stride2, (radius + 1) * p.stride2, p.stride2)
    for channel, (dy, dx) in enumerate(itertools.product(shifts, repeat=2)):
        for ty, tx in itertools.product(range(p.kernel_size), repeat=2):
            pause()
            begins = (p.max_displacement + ty, p.max_displacement + tx)
            first = tuple(slice(b, b + (n - 1) * p.stride1 + 1, p.stride1) for b, n in zip(begins, places, strict=True))
            second = tuple(slice(s.start + d, s.stop + d, s.step) for s, d in zip(first, (dy, dx), strict=True))
            yield channel, (..., *first), (..., *second)


def scale_of(p: CorrelationParams, channels: int) -> float:
    """What sums over the kernel and the channels are multiplied by."""
    return 1.0 / max(1, p.kernel_size**2 * channels)


def _piece(image: ArraySpec, places: tuple[int, ...]) -> tuple[int, int]:
    """Images, and channels of each, whose products of one displacement are worked out together: they fit the cache."""
    batch, channels = image.shape[:2]
    planes = max(1, elements(2 * accumulation_type(image.dtype).itemsize) // max(size_of(places), 1))
    images = max(1, min(batch, planes // max(channels, 1)))
    return images, max(1, min(channels, planes))


def _pieces(image: ArraySpec, places: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """The slices of images and of channels that are worked out together."""
    images, channels = _piece(image, places)
    return [
        (slice(n, min(n + images, image.shape[0])), slice(c, min(c + channels, image.shape[1])))
        for n in range(0, image.shape[0], images)
        for c in range(0, image.shape[1], channels)
    ]


def _temps(p: CorrelationParams, call: CallSpec) -> Sequence[Temp]:
    """Both images padded, and out, in the type that is added in; sums over channels, and the differences of a piece."""
    image, out = call.inputs[0], call.outputs[0]
    dtype, places = accumulation_type(image.dtype), out.shape[2:]
    piece = (0, 0) if p.is_multiply else _piece(image, places)
    return [
        *[Temp(_padded(p, image.shape), dtype)] * 2,
        *(Temp(shape, dtype) for shape in (out.shape, (out.shape[0], *places), (*piece, *places))),
    ]


def _back_temps(p: CorrelationParams, call: CallSpec) -> Sequence[Temp]:
    """Both images padded, and their gradients; gout of a displacement, and a piece's products, or its larger ones."""
    gout, image = call.inputs[0], call.inputs[1]
    dtype, places = accumulation_type(image.dtype), gout.shape[2:]
    piece = (*_piece(image, places), *places)
    return [
        *[Temp(_padded(p, image.shape), dtype)] * 4,
        *(Temp((gout.shape[0], 1, *places), dtype), Temp(piece, dtype)),
        Temp((0,) * 4 if p.is_multiply else piece, "bool"),
    ]


def _dot_channels(xp: Any, a: Array, b: Array, out: Array) -> None:
    """Write the sums over channels of a b; CuPy's einsum takes no array to write to."""
    if xp is np:
        np.einsum("nchw,nchw->nhw", a, b, out=out)
    else:
        out[...] = xp.einsum("nchw,nchw->nhw", a, b)


@op.compute(temps=_temps)
def _(p: CorrelationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, (one, two, total, part, scratch) = ctx.xp, ctx.temp
    _pad(p, inputs[0], one)
    _pad(p, inputs[1], two)
    if p.kernel_size > 1:
        total[...] = 0
    for at in _pieces(ctx.call.inputs[0], total.shape[2:]):
        images, channels = at
        first, second, sums, added = one[at], two[at], total[images], part[images]
        fresh = p.kernel_size == 1 and channels.start == 0
        apart = scratch[: len(first), : first.shape[1]]
        for channel, here, there in _meetings(p, total.shape[2:]):
            target = sums[:, channel]
            into = target if fresh else added
            if p.is_multiply:
                _dot_channels(xp, first[here], second[there], into)
            else:
                xp.subtract(first[here], second[there], out=apart)
                xp.sum(xp.abs(apart, out=apart), axis=1, out=into)
            if not fresh:
                target += added
    total *= scale_of(p, one.shape[1])
    outputs[0][...] = total


@backward.compute(temps=_back_temps)
def _(p: CorrelationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, xp, (one, two, gone, gtwo, gchannel, scratch, mask) = inputs[0], ctx.xp, ctx.temp
    _pad(p, inputs[1], one)
    _pad(p, inputs[2], two)
    gone[...] = 0
    gtwo[...] = 0
    scale = one.dtype.type(scale_of(p, one.shape[1]))
    for at in _pieces(ctx.call.inputs[1], gout.shape[2:]):
        arrays = [array[at] for array in (one, two, gone, gtwo)]
        count = arrays[0].shape[:2]
        product, larger = scratch[: count[0], : count[1]], mask[: count[0], : count[1]]
        gpart, g = gout[at[0]], gchannel[: count[0]]
        for channel, here, there in _meetings(p, gout.shape[2:]):
            a, b, ga, gb = arrays[0][here], arrays[1][there], arrays[2][here], arrays[3][there]
            xp.multiply(gpart[:, channel, None], scale, out=g)
            if p.is_multiply:
                ga += xp.multiply(g, b, out=product)
                gb += xp.multiply(g, a, out=product)
            else:
                # The difference's sign: 1 or 0, twice that, less 1.
                xp.copyto(product, xp.greater_equal(a, b, out=larger))
                product *= 2
                product -= 1
                product *= g
                ga += product
                gb -= product
    for target, total in zip(outputs, (gone, gtwo), strict=True):
        if target is not None:
            target[...] = _inside(p, total)
