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

from collections.abc import Callable
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, OpContext, Outputs
from ..infer import ShapeList
from ..params import Field, Float, FloatTuple, Params
from ..registry import Op, register
from .hue import turned
from .layout import colour_image, hand_on

GRAY = (0.299, 0.587, 0.114)
LIGHT = (
    (55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009),
    (55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140),
    (55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203),
)
"""What a part of 1 along each principal component of ImageNet's colours adds to red, green and blue."""


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


Change = Callable[[Any, Array, float], Array]
"""`(xp, image in float, a)` to the changed image."""


def _gray(xp: Any, image: Array) -> Array:
    return image if image.shape[-1] == 1 else image @ xp.asarray(GRAY, dtype=image.dtype)


def _brightness(xp: Any, image: Array, a: float) -> Array:
    return image * a


def _contrast(xp: Any, image: Array, a: float) -> Array:
    return image * a + (1 - a) * _gray(xp, image).mean()


def _saturation(xp: Any, image: Array, a: float) -> Array:
    return image if image.shape[-1] == 1 else image * a + image[..., 2:] * ((1 - a) * GRAY[2])


def _hue(xp: Any, image: Array, a: float) -> Array:
    return image if image.shape[-1] == 1 else turned(xp, image, 360 * a)


CHANGES: dict[str, Change] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "hue": _hue,
}


def _lit(xp: Any, image: Array, alpha: Array) -> Array:
    return image if image.shape[-1] == 1 else image + xp.asarray(LIGHT, dtype=image.dtype) @ alpha.astype(image.dtype)


def _write(xp: Any, out: Array, image: Array) -> None:
    out[...] = xp.clip(image, 0, 255) if out.dtype == np.uint8 else image


def _float(image: Array) -> Array:
    return image if image.dtype.kind == "f" and image.dtype.itemsize >= 4 else image.astype(np.float32)


def _drawn(ctx: OpContext, low: float, high: float) -> float:
    return low + (high - low) * float(ctx.random.generator.random(size=1)[0])


def _declare(name: str, params: type[Params], doc: str, change: Callable[..., Array]) -> Op:
    """An operator whose `change(p, ctx, image)` gives the image."""
    op = register(f"_image_{name}", params, doc=doc)
    op.infer_shape(colour_image)
    op.set_attr("FGradient", hand_on)
    op.set_attr("TRandom", "random" in name)

    @op.compute(allocates="the image in float while its colours change")
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (data,), (out,) = inputs, outputs
        if out is not None and out.size:
            _write(ctx.xp, out, change(p, ctx, _float(data)))

    return op


def _by_factor(change: Change) -> Callable[..., Array]:
    return lambda p, ctx, image: change(ctx.xp, image, _drawn(ctx, p.min_factor, p.max_factor))


for _name, _change in CHANGES.items():
    _declare(f"random_{_name}", RangeParams, f"An image whose {_name} is changed at random.", _by_factor(_change))


def _jitter(p: JitterParams, ctx: OpContext, image: Array) -> Array:
    places, amounts = ctx.random.generator.random(size=(2, 4)).tolist()
    for _, name, amount in sorted(zip(places, CHANGES, amounts, strict=True)):
        width = getattr(p, name)
        if width > 0:
            middle = 0.0 if name == "hue" else 1.0
            image = CHANGES[name](ctx.xp, image, middle - width + 2 * width * amount)
    return image


def _random_lighting(p: RandomLightingParams, ctx: OpContext, image: Array) -> Array:
    return _lit(ctx.xp, image, ctx.random.generator.standard_normal(size=3) * p.alpha_std)


def _lighting(p: LightingParams, ctx: OpContext, image: Array) -> Array:
    return _lit(ctx.xp, image, ctx.xp.asarray(p.alpha[:3]))


_declare("random_color_jitter", JitterParams, "An image whose colours are changed at random.", _jitter)
_declare("random_lighting", RandomLightingParams, "An image in another light, drawn at random.", _random_lighting)
lighting = _declare("adjust_lighting", LightingParams, "An image in another light.", _lighting)


def _lighting_shape(p: LightingParams, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.alpha) < 3:
        raise ParamError(f"_image_adjust_lighting: parameter 'alpha': expected three numbers or more, got {p.alpha}")
    colour_image(p, ins, outs)


lighting.set_attr("FInferShape", _lighting_shape, level=11)
