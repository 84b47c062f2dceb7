"""depth_to_space and space_to_depth: blocks of an image's pixels traded for channels.

depth_to_space: (n, b * b * c, h, w) -> (n, c, h * b, w * b)        space_to_depth: the way back
each is the other's gradient
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_use_none
from ..infer import ShapeList, show_shape
from ..params import Field, Params, PositiveInt
from ..registry import register, register_backward


class BlockParams(Params):
    block_size: PositiveInt = Field(description="Side of a block in pixels.")


depth_to_space = register("depth_to_space", BlockParams, doc="Channels rearranged into blocks of pixels.")
space_to_depth = register("space_to_depth", BlockParams, doc="Blocks of pixels rearranged into channels.")
to_space_backward = register_backward("_backward_depth_to_space", BlockParams)
to_depth_backward = register_backward("_backward_space_to_depth", BlockParams)
depth_to_space.set_attr("FGradient", grad_use_none("_backward_depth_to_space"))
space_to_depth.set_attr("FGradient", grad_use_none("_backward_space_to_depth"))


def _wide(shape: tuple[int, ...], b: int) -> tuple[int, ...]:
    """The (n, c, h * b, w * b) of a deep shape."""
    n, c, h, w = shape
    return (n, c // (b * b) if c >= 0 else -1, h * b if h >= 0 else -1, w * b if w >= 0 else -1)


def _deep(shape: tuple[int, ...], b: int) -> tuple[int, ...]:
    """The (n, b * b * c, h, w) of a wide shape."""
    n, c, h, w = shape
    return (n, c * b * b if c >= 0 else -1, h // b if h >= 0 else -1, w // b if w >= 0 else -1)


def _check(p: BlockParams, ins: ShapeList, axes: tuple[int, ...], unit: int) -> None:
    data = ins.rank(0, 4)
    if data is not None and any(data[axis] >= 0 and data[axis] % unit for axis in axes):
        place = "axis 1" if axes == (1,) else "axes 2 and 3"
        raise ShapeError(f"{place}: expected a multiple of {unit}, got {show_shape(data)}", side="input", index=0)


@depth_to_space.infer_shape
def _(p: BlockParams, ins: ShapeList, outs: ShapeList) -> None:
    _check(p, ins, (1,), p.block_size**2)
    if ins[0] is not None:
        outs.merge(0, _wide(ins[0], p.block_size))
    out = outs.rank(0, 4)
    if out is not None:
        ins.merge(0, _deep(out, p.block_size))


@space_to_depth.infer_shape
def _(p: BlockParams, ins: ShapeList, outs: ShapeList) -> None:
    _check(p, ins, (2, 3), p.block_size)
    if ins[0] is not None:
        outs.merge(0, _deep(ins[0], p.block_size))
    out = outs.rank(0, 4)
    if out is not None:
        ins.merge(0, _wide(out, p.block_size))


def _to_space(xp: Any, data: Array, b: int, out: Array) -> None:
    n, c, height, width = out.shape
    blocks = data.reshape(n, b, b, c, height // b, width // b).transpose(0, 3, 4, 1, 5, 2)
    xp.copyto(out.reshape(n, c, height // b, b, width // b, b), blocks)


def _to_depth(xp: Any, data: Array, b: int, out: Array) -> None:
    n, c, height, width = data.shape
    blocks = data.reshape(n, c, height // b, b, width // b, b).transpose(0, 3, 5, 1, 2, 4)
    xp.copyto(out.reshape(n, b, b, c, height // b, width // b), blocks)


@depth_to_space.compute()
@to_depth_backward.compute()
def _(p: BlockParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _to_space(ctx.xp, inputs[0], p.block_size, outputs[0])


@space_to_depth.compute()
@to_space_backward.compute()
def _(p: BlockParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _to_depth(ctx.xp, inputs[0], p.block_size, outputs[0])
