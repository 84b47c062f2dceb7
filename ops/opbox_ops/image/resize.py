"""_image_resize: an image in another size, with OpenCV's interpolations.

data (height, width, channel) or (batch, height, width, channel), out of the new height and width. size is (width,
height), or one number for both, with keep_ratio for the shorter side.

A pixel of the output reads a few rows and columns of data with weights by interp: 0 the nearest, 1 linear, 2 cubic
(Keys, 1981, with a = -3/4), 3 the mean of the area that it covers, 4 Lanczos over 8 pixels. Edges are repeated. uint8
is weighted in steps of 1/2048 and rounded. There is no gradient, as in MXNet.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import DTypeError, ParamError, ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..infer import ShapeList, TypeList, show_shape
from ..params import Bool, Field, Int, Params, Shape
from ..registry import register
from .kernels import AREA, CUBIC, LINEAR, NEAREST, AxisWeights, weights_of
from .layout import image_or_batch

STEPS = 2048
"""Weights of uint8 images are whole numbers of 1 / STEPS."""


class ResizeParams(Params):
    size: Shape = Field((), description="Width and height, or one number for both.")
    keep_ratio: Bool = Field(False, description="With one number: it is the shorter side's, the other follows.")
    interp: Int = Field(1, description="0 nearest, 1 linear, 2 cubic, 3 area, 4 Lanczos.")


op = register("_image_resize", ResizeParams)


def _new_size(p: ResizeParams, height: int, width: int) -> tuple[int, int]:
    """Height and width of the output; -1 where they depend on what is unknown."""
    if len(p.size) not in (1, 2) or min(p.size) < 1:
        message = f"expected one or two positive numbers (width, height), got {p.size}"
        raise ParamError(f"_image_resize: parameter 'size': {message}")
    if not 0 <= p.interp <= 4:
        raise ParamError(f"_image_resize: parameter 'interp': expected 0 to 4, got {p.interp}")
    if len(p.size) == 2:
        return p.size[1], p.size[0]
    side = p.size[0]
    if not p.keep_ratio:
        return side, side
    if height < 0 or width < 0:
        return -1, -1
    return (side * height // width, side) if height > width else (side, side * width // height)


@op.infer_shape
def _(p: ResizeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = image_or_batch(ins)
    outs.rank(0, 3, 4)
    if data is not None and 0 in data[-3:-1]:
        raise ShapeError(f"expected an image with pixels, got {show_shape(data)}", side="input", index=0)
    size = _new_size(p, *(data[-3:-1] if data is not None else (-1, -1)))
    if data is not None:
        outs.merge(0, (*data[:-3], *size, data[-1]))
    out = outs[0]
    if out is not None:
        outs.merge(0, (*out[:-3], *size, out[-1]))
        ins.merge(0, (*out[:-3], -1, -1, out[-1]))


@op.infer_type
def _(p: ResizeParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.merge(0, outs.merge(0, ins[0]))
    outs.merge(0, dtype)
    if dtype is not None and p.interp and dtype.name not in ("uint8", "float32", "float64", "float16"):
        message = f"expected uint8, float16, float32 or float64 (any type with interp 0), got {dtype}"
        raise DTypeError(message, side="input", index=0)


@op.compute(allocates="the rows that were resized before the columns")
def _(p: ResizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if out is None or not out.size:
        return
    kind = p.interp
    height, width = data.shape[-3:-1]
    if kind == LINEAR and (height, width) == (2 * out.shape[-3], 2 * out.shape[-2]):
        kind = AREA
    if kind == AREA and not (height >= out.shape[-3] and width >= out.shape[-2]):
        kind = -AREA
    down, across = weights_of(kind, height, out.shape[-3]), weights_of(kind, width, out.shape[-2], across=True)
    xp = ctx.xp
    if kind == NEAREST:
        out[...] = data[..., xp.asarray(down.at[0]), :, :][..., xp.asarray(across.at[0]), :]
    elif out.dtype == np.uint8 and kind != AREA:
        wide = _weigh(xp, data.astype(np.int32), across, -2, whole=True)
        _write_whole(xp, out, wide, down, kind)
    else:
        exact = data.astype(np.float32) if data.dtype.itemsize < 4 else data
        image = _weigh(xp, _weigh(xp, exact, across, -2), down, -3)
        if out.dtype == np.uint8:
            # Four pixels at a time are rounded up at a half, other areas to the even number.
            quarters = (height, width) == (2 * out.shape[-3], 2 * out.shape[-2]) and out.shape[-1] in (1, 3, 4)
            image = xp.clip(xp.floor(image + 0.5) if quarters else xp.rint(image), 0, 255)
        out[...] = image


def _weigh(xp: Any, image: Array, weights: AxisWeights, axis: int, *, whole: bool = False) -> Array:
    """The weighted sum of the pixels along an axis, tap by tap."""
    total: Any = None
    for at, weight in zip(weights.at, weights.weight, strict=True):
        factor = xp.asarray(np.rint(weight * STEPS).astype(np.int32) if whole else weight.astype(image.dtype))
        part = xp.take(image, xp.asarray(at), axis=axis) * factor.reshape(-1, *(1,) * (-axis - 1))
        total = part if total is None else xp.add(total, part, out=total)
    return total


def _write_whole(xp: Any, out: Array, wide: Array, down: AxisWeights, kind: int) -> None:
    """Weigh the rows in whole numbers and take the steps out again: as OpenCV, which rounds each kind its own way."""
    if kind in (LINEAR, -AREA):
        total: Any = 2
        for at, weight in zip(down.at, down.weight, strict=True):
            factor = xp.asarray(np.rint(weight * STEPS).astype(np.int32)).reshape(-1, 1, 1)
            total = total + (((xp.take(wide, xp.asarray(at), axis=-3) >> 4) * factor) >> 16)
        out[...] = xp.clip(total >> 2, 0, 255)
    else:
        image = _weigh(xp, wide, down, -3, whole=True)
        image = xp.rint(image / STEPS**2) if kind == CUBIC else (image + STEPS**2 // 2) >> 22
        out[...] = xp.clip(image, 0, 255)
