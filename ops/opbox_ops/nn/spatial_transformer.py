"""GridGenerator, BilinearSampler and SpatialTransformer: images moved by what a network says.

data (batch, channel, height, width), grid (batch, 2, h, w), out (batch, channel, h, w). A grid says for each element of
out where it comes from: x in grid[:, 0] and y in grid[:, 1], from -1 (the first column or row of data) to 1 (the last).
BilinearSampler reads data there, between its elements, and 0 outside of it. GridGenerator makes a grid of

    affine   data (batch, 6), the rows of 2 x 3 matrices: grid = matrix @ (x, y, 1) for the (x, y) of target_shape
    warp     data (batch, 2, h, w), how far elements are moved: grid = (data + position) 2 / (size - 1) - 1

SpatialTransformer is both: out = BilinearSampler(data, GridGenerator(loc, affine, target_shape)), loc (batch, 6).

    gdata = gout spread over the elements read, with their weights        ggrid = gout times the slope there
    gloc = ggrid @ (x, y, 1).T                                            gwarp = ggrid 2 / (size - 1)

Jaderberg et al., "Spatial Transformer Networks" (2015).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Field, OptBool, Params, Shape
from ..registry import register, register_backward
from .sampling import Corners, FewCorners, corners

MAX_REMEMBERED = 4096
"""Elements of an image up to which its positions are kept: making them takes longer than a small call."""


class GridGeneratorParams(Params):
    transform_type: Literal["affine", "warp"] = Field(description="What data holds.")
    target_shape: Shape = Field((0, 0), description="Height and width of the grid, with transform_type 'affine'.")


class BilinearSamplerParams(Params):
    cudnn_off: OptBool = Field(None, description="Has no effect; for MXNet's files.")


class SpatialTransformerParams(Params):
    target_shape: Shape = Field((0, 0), description="Height and width of out.")
    transform_type: Literal["affine"] = Field(description="What loc holds.")
    sampler_type: Literal["bilinear"] = Field(description="How data is read.")
    cudnn_off: OptBool = Field(None, description="Has no effect; for MXNet's files.")


generator = register("GridGenerator", GridGeneratorParams, doc="Where each element of an image comes from: a grid.")
sampler = register("BilinearSampler", BilinearSamplerParams, inputs=("data", "grid"), doc="Images read at a grid.")
transformer = register(
    "SpatialTransformer", SpatialTransformerParams, inputs=("data", "loc"), doc="Images moved by affine matrices."
)
generator.infer_type(all_same_float)
sampler.infer_type(all_same_float)
transformer.infer_type(all_same_float)
generator_backward = register_backward("_backward_GridGenerator", GridGeneratorParams, outputs=("data",))
sampler_backward = register_backward("_backward_BilinearSampler", BilinearSamplerParams, outputs=("data", "grid"))
transformer_backward = register_backward(
    "_backward_SpatialTransformer", SpatialTransformerParams, outputs=("data", "loc")
)


def _target(p: GridGeneratorParams | SpatialTransformerParams) -> tuple[int, ...]:
    if len(p.target_shape) != 2 or min(p.target_shape) < 1:
        raise ShapeError(f"target_shape: expected a height and a width, got {p.target_shape}")
    return p.target_shape


@generator.infer_shape
def _(p: GridGeneratorParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.transform_type == "warp":
        ins.merge(0, outs.merge(0, ins.merge(0, (-1, 2, -1, -1))))
        return
    data = ins.merge(0, (-1, 6)) or ()
    out = outs.merge(0, (data[0], 2, *_target(p))) or ()
    ins.merge(0, (out[0], 6))


@sampler.infer_shape
def _(p: BilinearSamplerParams, ins: ShapeList, outs: ShapeList) -> None:
    data, grid = ins.rank(0, 4) or (-1,) * 4, ins.rank(1, 4) or (-1,) * 4
    out = outs.merge(0, (data[0], data[1], *grid[2:])) or ()
    out = outs.merge(0, (grid[0], *out[1:])) or ()
    ins.merge(0, (out[0], out[1], -1, -1))
    ins.merge(1, (out[0], 2, *out[2:]))


@transformer.infer_shape
def _(p: SpatialTransformerParams, ins: ShapeList, outs: ShapeList) -> None:
    data, loc = ins.rank(0, 4) or (-1,) * 4, ins.merge(1, (-1, 6)) or ()
    out = outs.merge(0, (data[0], data[1], *_target(p))) or ()
    out = outs.merge(0, (loc[0], *out[1:])) or ()
    ins.merge(0, (out[0], out[1], -1, -1))
    ins.merge(1, (out[0], 6))


@generator.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_GridGenerator", node, ograds)


@sampler.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_BilinearSampler", node, [*ograds, *node.inputs])


@transformer.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_SpatialTransformer", node, [*ograds, *node.inputs])


def _flat(array: Array) -> Array:
    """(batch, channel, height, width) as (batch, channel, height * width)."""
    return array.reshape(*array.shape[:2], array.shape[2] * array.shape[3])


def _positions(xp: Any, size: tuple[int, ...], dtype: Any) -> Array:
    """(x, y, 1) of each element of an image of `size`: (3, h * w)."""
    if xp is np and size[0] * size[1] <= MAX_REMEMBERED:
        return _kept_positions(tuple(size), np.dtype(dtype))
    y, x = (xp.linspace(-1, 1, n, dtype=dtype) if n > 1 else xp.full((1,), -1, dtype) for n in size)
    rows, columns = xp.meshgrid(y, x, indexing="ij")
    return xp.stack([columns.reshape(-1), rows.reshape(-1), xp.ones(columns.size, dtype)])


@lru_cache(maxsize=64)
def _kept_positions(size: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    y, x = (np.linspace(-1, 1, n, dtype=dtype) if n > 1 else np.full((1,), -1, dtype) for n in size)
    positions = np.ones((3, size[0] * size[1]), dtype)
    positions[0], positions[1] = np.tile(x, size[0]), np.repeat(y, size[1])
    positions.flags.writeable = False
    return positions


def _affine(xp: Any, matrices: Array, size: tuple[int, ...], dtype: Any) -> Array:
    """The grid (batch, 2, h * w) of matrices (batch, 6)."""
    grid: Array = matrices.astype(dtype, copy=False).reshape(matrices.shape[0], 2, 3) @ _positions(xp, size, dtype)
    return grid


def _half(xp: Any, size: tuple[int, ...], dtype: Any) -> Array:
    """(size - 1) / 2 of x and y, to be multiplied with a grid: (2, 1, 1)."""
    return xp.asarray([max(size[1] - 1, 1) / 2, max(size[0] - 1, 1) / 2], dtype).reshape(2, 1, 1)


@generator.compute(allocates="the grid in the type that is computed in")
def _(p: GridGeneratorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, data, dtype = ctx.xp, inputs[0], accumulation_type(inputs[0].dtype)
    if p.transform_type == "affine":
        outputs[0][...] = _affine(xp, data, p.target_shape, dtype).reshape(outputs[0].shape)
        return
    size = data.shape[2:]
    base = xp.stack(xp.meshgrid(xp.arange(size[1]), xp.arange(size[0])))
    outputs[0][...] = (data + base.astype(dtype)) / _half(xp, size, dtype) - 1


@generator_backward.compute(allocates="the gradient in the type that is computed in")
def _(p: GridGeneratorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    gout, dtype = inputs[0], accumulation_type(inputs[0].dtype)
    if p.transform_type == "affine":
        outputs[0][...] = _back_to_matrices(ctx.xp, gout, dtype)
    else:
        outputs[0][...] = gout / _half(ctx.xp, gout.shape[2:], dtype)


def _back_to_matrices(xp: Any, ggrid: Array, dtype: Any) -> Array:
    """The gradient of matrices (batch, 6), from that of their grid (batch, 2, h, w)."""
    flat = _flat(ggrid.astype(dtype, copy=False))
    return (flat @ _positions(xp, ggrid.shape[2:], dtype).T).reshape(ggrid.shape[0], 6)


def _neighbours(ctx: OpContext, grid: Array, data: Array) -> Corners | FewCorners:
    """Of the grid's (batch, 2, n) positions in data."""
    height, width = data.shape[2:]
    return corners(ctx, (grid[:, 1] + 1) * ((height - 1) / 2), (grid[:, 0] + 1) * ((width - 1) / 2), height, width)


def _read(ctx: OpContext, data: Array, grid: Array, out: Array) -> None:
    """Write data at the grid (batch, 2, n) to `out`, in the grid's type."""
    if not data.size:
        out[...] = 0
    else:
        images = _flat(data).astype(grid.dtype, copy=False)
        out[...] = _neighbours(ctx, grid, data).sample(ctx.xp, images).reshape(out.shape)


def _read_back(ctx: OpContext, gout: Array, data: Array, grid: Array, gdata: Array | None) -> Array:
    """Write data's gradient, and return that of the grid, (batch, 2, h, w)."""
    xp, met = ctx.xp, _neighbours(ctx, grid, data)
    images = _flat(data).astype(grid.dtype, copy=False)
    gsamples = _flat(gout).astype(grid.dtype, copy=False)
    if gdata is not None:
        gdata[...] = met.spread(xp, gsamples).reshape(gdata.shape)
    gy, gx = met.slopes(xp, images, gsamples)
    height, width = data.shape[2:]
    ggrid = xp.stack([gx * ((width - 1) / 2), gy * ((height - 1) / 2)], axis=1)
    return ggrid.reshape(gout.shape[0], 2, *gout.shape[2:])


def _zero(outputs: Outputs) -> None:
    """What depends on images without elements."""
    for target in outputs:
        if target is not None:
            target[...] = 0


@sampler.compute(allocates="the neighbours of every position")
def _(p: BilinearSamplerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        data, grid = inputs[0], inputs[1].astype(accumulation_type(inputs[1].dtype), copy=False)
        _read(ctx, data, _flat(grid), outputs[0])


@sampler_backward.compute(allocates="the neighbours of every position")
def _(p: BilinearSamplerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, data, grid = inputs
    if not data.size or not gout.size:
        _zero(outputs)
    else:
        grid = _flat(grid.astype(accumulation_type(grid.dtype), copy=False))
        ggrid = _read_back(ctx, gout, data, grid, outputs[0])
        if outputs[1] is not None:
            outputs[1][...] = ggrid


@transformer.compute(allocates="the grid, and the neighbours of every position")
def _(p: SpatialTransformerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        grid = _affine(ctx.xp, inputs[1], p.target_shape, accumulation_type(inputs[1].dtype))
        _read(ctx, inputs[0], grid, outputs[0])


@transformer_backward.compute(allocates="the grid, and the neighbours of every position")
def _(p: SpatialTransformerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, data, loc = inputs
    if not data.size or not gout.size:
        _zero(outputs)
    else:
        dtype = accumulation_type(loc.dtype)
        grid = _affine(ctx.xp, loc, p.target_shape, dtype)
        ggrid = _read_back(ctx, gout, data, grid, outputs[0])
        if outputs[1] is not None:
            outputs[1][...] = _back_to_matrices(ctx.xp, ggrid, dtype)
