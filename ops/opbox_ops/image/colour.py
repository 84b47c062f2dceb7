"""Changes of an image's colours, by amounts that are drawn or given (Howard, 2013; lighting: Krizhevsky et al., 2012).

data (height, width, 1 or 3 channels: red, green, blue), out of its shape; gray = 0.299 red + 0.587 green + 0.114 blue.

    brightness  out = a data                               a uniform in [min_factor, max_factor)
    contrast    out = a data + (1 - a) mean of gray        a likewise
    saturation  out = a data + (1 - a) 0.114 blue          a likewise; MXNet's, which leaves out red and green; an
                                                           image of one channel stays as it is
    hue         the hue turned by 360 a degrees            likewise
    color_jitter: brightness, contrast and saturation with a in [1 - x, 1 + x), hue with a in [-x, x), for the
        parameter x of each, in an order that is drawn
    lighting    out = data + eigenvectors @ (alpha * eigenvalues) of the colours of ImageNet, alpha of a normal
        distribution, or given; an image of one channel stays as it is

uint8 is cut off at 0 and 255, other whole numbers lose their fraction. gdata = gout, as in MXNet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import ShapeList, size_of
from ..params import Field, Float, FloatTuple, Params
from ..registry import Op, register
from .hue import turn_hue, turn_temps
from .layout import colour_image, hand_on

GRAY = (0.299, 0.587, 0.114)
LIGHT = (
    (55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009),
    (55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140),
    (55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203),
)
"""Rows of red, green and blue that a part of 1 along each principal component of ImageNet's colours adds."""


class RangeParams(Params):
    min_factor: Float = Field(ge=0, description="Least factor.")
    max_factor: Float = Field(ge=0, description="Largest factor.")


class JitterParams(Params):
    brightness: Float = Field(description="How much the brightness changes at most.")
    contrast: Float = Field(description="How much the contrast changes at most.")
    saturation: Float = Field(description="How much the saturation changes at most.")
    hue: Float = Field(description="How far the hue is turned at most, in turns.")


class RandomLightingParams(Params):
    alpha_std: Float = Field(0.05, description="Standard deviation of the three amounts.")


class LightingParams(Params):
    alpha: FloatTuple = Field(description="The three amounts.")


Change = Callable[[Any, Array, float, Arrays], None]
"""`(xp, image, a, temps)` changes an image of floats in place; temps are those of `turn_hue`."""


def _brightness(xp: Any, image: Array, a: float, temps: Arrays) -> None:
    image *= a


def _contrast(xp: Any, image: Array, a: float, temps: Arrays) -> None:
    channels = image.shape[-1]
    means = [image[..., k].mean() for k in range(channels)]
    gray = means[0] if channels == 1 else sum(weight * mean for weight, mean in zip(GRAY, means, strict=True))
    image *= a
    image += (1 - a) * gray


def _saturation(xp: Any, image: Array, a: float, temps: Arrays) -> None:
    if image.shape[-1] == 1:
        return
    pixels, blue = image.reshape(-1, 3), temps[0][0]
    step = len(blue)
    for start in range(0, len(pixels), step):
        piece = pixels[start : start + step]
        added = blue[: len(piece)]
        xp.multiply(piece[:, 2], (1 - a) * GRAY[2], out=added)
        piece *= a
        for k in range(3):
            piece[:, k] += added


def _hue(xp: Any, image: Array, a: float, temps: Arrays) -> None:
    if image.shape[-1] == 3:
        turn_hue(xp, image.reshape(-1, 3), 360 * a, temps)


CHANGES: dict[str, Change] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "hue": _hue,
}


def _light(xp: Any, image: Array, alpha: Sequence[float]) -> None:
    if image.shape[-1] == 1:
        return
    number = image.dtype.type
    for k, row in enumerate(LIGHT):
        image[..., k] += sum(number(part) * number(amount) for part, amount in zip(row, alpha, strict=True))


def works_in(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that colours are changed in."""
    return dtype if dtype.kind == "f" and dtype.itemsize >= 4 else np.dtype("float32")


def _temps(p: Params, call: CallSpec) -> list[Temp]:
    """The numbers that are drawn; the image in the type that it is changed in, unless it is out's; what hue needs."""
    out = call.outputs[0]
    work = works_in(out.dtype)
    image = Temp(out.shape if work != out.dtype else (0, 0, 0), work)
    return [Temp((8,), "float64"), image, *turn_temps(size_of(out.shape[:2]), work, call.device)]


def write(xp: Any, out: Array, image: Array) -> None:
    """Write a changed image to `out`, of another type or the same array."""
    if out.dtype == np.uint8:
        image = xp.clip(image, 0, 255, out=image)
    if out is not image:
        xp.copyto(out, image, casting="unsafe")


def _drawn(ctx: OpContext, low: float, high: float) -> float:
    number = ctx.temp[0][:1]
    ctx.random.uniform(number)
    return low + (high - low) * float(number[0])


def _declare(name: str, params: type[Params], doc: str, change: Callable[[Any, OpContext, Array], None]) -> Op:
    """An operator whose `change(p, ctx, image)` changes the image in place."""
    op = register(f"_image_{name}", params, doc=doc)
    op.infer_shape(colour_image)
    op.set_attr("FGradient", hand_on)
    op.set_attr("TRandom", "random" in name)

    @op.compute(temps=_temps)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (data,), (out,) = inputs, outputs
        if out is not None and out.size:
            image = ctx.temp[1] if ctx.temp[1].size else out
            image[...] = data
            change(p, ctx, image)
            write(ctx.xp, out, image)

    return op


def _by_factor(change: Change) -> Callable[[Any, OpContext, Array], None]:
    return lambda p, ctx, image: change(ctx.xp, image, _drawn(ctx, p.min_factor, p.max_factor), ctx.temp[2:])


for _name, _change in CHANGES.items():
    _declare(f"random_{_name}", RangeParams, f"An image whose {_name} is changed at random.", _by_factor(_change))


def _jitter(p: JitterParams, ctx: OpContext, image: Array) -> None:
    numbers = ctx.temp[0]
    ctx.random.uniform(numbers)
    drawn = numbers.tolist()
    for _, name, amount in sorted(zip(drawn[:4], CHANGES, drawn[4:], strict=True)):
        width = getattr(p, name)
        if width > 0:
            middle = 0.0 if name == "hue" else 1.0
            CHANGES[name](ctx.xp, image, middle - width + 2 * width * amount, ctx.temp[2:])


def _random_lighting(p: RandomLightingParams, ctx: OpContext, image: Array) -> None:
    alpha = ctx.temp[0][:3]
    ctx.random.normal(alpha)
    _light(ctx.xp, image, [number * p.alpha_std for number in alpha.tolist()])


def _lighting(p: LightingParams, ctx: OpContext, image: Array) -> None:
    _light(ctx.xp, image, p.alpha[:3])


_declare("random_color_jitter", JitterParams, "An image whose colours are changed at random.", _jitter)
_declare("random_lighting", RandomLightingParams, "An image in another light, drawn at random.", _random_lighting)
lighting = _declare("adjust_lighting", LightingParams, "An image in another light.", _lighting)


def _lighting_shape(p: LightingParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.alpha) < 3:
        raise ParamError(f"_image_adjust_lighting: parameter 'alpha': expected three numbers or more, got {p.alpha}")
    colour_image(p, ins, outs)


lighting.set_attr("FInferShape", _lighting_shape, level=11)
