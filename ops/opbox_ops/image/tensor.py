"""_image_to_tensor, _image_normalize: images as the arrays that networks take.

to_tensor: data (height, width, channel) or (batch, height, width, channel), values 0 to 255;
    out = data / 255, float32, (channel, height, width) or (batch, channel, height, width)        gdata = gout / 255
normalize: data (channel, height, width) or (batch, channel, height, width) with 1 or 3 channels, out of its shape
    out = (data - mean) / std, a mean and std for all channels or for each        gdata = gout / std
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_none
from ..infer import Shape, ShapeList, TypeList, show_shape
from ..params import Field, FloatTuple, NoParams, Params
from ..registry import register, register_backward
from .layout import image_or_batch


class NormalizeParams(Params):
    mean: FloatTuple = Field((0.0, 0.0, 0.0, 0.0), description="What is taken off, for all channels or for each.")
    std: FloatTuple = Field((1.0, 1.0, 1.0, 1.0), description="What is divided by, for all channels or for each.")


to_tensor = register("_image_to_tensor", doc="An image of 0 to 255 as a float32 tensor of 0 to 1, channels first.")
normalize = register("_image_normalize", NormalizeParams, doc="A tensor less a mean, over a standard deviation.")
tensor_backward = register_backward("_backward_image_to_tensor", outputs=("data",))
normalize_backward = register_backward("_backward_image_normalize", NormalizeParams, outputs=("data",))
to_tensor.set_attr("FGradient", grad_use_none("_backward_image_to_tensor"))
normalize.set_attr("FGradient", grad_use_none("_backward_image_normalize"))


def _channels_first(shape: Shape) -> Shape:
    return None if shape is None else (*shape[:-3], shape[-1], *shape[-3:-1])


@to_tensor.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    out = outs.merge(0, _channels_first(image_or_batch(ins)))
    if out is not None:
        outs.rank(0, 3, 4)
        ins.merge(0, (*out[:-3], *out[-2:], out[-3]))


@to_tensor.infer_type
def _(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "float32")


@normalize.infer_shape
def _(p: NormalizeParams, ins: ShapeList, outs: ShapeList) -> None:
    image_or_batch(ins)
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is None or shape[-3] < 0:
        return
    if shape[-3] not in (1, 3):
        message = f"expected 1 or 3 channels, ahead of height and width, got {show_shape(shape)}"
        raise ShapeError(message, side="input", index=0)
    for name in ("mean", "std"):
        value = getattr(p, name)
        if len(value) not in (1, shape[-3]):
            message = f"expected one number, or one for each of {shape[-3]} channels, got {value}"
            raise ParamError(f"_image_normalize: parameter {name!r}: {message}")


def _by_channel(space: Array, values: tuple[float, ...]) -> Array:
    """The values in `space`, for arrays whose channels are ahead of height and width."""
    for i, value in enumerate(values):
        space[i] = value
    return space[:, None, None]


def _swapped(array: Array) -> Array:
    """A view of (…, height, width, channel) with the channels ahead."""
    return array.transpose(*range(array.ndim - 3), array.ndim - 1, array.ndim - 3, array.ndim - 2)


@to_tensor.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if out is not None:
        ctx.xp.divide(_swapped(data), ctx.xp.float32(255), out=out, casting="unsafe")


@tensor_backward.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout,), (gdata,) = inputs, outputs
    if gdata is not None:
        ctx.xp.divide(gout, ctx.xp.float32(255), out=_swapped(gdata), casting="unsafe")


def _working_type(dtype: Any) -> Any:
    """The type that whole numbers are normalized in."""
    return np.result_type(dtype, np.float32) if dtype.kind in "iub" else dtype


def _normalizing(p: NormalizeParams, call: CallSpec) -> list[Temp]:
    data = call.inputs[0]
    work = _working_type(data.dtype)
    temps = [Temp((len(p.mean),), work), Temp((len(p.std),), work)]
    return [*temps, Temp(data.shape, work), Temp(data.shape, np.int64)] if work != data.dtype else temps


@normalize.compute(temps=_normalizing)
def _(p: NormalizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if out is None:
        return
    xp, mean, std = ctx.xp, _by_channel(ctx.temp[0], p.mean), _by_channel(ctx.temp[1], p.std)
    if len(ctx.temp) == 2:
        xp.subtract(data, mean, out=out)
        xp.divide(out, std, out=out)
    else:
        # Whole numbers are cut off, and wrap around as C's do.
        value, whole = ctx.temp[2:]
        xp.copyto(value, data)
        xp.subtract(value, mean, out=value)
        xp.divide(value, std, out=value)
        xp.copyto(whole, value, casting="unsafe")
        xp.copyto(out, whole, casting="unsafe")


@normalize_backward.compute(temps=lambda p, call: [Temp((len(p.std),), call.outputs[0].dtype)])
def _(p: NormalizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout,), (gdata,) = inputs, outputs
    if gdata is not None:
        ctx.xp.divide(gout, _by_channel(ctx.temp[0], p.std), out=gdata)
