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
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..cache import SAMPLE_BLOCK
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Bool, Field, NonNegativeInt, Params, PositiveInt, Shape
from ..registry import Op, Slot, register, register_backward, unless
from .sampling import Corners, FewCorners, corners
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


def _window(p: DeformableConvolutionParams) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    stride, dilate = spatial(p.stride, 2, 1, "stride", 1), spatial(p.dilate, 2, 1, "dilate", 1)
    return stride, dilate, spatial(p.pad, 2, 0, "pad", 0)


def _sizes(p: DeformableConvolutionParams, size: tuple[int, ...]) -> list[int]:
    """out's height and width (-1: unknown)."""
    sizes = []
    for n, k, s, d, q in zip(size, p.kernel, *_window(p), strict=True):
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


class _DeformableCall:
    """One call's arrays, in the type that is computed in, a block of images at a time."""

    def __init__(
        self, p: DeformableConvolutionParams, ctx: OpContext, data: Array, offset: Array, mask: Array | None
    ) -> None:
        self.p, self.ctx, self.dtype = p, ctx, accumulation_type(data.dtype)
        self.data, self.offset, self.mask = data, offset, mask
        self.taps, self.out = math.prod(p.kernel), offset.shape[2:]
        self.modulated = mask is not None

    def blocks(self) -> Iterator[slice]:
        """Images whose samples fit into SAMPLE_BLOCK."""
        batch, channels = self.data.shape[:2]
        sample_size = channels * self.taps * math.prod(self.out)
        step = max(1, SAMPLE_BLOCK // max(1, sample_size))
        for start in range(0, batch if sample_size else 0, step):
            yield slice(start, min(start + step, batch))

    def images(self, block: slice) -> Array:
        """(images * deformable groups, channels of a group, height * width)."""
        part, groups = self.data[block].astype(self.dtype, copy=False), self.p.num_deformable_group
        return part.reshape(part.shape[0] * groups, part.shape[1] // groups, -1)

    def masks(self, block: slice) -> Array:
        """(images * deformable groups, 1, taps * places); 1 without modulation."""
        if self.mask is None:
            return self.dtype.type(1)
        part = self.mask[block].astype(self.dtype, copy=False)
        return part.reshape(part.shape[0] * self.p.num_deformable_group, 1, -1)

    def read(self, block: slice) -> Corners | FewCorners:
        """The neighbours of every tap at every place: (images * deformable groups, taps * places)."""
        xp, p = self.ctx.xp, self.p
        part = self.offset[block].astype(self.dtype, copy=False)
        part = part.reshape(-1, *p.kernel, 2, *self.out)
        positions = []
        for axis, (s, d, q) in enumerate(zip(*_window(p), strict=True)):
            taps = xp.arange(p.kernel[axis]) * d - q
            places = xp.arange(self.out[axis]) * s
            # (kernel height, kernel width, height, width), with length 1 along the other axis.
            at = taps.reshape((-1, 1, 1, 1) if axis == 0 else (1, -1, 1, 1)) + places.reshape(
                (1, 1, -1, 1) if axis == 0 else (1, 1, 1, -1)
            )
            moved = part[:, :, :, axis] + at.astype(self.dtype)
            positions.append(moved.reshape(part.shape[0], -1))
        height, width = self.data.shape[2:]
        return corners(self.ctx, positions[0], positions[1], height, width, clamp=not self.modulated)

    def grouped(self, samples: Array, images: int) -> Array:
        """Samples as (images, group, channels of a group * taps, places)."""
        depth = self.data.shape[1] // self.p.num_group * self.taps
        return samples.reshape(images, self.p.num_group, depth, math.prod(self.out))


def _split(p: DeformableConvolutionParams, inputs: Arrays) -> tuple[Array, Array, Array | None, Array]:
    """data, offset, mask or None, weight."""
    modulated = isinstance(p, ModulatedParams)
    return inputs[0], inputs[1], inputs[2] if modulated else None, inputs[3 if modulated else 2]


def _forward(p: DeformableConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    data, offset, mask, weight = _split(p, inputs)
    call, out = _DeformableCall(p, ctx, data, offset, mask), outputs[0]
    matrix = weight.astype(call.dtype, copy=False).reshape(p.num_group, p.num_filter // p.num_group, -1)
    for block in call.blocks():
        samples = call.read(block).sample(ctx.xp, call.images(block)) * call.masks(block)
        value = matrix @ call.grouped(samples, block.stop - block.start)
        out[block] = value.reshape(out[block].shape)
    if not p.no_bias:
        out += inputs[-1].reshape(-1, 1, 1)


def _backward(p: DeformableConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, gout = ctx.xp, inputs[0]
    data, offset, mask, weight = _split(p, inputs[1:])
    gdata, goffset, *rest = outputs
    gmask = rest.pop(0) if mask is not None else None
    call = _DeformableCall(p, ctx, data, offset, mask)
    matrix = weight.astype(call.dtype, copy=False).reshape(p.num_group, p.num_filter // p.num_group, -1)
    gweight = xp.zeros(matrix.shape, call.dtype)
    for block in call.blocks():
        count, met, images, masks = block.stop - block.start, call.read(block), call.images(block), call.masks(block)
        g = gout[block].astype(call.dtype, copy=False).reshape(count, p.num_group, matrix.shape[1], -1)
        gsamples = (matrix.swapaxes(1, 2) @ g).reshape(*images.shape[:2], -1)
        plain = met.sample(xp, images) if rest[0] is not None or gmask is not None else None
        if rest[0] is not None:
            samples = call.grouped(plain * masks, count)
            gweight += (g @ samples.swapaxes(2, 3)).sum(axis=0)
        if gmask is not None:
            gmask[block] = (gsamples * plain).sum(axis=1).reshape(gmask[block].shape)
        gsamples *= masks
        if gdata is not None:
            gdata[block] = met.spread(xp, gsamples).reshape(gdata[block].shape)
        if goffset is not None:
            shape = (images.shape[0], call.taps, -1)
            slopes = [slope.reshape(shape) for slope in met.slopes(xp, images, gsamples)]
            goffset[block] = xp.stack(slopes, axis=2).reshape(goffset[block].shape)
    if rest[0] is not None:
        rest[0][...] = gweight.reshape(rest[0].shape)
    if not p.no_bias and rest[1] is not None:
        rest[1][...] = gout.sum(axis=(0, 2, 3), dtype=call.dtype)


def _register(name: str, params: type[DeformableConvolutionParams], inputs: tuple[str | Slot, ...], doc: str) -> Op:
    op = register(name, params, inputs=inputs, doc=doc)
    backward = register_backward(f"_backward_{name}", params, outputs=inputs)
    op.infer_shape(_shapes)
    op.infer_type(all_same_float)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        count = len(node.inputs) - (0 if getattr(node.params, "no_bias", False) else 1)
        return backward_node(f"_backward_{name}", node, [*ograds, *node.inputs[:count]])

    op.compute(allocates="the samples of a block of images")(_forward)
    backward.compute(allocates="the samples of a block of images, and their gradients")(_backward)
    return op


plain = _register(
    "_contrib_DeformableConvolution",
    DeformableConvolutionParams,
    ("data", "offset", "weight", _BIAS),
    "A convolution whose taps are moved by offset.",
)
modulated = _register(
    "_contrib_ModulatedDeformableConvolution",
    ModulatedParams,
    ("data", "offset", "mask", "weight", _BIAS),
    "A convolution whose taps are moved by offset and multiplied by mask.",
)
