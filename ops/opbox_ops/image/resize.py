"""_image_resize: an image in another size, with OpenCV's interpolations.

data (height, width, channel) or (batch, height, width, channel), out of the new height and width. size is (width,
height), or one number for both, with keep_ratio for the shorter side.

A pixel of the output reads a few rows and columns of data with weights by interp: 0 the nearest, 1 linear, 2 cubic
(Keys, 1981, with a = -3/4), 3 the mean of the area that it covers, 4 Lanczos over 8 pixels. Edges are repeated. uint8
is weighted in steps of 1/2048 and rounded. There is no gradient, as in MXNet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from opbox_protocol.errors import DTypeError, ParamError, ShapeError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..index.positions import take_rows
from ..infer import ShapeList, TypeList, show_shape
from ..params import Bool, Field, Int, Params, Shape
from ..registry import register
from .kernels import AREA, CUBIC, LINEAR, NEAREST, weights_of
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


def kind_of(p: ResizeParams, old: tuple[int, ...], new: tuple[int, ...]) -> int:
    """The interpolation that OpenCV takes from height and width `old` to `new`."""
    kind = p.interp
    if kind == LINEAR and old == (2 * new[0], 2 * new[1]):
        kind = AREA
    return -AREA if kind == AREA and not (old[0] >= new[0] and old[1] >= new[1]) else kind


def works_in(kind: int, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that pixels are weighted in: whole numbers for those of uint8, but for areas."""
    if kind == NEAREST:
        return dtype
    if dtype == np.uint8 and kind != AREA:
        return np.dtype("int32")
    return dtype if dtype.itemsize >= 4 else np.dtype("float32")


def _temps(p: ResizeParams, call: CallSpec) -> list[Temp]:
    """For one image: it in the type that it is weighted in; its rows resized, a tap of them; the result, a tap of it;
    the result in double precision, for cubic weights of uint8."""
    data, out = call.inputs[0], call.outputs[0]
    (height, width, channels), (rows, columns) = data.shape[-3:], out.shape[-3:-1]
    kind = kind_of(p, (height, width), (rows, columns))
    work = works_in(kind, out.dtype)
    weighted, whole = kind != NEAREST, work.kind == "i" and out.dtype == np.uint8
    wide, image = (height, columns, channels), (rows, columns, channels)
    nothing = (0, 0, 0)
    return [
        Temp((height, width, channels) if work != data.dtype else nothing, work),
        Temp(wide, work),
        Temp(wide if weighted else nothing, work),
        Temp(image if weighted else nothing, work),
        Temp(image if weighted else nothing, work),
        Temp(image if whole and kind == CUBIC else nothing, "float64"),
    ]


@op.compute(temps=_temps)
def _(p: ResizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if out is None or not out.size:
        return
    old, new = data.shape[-3:-1], out.shape[-3:-1]
    kind, whole = kind_of(p, old, new), ctx.temp[1].dtype != out.dtype and ctx.temp[1].dtype.kind == "i"
    down, across = (
        taps_of(kind, old[k], new[k], bool(k), "whole" if whole else ctx.temp[1].dtype.name) for k in (0, 1)
    )
    # Four pixels at a time are rounded up at a half, other areas to the even number.
    quarters = old == (2 * new[0], 2 * new[1]) and out.shape[-1] in (1, 3, 4)
    for image, target in zip(data.reshape(-1, *data.shape[-3:]), out.reshape(-1, *out.shape[-3:]), strict=True):
        _resize(ctx.xp, image, target, kind, (down, across), quarters, ctx.temp)


def _resize(
    xp: Any, image: Array, out: Array, kind: int, taps: tuple[Taps, Taps], quarters: bool, temps: Arrays
) -> None:
    """One image."""
    (down, across), (exact, wide, wide_tap, result, tap, double) = taps, temps
    if kind == NEAREST:
        take_rows(xp, image, _there(xp, across[0][0]), wide, axis=1)
        take_rows(xp, wide, _there(xp, down[0][0]), out, axis=0)
        return
    if exact.size:
        exact[...] = image
        image = exact
    _weigh(xp, image, across, 1, wide, wide_tap)
    if wide.dtype.kind == "i" and kind in (LINEAR, -AREA):
        # As OpenCV, which rounds each kind its own way.
        result.fill(2)
        wide >>= 4
        for at, factor in down:
            take_rows(xp, wide, _there(xp, at), tap)
            tap *= _there(xp, factor)
            tap >>= 16
            result += tap
        result >>= 2
    else:
        _weigh(xp, wide, down, 0, result, tap)
        if double.size:
            xp.divide(result, STEPS**2, out=double)
            result = xp.rint(double, out=double)
        elif wide.dtype.kind == "i":
            result += STEPS**2 // 2
            result >>= 22
        elif out.dtype == np.uint8:
            if quarters:
                result += 0.5
            (xp.floor if quarters else xp.rint)(result, out=result)
    if out.dtype == np.uint8:
        xp.clip(result, 0, 255, out=result)
    xp.copyto(out, result, casting="unsafe")


Taps = tuple[tuple[Array, Array], ...]
"""For each tap of an axis: the pixels that the outputs read, and their weights, shaped for that axis of an image."""


@lru_cache(maxsize=256)
def taps_of(kind: int, size: int, new: int, across: bool, work: str) -> Taps:
    """The taps of an axis, their weights in the type `work`, or, for "whole", in steps of 1 / STEPS."""
    weights = weights_of(kind, size, new, across=across)
    factors = [np.rint(w * STEPS).astype(np.int32) if work == "whole" else w.astype(work) for w in weights.weight]
    return tuple(
        (at, f.reshape(-1, 1) if across else f.reshape(-1, 1, 1)) for at, f in zip(weights.at, factors, strict=True)
    )


def _there(xp: Any, array: Array) -> Array:
    """A table on the device of `xp`."""
    return array if xp is np else xp.asarray(array)


def _weigh(xp: Any, image: Array, taps: Taps, axis: int, total: Array, part: Array) -> None:
    """Write the weighted sum of the pixels along an axis, tap by tap; `part` is like `total`."""
    for k, (at, factor) in enumerate(taps):
        into = part if k else total
        take_rows(xp, image, _there(xp, at), into, axis=axis)
        into *= _there(xp, factor)
        if k:
            total += part
