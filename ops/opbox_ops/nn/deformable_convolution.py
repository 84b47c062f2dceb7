"""_contrib_DeformableConvolution and _contrib_ModulatedDeformableConvolution: convolutions whose taps are moved.

data (batch, channel, height, width), weight (num_filter, channel / num_group, *kernel), bias (num_filter,), out
(batch, num_filter, *out), sized as a Convolution's. offset (batch, num_deformable_group * 2 * taps, *out) moves each of
the kernel's taps, by rows and by columns, for each place of out and each group of data's channels; the data is read
between its elements. With modulation, mask (batch, num_deformable_group * taps, *out) multiplies what is read.

    sample[c, k] = data[c] at (place stride - pad + k dilate + offset[k]) * mask[k]        out = weight @ sample + bias

Beyond the image samples are 0; the modulated one fades out over the last element, the other one does not.

    gweight = gout @ sample.T      gsample = weight.T @ gout      gdata = gsample mask spread over what was read
    goffset = sum over channels of gsample mask times the slope there      gmask = sum of gsample times what was read

Dai et al., "Deformable Convolutional Networks" (2017); Zhu et al., "Deformable ConvNets v2" (2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type, widened
from ..cache import SAMPLE_BLOCK
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Bool, Field, NonNegativeInt, Params, PositiveInt, Shape
from ..registry import Op, Slot, register, register_backward, unless
from .sampling import sample, sample_gradients, sampling_temps
from .window import spatial


class DeformableConvolutionParams(Params):
    kernel: Shape = Field(description="Height and width of the kernel.")
    stride: Shape = Field((), description="Step of the kernel; 1 by default.")
    dilate: Shape = Field((), description="Distance of the kernel's taps; 1 by default.")
    pad: Shape = Field((), description="Zeros before and after each spatial dimension; 0 by default.")
    num_filter: PositiveInt = Field(description="Channels of out.")
    num_group: PositiveInt = Field(1, description="Groups that channels and filters are split into.")
    num_deformable_group: PositiveInt = Field(1, description="Groups of channels that are moved together.")
    workspace: NonNegativeInt = Field(1024, description="Has no effect; for MXNet's files.")
    no_bias: Bool = Field(False, description="Leave bias out.")
    layout: Annotated[Literal["NCHW", "NCW", "NCDHW"] | None, BeforeValidator(lambda v: None if v == "None" else v)] = (
        Field(None, description="NCHW, which is the default, too.")
    )


class ModulatedParams(DeformableConvolutionParams):
    im2col_step: NonNegativeInt = Field(64, description="Has no effect; for MXNet's files.")
    positional = (
        *("kernel", "stride", "dilate", "pad", "num_filter", "num_group", "num_deformable_group", "workspace"),
        *("no_bias", "im2col_step", "layout"),
    )


_BIAS = Slot("bias", unless("no_bias"))


def window(p: DeformableConvolutionParams) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Strides, dilations and padding, by rows and by columns."""
    stride, dilate = spatial(p.stride, 2, 1, "stride", 1), spatial(p.dilate, 2, 1, "dilate", 1)
    return stride, dilate, spatial(p.pad, 2, 0, "pad", 0)


def _sizes(p: DeformableConvolutionParams, size: tuple[int, ...]) -> list[int]:
    """out's height and width (-1: unknown)."""
    sizes = []
    for n, k, s, d, q in zip(size, p.kernel, *window(p), strict=True):
        span = n + 2 * q - d * (k - 1) - 1
        if n >= 0 and span < 0:
            message = f"expected a height and width that the kernel {p.kernel} fits into, got {size}"
            raise ShapeError(message, side="input", index=0)
        sizes.append(span // s + 1 if n >= 0 else -1)
    return sizes


def _shapes(p: DeformableConvolutionParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.kernel) != 2 or min(p.kernel) < 1:
        raise ShapeError(f"kernel: expected a height and a width, got {p.kernel}")
    if p.layout not in (None, "NCHW"):
        raise ShapeError(f"layout: expected 'NCHW', as kernel has two dimensions, got {p.layout!r}")
    if p.num_filter % p.num_group:
        raise ShapeError(f"num_filter: expected a multiple of num_group {p.num_group}, got {p.num_filter}")
    modulated, taps = isinstance(p, ModulatedParams), math.prod(p.kernel)
    data = ins.rank(0, 4) or (-1,) * 4
    for groups in (p.num_group, p.num_deformable_group):
        if data[1] >= 0 and data[1] % groups:
            message = f"expected a number of channels that {groups} groups divide, got {data[1]}"
            raise ShapeError(message, side="input", index=0)
    weight_at = 3 if modulated else 2
    weight = ins.merge(weight_at, (p.num_filter, data[1] // p.num_group if data[1] >= 0 else -1, *p.kernel)) or ()
    if not p.no_bias:
        ins.merge(weight_at + 1, (p.num_filter,))
    out = outs.merge(0, (data[0], p.num_filter, *_sizes(p, data[2:]))) or ()
    places = (out[0], *out[2:])
    for k, channels in ((1, 2), (2, 1)) if modulated else ((1, 2),):
        shape = ins.merge(k, (places[0], p.num_deformable_group * channels * taps, *places[1:])) or ()
        places = (shape[0], *shape[2:])
    outs.merge(0, (places[0], p.num_filter, *places[1:]))
    ins.merge(0, (places[0], weight[1] * p.num_group if weight[1] >= 0 else -1, -1, -1))
    if modulated:
        ins.merge(1, (places[0], -1, *places[1:]))


class _Sizes(NamedTuple):
    """A call's sizes.

    Attributes:
        dtype: the type that is computed in.
        images: of a block, whose samples fit into SAMPLE_BLOCK.
        parts: images of a block times deformable groups.
        channels: of a deformable group.
        taps, places: of the kernel, and of an image of out.
        depth, filters: rows and columns of a group's weight.
        size: data's height and width.
    """

    dtype: np.dtype[Any]
    images: int
    parts: int
    channels: int
    taps: int
    places: int
    depth: int
    filters: int
    size: tuple[int, int]


def _sizes_of(p: DeformableConvolutionParams, data: ArraySpec, offset: ArraySpec) -> _Sizes:
    (batch, channels, height, width), groups = data.shape, p.num_deformable_group
    taps, places = math.prod(p.kernel), math.prod(offset.shape[2:])
    images = max(1, min(batch, SAMPLE_BLOCK // max(1, channels * taps * places)))
    depth, filters = channels // p.num_group * taps, p.num_filter // p.num_group
    parts, dtype = images * groups, accumulation_type(data.dtype)
    return _Sizes(dtype, images, parts, channels // groups, taps, places, depth, filters, (height, width))


def _wide(array: ArraySpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Temp:
    """Room for (a block of) an array in the type that is computed in, unless it is of that type."""
    return Temp(shape if array.dtype != dtype else (0,), dtype)


def _temps(p: DeformableConvolutionParams, call: CallSpec, *, gradients: bool = False) -> list[Temp]:
    """For a block of images: positions, those of the taps along an axis, samples; mask, weight and out (or its
    gradient) in the type that is computed in; with gradients those of the samples, weight, a product of it, bias and
    mask; what sampling needs.
    """
    data, offset, _, weight = split(p, call.inputs[1:] if gradients else call.inputs)
    s = _sizes_of(p, data, offset)
    n, out = s.taps * s.places, call.inputs[0] if gradients else call.outputs[0]
    samples, matrix = (s.parts, s.channels, n), (p.num_group, s.filters, s.depth)
    further = [samples, matrix, matrix, (p.num_filter,)] if gradients else []
    if gradients and isinstance(p, ModulatedParams):
        further += [(s.parts, n), samples if call.device != "cpu" else (0, 0, 0)]
    return [
        Temp((2, s.parts, n), s.dtype),
        Temp((max(k * n for k, n in zip(p.kernel, offset.shape[2:], strict=True)),), s.dtype),
        Temp(samples, s.dtype),
        _wide(data, s.dtype, (s.parts, 1, n) if isinstance(p, ModulatedParams) else (0,)),
        _wide(weight, s.dtype, matrix),
        _wide(out, s.dtype, (s.images, p.num_group, s.filters, s.places)),
        *(Temp(shape, s.dtype) for shape in further),
        *sampling_temps(call.device, s.parts, n, s.size, s.channels, s.dtype, gradients=gradients),
    ]


class _Block(NamedTuple):
    """A block of images.

    Attributes:
        at: which images.
        images: their deformable groups (parts, channels, height * width).
        y, x: where the taps are at every place (parts, taps * places).
        samples: room for what is read there (parts, channels, taps * places).
        grouped: the same memory as (images, group, channels of a group * taps, places).
        mask: (parts, 1, taps * places); None without modulation.
    """

    at: slice
    images: Array
    y: Array
    x: Array
    samples: Array
    grouped: Array
    mask: Array | None


def _blocks(
    p: DeformableConvolutionParams, xp: Any, s: _Sizes, data: Array, offset: Array, mask: Array | None, temps: Arrays
) -> Iterator[_Block]:
    """The blocks of a call; each uses the temporaries again."""
    groups = p.num_deformable_group
    for start in range(0, len(data) if s.channels * s.places else 0, s.images):
        at = slice(start, min(start + s.images, len(data)))
        count = at.stop - at.start
        parts = count * groups
        where, samples = temps[0][:, :parts], temps[2][:parts]
        _move(p, xp, offset[at].reshape(parts, *p.kernel, 2, *offset.shape[2:]), where, temps[1])
        part = None if mask is None else mask[at].reshape(parts, 1, -1)
        yield _Block(
            at,
            data[at].reshape(parts, s.channels, -1),
            where[0],
            where[1],
            samples,
            samples.reshape(count, p.num_group, s.depth, s.places),
            part if part is None else widened(part, temps[3][:parts]),
        )


def _move(p: DeformableConvolutionParams, xp: Any, offset: Array, where: Array, line: Array) -> None:
    """Write where each tap is at every place, along y and x, moved by offset (parts, *kernel, 2, *places)."""
    for axis, (step, distance, pad) in enumerate(zip(*window(p), strict=True)):
        moved, size = where[axis].reshape(*offset.shape[:3], *offset.shape[4:]), offset.shape[4 + axis]
        first = line[: p.kernel[axis] * size].reshape(p.kernel[axis], size)
        places = count_up(xp, first[0])
        places *= step
        places -= pad
        for tap in range(1, len(first)):
            xp.add(places, tap * distance, out=first[tap])
        base = first[:, None, :, None] if axis == 0 else first[:, None]
        xp.add(offset[:, :, :, axis], base, out=moved)


def split(p: DeformableConvolutionParams, inputs: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return (data, offset, mask or None, weight) of the inputs, be these arrays or their specs."""
    modulated = isinstance(p, ModulatedParams)
    return inputs[0], inputs[1], inputs[2] if modulated else None, inputs[3 if modulated else 2]


def _matrix(p: DeformableConvolutionParams, s: _Sizes, weight: Array, wide: Array) -> Array:
    """The weight of each group, in the type that is computed in."""
    return widened(weight.reshape(p.num_group, s.filters, s.depth), wide)


def _forward(p: DeformableConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, out, temps = ctx.xp, outputs[0], ctx.temp
    data, offset, mask, weight = split(p, inputs)
    s = _sizes_of(p, *split(p, ctx.call.inputs)[:2])
    matrix, wide, sampling = _matrix(p, s, weight, temps[4]), temps[5], temps[6:]
    if not s.depth:
        out[...] = 0
    for block in _blocks(p, xp, s, data, offset, mask, temps):
        sample(xp, block.images, block.y, block.x, s.size, block.samples, sampling, clamp=mask is None)
        if block.mask is not None:
            block.samples[...] *= block.mask
        target = out[block.at].reshape(-1, p.num_group, s.filters, s.places)
        value = target if out.dtype == s.dtype else wide[: len(target)]
        xp.matmul(matrix, block.grouped, out=value)
        if value is not target:
            target[...] = value
    if not p.no_bias:
        out += inputs[-1].reshape(-1, 1, 1)


def _sum_products(xp: Any, a: Array, b: Array, out: Array, scratch: Array) -> None:
    """Write the sums over channels of a b (parts, channels, n); room for the products is needed on a GPU."""
    if xp is np:
        np.einsum("pcn,pcn->pn", a, b, out=out)
    else:
        xp.sum(xp.multiply(a, b, out=scratch), axis=1, out=out)


def _backward(p: DeformableConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, gout, temps = ctx.xp, inputs[0], ctx.temp
    data, offset, mask, weight = split(p, inputs[1:])
    gdata, goffset, *rest = outputs
    gmask = rest.pop(0) if mask is not None else None
    s = _sizes_of(p, *split(p, ctx.call.inputs[1:])[:2])
    matrix, wide, (gsamples, gweight, product, gbias) = _matrix(p, s, weight, temps[4]), temps[5], temps[6:10]
    sampling = temps[10:] if mask is None else temps[12:]
    gweight[...] = 0
    for block in _blocks(p, xp, s, data, offset, mask, temps):
        count = block.at.stop - block.at.start
        g = widened(gout[block.at].reshape(count, p.num_group, s.filters, s.places), wide[:count])
        gparts = gsamples[: len(block.images)]
        xp.matmul(matrix.swapaxes(1, 2), g, out=gparts.reshape(block.grouped.shape))
        if rest[0] is not None or gmask is not None:
            sample(xp, block.images, block.y, block.x, s.size, block.samples, sampling, clamp=mask is None)
        if gmask is not None:
            total = temps[10][: len(gparts)]
            _sum_products(xp, gparts, block.samples, total, temps[11][: len(gparts)])
            gmask[block.at] = total.reshape(gmask[block.at].shape)
        if block.mask is not None:
            block.samples[...] *= block.mask
            gparts *= block.mask
        if rest[0] is not None:
            for one, columns in zip(g, block.grouped, strict=True):
                gweight += xp.matmul(one, columns.swapaxes(1, 2), out=product)
        if gdata is not None or goffset is not None:
            gimages = None if gdata is None else gdata[block.at].reshape(block.images.shape)
            slopes = None if goffset is None else (block.y, block.x)
            args = (xp, block.images, block.y, block.x, s.size, gparts, gimages, slopes, sampling)
            sample_gradients(*args, clamp=mask is None)
        if goffset is not None:
            target = goffset[block.at].reshape(len(gparts), s.taps, 2, s.places)
            for axis, slope in enumerate((block.y, block.x)):
                target[:, :, axis] = slope.reshape(len(gparts), s.taps, s.places)
    if rest[0] is not None:
        rest[0][...] = gweight.reshape(rest[0].shape)
    if not p.no_bias and rest[1] is not None:
        rest[1][...] = xp.sum(gout, axis=(0, 2, 3), dtype=s.dtype, out=gbias)


def _register(
    name: str, params: type[DeformableConvolutionParams], inputs: tuple[str | Slot, ...], doc: str
) -> tuple[Op, Op]:
    """The operator and its gradient."""
    op = register(name, params, inputs=inputs, doc=doc)
    backward = register_backward(f"_backward_{name}", params, outputs=inputs)
    op.infer_shape(_shapes)
    op.infer_type(all_same_float)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        count = len(node.inputs) - (0 if getattr(node.params, "no_bias", False) else 1)
        return backward_node(f"_backward_{name}", node, [*ograds, *node.inputs[:count]])

    op.compute(temps=_temps)(_forward)
    backward.compute(temps=partial(_temps, gradients=True))(_backward)
    return op, backward


plain, plain_backward = _register(
    "_contrib_DeformableConvolution",
    DeformableConvolutionParams,
    ("data", "offset", "weight", _BIAS),
    "A convolution whose taps are moved by offset.",
)
modulated, modulated_backward = _register(
    "_contrib_ModulatedDeformableConvolution",
    ModulatedParams,
    ("data", "offset", "mask", "weight", _BIAS),
    "A convolution whose taps are moved by offset and multiplied by mask.",
)
