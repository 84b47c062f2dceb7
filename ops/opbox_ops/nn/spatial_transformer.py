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

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..infer import ShapeList, all_same_float, size_of
from ..node import Entry, Node
from ..params import Field, OptBool, Params, Shape
from ..registry import register, register_backward
from .sampling import sample, sample_gradients, sampling_temps

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


def _is_remembered(device: str, size: Sequence[int]) -> bool:
    """Return whether the positions of an image of `size` are remembered."""
    return device == "cpu" and size[0] * size[1] <= MAX_REMEMBERED


def _positions_temps(device: str, size: Sequence[int], dtype: np.dtype[Any]) -> list[Temp]:
    """Temporaries of `_positions`: the positions, and a row or column of them."""
    fresh = not _is_remembered(device, size)
    return [Temp((3, size[0] * size[1] if fresh else 0), dtype), Temp((max(size) if fresh else 0,), "float64")]


def _positions(xp: Any, size: Sequence[int], temps: Arrays) -> Array:
    """(x, y, 1) of each element of an image of `size`: (3, h * w)."""
    positions, line = temps
    if not positions.size and size[0] * size[1]:
        return _kept_positions(tuple(size), positions.dtype)
    x, y, one = positions.reshape(3, *size)
    one[...] = 1
    for target, n, length in ((x, size[1], (1, -1)), (y, size[0], (-1, 1))):
        along = count_up(xp, line[:n])
        along *= 2 / max(n - 1, 1)
        along -= 1
        if n > 1:
            along[-1:] = 1
        target[...] = along.reshape(length)
    return positions


@lru_cache(maxsize=64)
def _kept_positions(size: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    y, x = (np.linspace(-1, 1, n, dtype=dtype) if n > 1 else np.full((1,), -1, dtype) for n in size)
    positions = np.ones((3, size[0] * size[1]), dtype)
    positions[0], positions[1] = np.tile(x, size[0]), np.repeat(y, size[1])
    positions.flags.writeable = False
    return positions


def _affine_temps(device: str, matrices: ArraySpec, size: Sequence[int]) -> list[Temp]:
    """Temporaries of `_affine` and `_back_to_matrices`: positions, and the matrices in the computing type."""
    dtype = accumulation_type(matrices.dtype)
    return [*_positions_temps(device, size, dtype), Temp(_unlike(matrices, dtype, (matrices.shape[0], 2, 3)), dtype)]


def _unlike(array: ArraySpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` for an array that is not of the type `dtype`; no elements otherwise."""
    return shape if array.dtype != dtype else (0,)


def _affine(xp: Any, matrices: Array, size: Sequence[int], grid: Array, temps: Arrays) -> None:
    """Write the grid (batch, 2, h * w) of matrices (batch, 6)."""
    rows = widened(matrices.reshape(-1, 2, 3), temps[2])
    xp.matmul(rows, _positions(xp, size, temps[:2]), out=grid)


def _back_to_matrices(xp: Any, ggrid: Array, size: Sequence[int], gmatrices: Array, temps: Arrays) -> None:
    """Write the gradient of matrices (batch, 6), from that of their grid (batch, 2, h * w)."""
    wide = temps[2] if gmatrices.dtype != ggrid.dtype else gmatrices.reshape(-1, 2, 3)
    xp.matmul(ggrid, _positions(xp, size, temps[:2]).T, out=wide)
    if gmatrices.dtype != ggrid.dtype:
        gmatrices.reshape(-1, 2, 3)[...] = wide


def _halves(size: Sequence[int]) -> tuple[float, float]:
    """(size - 1) / 2 of x and y, to be multiplied with a grid."""
    return max(size[1] - 1, 1) / 2, max(size[0] - 1, 1) / 2


def _generator_temps(p: GridGeneratorParams, call: CallSpec) -> list[Temp]:
    """The grid, or its gradient, in the type that is computed in; what goes with matrices, or a line of an image."""
    grid, data = call.outputs[0], call.inputs[0]
    if len(grid.shape) == 2:
        grid, data = data, grid
    dtype = accumulation_type(grid.dtype)
    wide = Temp(_unlike(grid, dtype, grid.shape), dtype)
    if p.transform_type == "affine":
        return [wide, *_affine_temps(call.device, data, grid.shape[2:])]
    return [wide, Temp((max(grid.shape[2:]),), dtype)]


@generator.compute(temps=_generator_temps)
def _(p: GridGeneratorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, data, out, (wide, *temps) = ctx.xp, inputs[0], outputs[0], ctx.temp
    grid = wide if out.dtype != wide.dtype else out
    if p.transform_type == "affine":
        _affine(xp, data, p.target_shape, _flat(grid), temps)
    else:
        line, size = count_up(xp, temps[0]), data.shape[2:]
        xp.add(data[:, 0], line[: size[1]], out=grid[:, 0])
        xp.add(data[:, 1], line[: size[0], None], out=grid[:, 1])
        for axis, half in enumerate(_halves(size)):
            grid[:, axis] /= half
        grid -= 1
    if grid is not out:
        out[...] = grid


@generator_backward.compute(temps=_generator_temps)
def _(p: GridGeneratorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, gout, (wide, *temps) = ctx.xp, widened(inputs[0], ctx.temp[0]), ctx.temp
    if p.transform_type == "affine":
        _back_to_matrices(xp, _flat(gout), gout.shape[2:], outputs[0], temps)
    else:
        for axis, half in enumerate(_halves(gout.shape[2:])):
            xp.divide(gout[:, axis], half, out=(wide if gout is wide else outputs[0])[:, axis])
        if gout is wide:
            outputs[0][...] = wide


def _sampling(call: CallSpec, data: ArraySpec, grid: ArraySpec, *, gradients: bool) -> list[Temp]:
    """Positions, and what sampling at them needs; nothing for images without elements."""
    dtype, (m, _, *size) = accumulation_type(grid.dtype), grid.shape
    n = size[0] * size[1]
    if not size_of(data.shape) or not m * n:
        return []
    return [
        Temp((2, m, n), dtype),
        *sampling_temps(call.device, m, n, data.shape[2:], data.shape[1], dtype, gradients=gradients),
    ]


def _places(grid: Array, size: Sequence[int], at: Array) -> tuple[Array, Array]:
    """Write the grid's (batch, 2, n) positions y and x, in elements of an image of `size`, and return them."""
    for axis, positions in enumerate(at):
        positions[...] = grid[:, 1 - axis]
        positions += 1
        positions *= (size[axis] - 1) / 2
    return at[0], at[1]


def _read(xp: Any, data: Array, grid: Array, out: Array, temps: Arrays) -> None:
    """Write data at the grid (batch, 2, n) to `out`."""
    if not data.size or not out.size:
        out[...] = 0
        return
    y, x = _places(grid, data.shape[2:], temps[0])
    sample(xp, _flat(data), y, x, data.shape[2:], _flat(out), temps[1:])


def _read_back(
    xp: Any, gout: Array, data: Array, grid: Array, gdata: Array | None, ggrid: Array | None, temps: Arrays
) -> None:
    """Write the gradients of data and of the grid, (batch, 2, n)."""
    size = data.shape[2:]
    y, x = _places(grid, size, temps[0])
    gimages = None if gdata is None else _flat(gdata)
    slopes = None if ggrid is None else (y, x)
    sample_gradients(xp, _flat(data), y, x, size, _flat(gout), gimages, slopes, temps[1:])
    if ggrid is not None:
        for axis, slope in enumerate((x, y)):
            slope *= (size[1 - axis] - 1) / 2
            ggrid[:, axis] = slope


def _zero(outputs: Outputs) -> None:
    """Fill the outputs with zeros, where images have no elements."""
    for target in outputs:
        if target is not None:
            target[...] = 0


@sampler.compute(temps=lambda p, call: _sampling(call, call.inputs[0], call.inputs[1], gradients=False))
def _(p: BilinearSamplerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        _read(ctx.xp, inputs[0], _flat(inputs[1]), outputs[0], ctx.temp)


@sampler_backward.compute(temps=lambda p, call: _sampling(call, call.inputs[1], call.inputs[2], gradients=True))
def _(p: BilinearSamplerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout, data, grid), (gdata, ggrid) = inputs, outputs
    if not data.size or not gout.size:
        _zero(outputs)
    else:
        _read_back(ctx.xp, gout, data, _flat(grid), gdata, None if ggrid is None else _flat(ggrid), ctx.temp)


def _transformer_temps(p: SpatialTransformerParams, call: CallSpec) -> list[Temp]:
    """The grid, what goes with matrices, and what sampling at the grid needs."""
    gradients = len(call.inputs) == 3
    data, loc = call.inputs[-2:]
    grid = ArraySpec((data.shape[0], 2, *p.target_shape), accumulation_type(loc.dtype))
    return [
        Temp((data.shape[0], 2, p.target_shape[0] * p.target_shape[1]), grid.dtype),
        *_affine_temps(call.device, loc, p.target_shape),
        *_sampling(call, data, grid, gradients=gradients),
    ]


@transformer.compute(temps=_transformer_temps)
def _(p: SpatialTransformerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        grid, matrices, sampling = ctx.temp[0], ctx.temp[1:4], ctx.temp[4:]
        _affine(ctx.xp, inputs[1], p.target_shape, grid, matrices)
        _read(ctx.xp, inputs[0], grid, outputs[0], sampling)


@transformer_backward.compute(temps=_transformer_temps)
def _(p: SpatialTransformerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout, data, loc), (gdata, gloc) = inputs, outputs
    if not data.size or not gout.size:
        _zero(outputs)
        return
    grid, matrices, sampling = ctx.temp[0], ctx.temp[1:4], ctx.temp[4:]
    _affine(ctx.xp, loc, p.target_shape, grid, matrices)
    _read_back(ctx.xp, gout, data, grid, gdata, None if gloc is None else grid, sampling)
    if gloc is not None:
        _back_to_matrices(ctx.xp, grid, p.target_shape, gloc, matrices)
