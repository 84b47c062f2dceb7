"""_image_crop, _image_flip_left_right, _image_flip_top_bottom, and flips at random.

crop: data (height, width, channel) or (batch, height, width, channel);
    out = data[…, y : y + height, x : x + width, :]        gdata = gout there, 0 elsewhere
flips: data (height, width, 1 or 3 channels), out of its shape, the columns or rows in the opposite order
    gdata = gout flipped; a random flip, of every second image on average, hands gout on as it is
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs, Temp
from ..gradient import grad_use_none
from ..infer import ShapeList, show_shape
from ..params import Field, Int, NoParams, Params, PositiveInt
from ..registry import register, register_backward
from .layout import colour_image, hand_on, image_or_batch


class ImageCropParams(Params):
    x: Int = Field(description="The first column.")
    y: Int = Field(description="The first row.")
    width: PositiveInt = Field(description="How many columns.")
    height: PositiveInt = Field(description="How many rows.")


crop = register("_image_crop", ImageCropParams, doc="A rectangle of an image.")
crop_backward = register_backward("_backward_image_crop", ImageCropParams, outputs=("data",))
crop.set_attr("FGradient", grad_use_none("_backward_image_crop"))


@crop.infer_shape
def _(p: ImageCropParams, ins: ShapeList, outs: ShapeList) -> None:
    data = image_or_batch(ins)
    outs.rank(0, 3, 4)
    if data is None:
        if outs[0] is not None:
            ins.merge(0, (*outs[0][:-3], -1, -1, outs[0][-1]))
            outs.merge(0, (*outs[0][:-3], p.height, p.width, outs[0][-1]))
        return
    for name, start, count, size in (("y", p.y, p.height, data[-3]), ("x", p.x, p.width, data[-2])):
        if start < 0 or start + count > size >= 0:
            message = f"expected {name} of at least 0 and a part inside of data {show_shape(data)}"
            raise ShapeError(f"{message}, got {count} from {name} {start} on", side="input", index=0)
    out = outs.merge(0, (*data[:-3], p.height, p.width, data[-1]))
    assert out is not None
    ins.merge(0, (*out[:-3], -1, -1, out[-1]))


def _part(p: ImageCropParams, image: Array) -> Array:
    return image[..., p.y : p.y + p.height, p.x : p.x + p.width, :]


@crop.compute()
def _(p: ImageCropParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if out is not None:
        out[...] = _part(p, data)


@crop_backward.compute()
def _(p: ImageCropParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout,), (gdata,) = inputs, outputs
    if gdata is not None:
        gdata[...] = 0
        _part(p, gdata)[...] = gout


def _declare(name: str, axis: int, reversed_axis: str) -> None:
    flip = register(f"_image_flip_{name}", doc=f"An image with {reversed_axis} in the opposite order.")
    at_random = register(
        f"_image_random_flip_{name}", doc=f"An image with {reversed_axis} in the opposite order, or not."
    )
    back = register_backward(f"_backward_image_flip_{name}", outputs=("data",))
    flip.set_attr("FGradient", grad_use_none(f"_backward_image_flip_{name}"))
    at_random.set_attr("FGradient", hand_on)
    at_random.set_attr("TRandom", True)

    def flipped(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (data,), (out,) = inputs, outputs
        if out is not None:
            out[...] = ctx.xp.flip(data, axis)

    def perhaps(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (data,), (out,) = inputs, outputs
        if out is not None:
            out[...] = ctx.xp.flip(data, axis) if float(ctx.random.generator.random(size=1)[0]) < 0.5 else data

    # The same number, which stays on the device: its queue does not end, and a graph can draw another one.
    def perhaps_there(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (data,), (out,), (number, flips) = inputs, outputs, ctx.temp
        if out is not None:
            ctx.random.uniform(number)
            ctx.xp.less(number, 0.5, out=flips)
            ctx.xp.copyto(out, data)
            ctx.xp.copyto(out, ctx.xp.flip(data, axis), where=flips)

    for op in (flip, at_random):
        op.infer_shape(colour_image)
    flip.compute()(flipped)
    back.compute()(flipped)
    at_random.compute("cpu")(perhaps)
    at_random.compute("gpu", temps=lambda p, call: [Temp((1,), "float64"), Temp((1,), "bool")])(perhaps_there)


_declare("left_right", 1, "its columns")
_declare("top_bottom", 0, "its rows")
