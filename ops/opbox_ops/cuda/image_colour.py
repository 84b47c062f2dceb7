"""Random changes of an image's colours on a GPU: the numbers that are drawn stay on the device.

A thread changes a pixel, one change after the other. Contrast alone needs the whole image: blocks add up its gray
before, in one order; so a jitter is a launch for what comes ahead of contrast, one for the sums, one for the rest. Only
the device knows which that is. `image/colour` and `image/hue` have the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .. import registry
from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..image.colour import CHANGES, GRAY, LIGHT, JitterParams, RandomLightingParams, RangeParams, works_in, write
from ..image.hue import MIN_DIFFERENCE, SECTORS
from ..infer import size_of
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, by_thread, contiguous

_THREADS = 256
_PARTS = 64
"""Blocks that add up an image's gray."""
_SIDE = 224
_PIXELS = _SIDE * _SIDE
_WHAT = f"an image of {_SIDE} x {_SIDE}, 3 channels"
_AHEAD, _BEHIND, _ALL = range(3)
"""Which changes a launch makes: those ahead of contrast; contrast and those behind it; all of them."""

_GRAY = f"""__device__ A gray_of(const T *pixel, int channels) {{
  if (channels == 1) return A(pixel[0]);
  return A({GRAY[0]}) * A(pixel[0]) + A({GRAY[1]}) * A(pixel[1]) + A({GRAY[2]}) * A(pixel[2]);
}}
"""
_SUMS = KernelTemplate(
    "opbox_image_gray",
    "const T *image, A *sums, int pixels, int channels",
    """  extern __shared__ A scratch[];
  A sum = 0;
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < pixels; k += gridDim.x * blockDim.x)
    sum += gray_of(image + k * channels, channels);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
""",
    (_WHAT, lambda: Moved(4 * 3 * _PIXELS, 4 * 3 * _PIXELS)),
    _GRAY,
)
_PICKS = ", ".join(str(level) for sector in SECTORS for level in sector)
_HUE = f"""__device__ void turn_hue(A *colour, A degrees) {{
  const int picks[{3 * len(SECTORS)}] = {{{_PICKS}}};
  const A red = colour[0] / 255, green = colour[1] / 255, blue = colour[2] / 255;
  const A high = fmax(fmax(red, green), blue), low = fmin(fmin(red, green), blue), both = high + low;
  const bool gray = !(high - low > A({MIN_DIFFERENCE}));
  const A width = gray ? A(1) : high - low, light = both / 2, degree = 60 / width;
  const A strength = gray ? A(0) : width / (light < A(0.5) ? both : 2 - high - low);
  A hue = high == red ? (green - blue) * degree
        : high == green ? (blue - red) * degree + 120 : (red - green) * degree + 240;
  if (hue < 0) hue += 360;
  hue = (gray ? A(0) : hue) + degrees;
  hue = (hue - floor(hue / 360) * 360) * A(1 / 60.0);
  const A sector = fmax(fmin(floor(hue), A(5)), A(0)), part = hue - sector;
  const A top = light <= A(0.5) ? (1 + strength) * light : light + strength - light * strength;
  const A bottom = 2 * light - top, distance = top - bottom;
  const A levels[4] = {{top, bottom, (1 - part) * distance + bottom, distance * part + bottom}};
  for (int k = 0; k < 3; ++k) colour[k] = (strength > 0 ? levels[picks[int(sector) * 3 + k]] : light) * 255;
}}
"""
_CONTRAST = [*CHANGES].index("contrast")
_AMOUNTS = ", ".join(f"double low_{name}, double span_{name}" for name in CHANGES)
_LOWS, _SPANS = (", ".join(f"{end}_{name}" for name in CHANGES) for end in ("low", "span"))
_CHANGE = KernelTemplate(
    "opbox_image_change",
    f"const T *data, T *out, const double *numbers, const A *sums, int pixels, int channels, int parts, int stage, "
    f"int wanted, int jitter, {_AMOUNTS}",
    f"""  extern __shared__ A scratch[];
  A total = 0;
  if (stage == {_BEHIND}) {{
    for (int k = threadIdx.x; k < parts; k += blockDim.x) total += sums[k];
    total = block_sum(total, scratch);
  }}
  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= pixels) return;
  const double lows[] = {{{_LOWS}}}, spans[] = {{{_SPANS}}};
  int order[4] = {{0, 1, 2, 3}}, middle = 0;
  if (jitter)
    for (int change = 0; change < 4; ++change) {{
      int rank = 0;
      for (int k = 0; k < 4; ++k)
        rank += numbers[k] < numbers[change] || (numbers[k] == numbers[change] && k < change);
      order[rank] = change;
      if (change == {_CONTRAST}) middle = rank;
    }}
  A colour[3];
  for (int k = 0; k < channels; ++k) colour[k] = A(data[number * channels + k]);
  const int first = stage == {_BEHIND} ? middle : 0, last = stage == {_AHEAD} ? middle : 4;
  for (int step = first; step < last; ++step) {{
    const int change = order[step];
    if (!(wanted >> change & 1)) continue;
    const double amount = lows[change] + spans[change] * numbers[jitter ? 4 + change : 0];
    const A a = A(amount);
    if (change == {_CONTRAST}) {{
      const A gray = A(1 - amount) * (total / pixels);
      for (int k = 0; k < channels; ++k) colour[k] = colour[k] * a + gray;
    }} else if (change == {[*CHANGES].index("brightness")}) {{
      for (int k = 0; k < channels; ++k) colour[k] *= a;
    }} else if (channels == 3 && change == {[*CHANGES].index("saturation")}) {{
      const A added = colour[2] * A((1 - amount) * {GRAY[2]});
      for (int k = 0; k < 3; ++k) colour[k] = colour[k] * a + added;
    }} else if (channels == 3) {{
      turn_hue(colour, A(360 * amount));
    }}
  }}
  for (int k = 0; k < channels; ++k) out[number * channels + k] = T(colour[k]);
""",
    (_WHAT, lambda: Moved(4 * 6 * _PIXELS, 4 * 6 * _PIXELS)),
    _HUE,
)
_PARTS_OF_LIGHT = ", ".join(str(part) for row in LIGHT for part in row)
_LIGHTING = KernelTemplate(
    "opbox_image_light",
    "const T *data, T *out, const double *numbers, int elements, int channels, double deviation",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const double parts[] = {{{_PARTS_OF_LIGHT}}};
  A added = 0;
  if (channels == 3)
    for (int k = 0; k < 3; ++k) added += A(parts[number % 3 * 3 + k]) * A(numbers[k] * deviation);
  out[number] = T(A(data[number]) + added);
""",
    (_WHAT, lambda: Moved(4 * 6 * _PIXELS, 4 * 6 * _PIXELS)),
)
KERNELS += [_SUMS, _CHANGE, _LIGHTING]


def _accepts(p: Any, call: CallSpec) -> bool:
    return call.plain and 0 < size_of(call.outputs[0].shape) <= MAX_ELEMENTS


def _temps(p: Any, call: CallSpec) -> list[Temp]:
    """The numbers that are drawn; the image in the type that it is changed in, unless it is out's; sums of its gray."""
    out = call.outputs[0]
    work = works_in(out.dtype)
    return [Temp((8,), "float64"), Temp(out.shape if work != out.dtype else (0,), work), Temp((_PARTS,), work)]


def _changed(
    ctx: OpContext, inputs: Arrays, outputs: Outputs, draw: Call, launches: Callable[[Array, Array], list[Call]]
) -> Call:
    """A call that draws, and changes the input by `launches(data, image)`, which write an image of data's type."""
    (data,), calls = contiguous(ctx, inputs)
    out, scratch = outputs[0], ctx.temp[1]
    if out is None:
        return as_one([])
    image = scratch if scratch.size else out
    if scratch.size:
        calls.append(partial(ctx.xp.copyto, image, data, casting="unsafe"))
        data = image
    calls += [draw, *launches(data, image)]
    if out.dtype == np.uint8 or image is not out:
        calls.append(partial(write, ctx.xp, out, image))
    return as_one(calls)


def _by_pixel(
    ctx: OpContext, data: Array, image: Array, stage: int, wanted: int, jitter: int, amounts: list[tuple[float, float]]
) -> Call:
    """A call that makes the changes of a stage: those whose bit is in `wanted`, by (least amount, range) of each."""
    numbers, _, sums = ctx.temp
    pixels, block = image.shape[0] * image.shape[1], _THREADS
    sizes = map(np.int32, (pixels, image.shape[2], _parts(pixels), stage, wanted, jitter))
    ends = [np.float64(number) for pair in amounts for number in pair]
    arguments = (data, image, numbers, sums, *sizes, *ends)
    return _CHANGE.call(ctx, image.dtype, -(-pixels // block), block, arguments, block * image.dtype.itemsize)


def _parts(pixels: int) -> int:
    return min(_PARTS, -(-pixels // _THREADS))


def _add_gray(ctx: OpContext, image: Array) -> Call:
    pixels = image.shape[0] * image.shape[1]
    arguments = (image, ctx.temp[2], np.int32(pixels), np.int32(image.shape[2]))
    return _SUMS.call(ctx, image.dtype, _parts(pixels), _THREADS, arguments, _THREADS * image.dtype.itemsize)


def _staged(
    ctx: OpContext, data: Array, image: Array, wanted: int, jitter: int, amounts: list[tuple[float, float]]
) -> list[Call]:
    """Calls that make the changes whose bit is in `wanted`."""
    launch = partial(_by_pixel, ctx, wanted=wanted, jitter=jitter, amounts=amounts)
    if not wanted >> _CONTRAST & 1:
        return [launch(data, image, _ALL)]
    ahead = [launch(data, image, _AHEAD)] if jitter else []
    before = image if jitter else data
    return [*ahead, _add_gray(ctx, before), launch(before, image, _BEHIND)]


def _by_factor(change: int, p: RangeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    amounts = [(p.min_factor, p.max_factor - p.min_factor)] * len(CHANGES)
    return _changed(
        ctx,
        inputs,
        outputs,
        lambda: ctx.random.uniform(ctx.temp[0][:1]),
        lambda data, image: _staged(ctx, data, image, 1 << change, 0, amounts),
    )


for _number, _name in enumerate(CHANGES):
    registry.extend(f"_image_random_{_name}").compute(
        "gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps
    )(partial(_by_factor, _number))


@registry.extend("_image_random_color_jitter").compute(
    "gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps
)
def _(p: JitterParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    widths = [getattr(p, name) for name in CHANGES]
    wanted = sum((width > 0) << k for k, width in enumerate(widths))
    middles = [0.0 if name == "hue" else 1.0 for name in CHANGES]
    amounts = [(middle - width, 2 * width) for middle, width in zip(middles, widths, strict=True)]
    return _changed(
        ctx,
        inputs,
        outputs,
        lambda: ctx.random.uniform(ctx.temp[0]),
        lambda data, image: _staged(ctx, data, image, wanted, 1, amounts),
    )


@registry.extend("_image_random_lighting").compute(
    "gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps
)
def _(p: RandomLightingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    def launch(data: Array, image: Array) -> list[Call]:
        arguments = (data, image, ctx.temp[0], np.int32(image.size), np.int32(image.shape[2]), np.float64(p.alpha_std))
        return [by_thread(ctx, _LIGHTING, image.dtype, image.size, arguments)]

    return _changed(ctx, inputs, outputs, lambda: ctx.random.normal(ctx.temp[0][:3]), launch)
