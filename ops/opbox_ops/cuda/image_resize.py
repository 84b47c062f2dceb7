"""_image_resize on a GPU: a thread weighs the pixels that one number of out reads, along rows and then down.

Which pixels these are, and their weights, are tables of the CPU's, which go to the device when a plan is bound.
Products are rounded before they are added, as there, so that uint8 is rounded alike. `image/resize` has the formulas.
"""

from __future__ import annotations

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs
from ..image.kernels import AREA, CUBIC, LINEAR, NEAREST
from ..image.resize import STEPS, ResizeParams, Taps, kind_of, op, taps_of, works_in
from ..infer import size_of
from .kernel import KERNELS, MAX_ELEMENTS, TYPES, KernelTemplate, Moved, by_thread, contiguous

_OLD, _NEW = 512, 224
_TAPS = 4
_NUMBERS = 3 * (_OLD * _OLD + _NEW * _NEW)
_TABLES = 2 * 2 * _NEW * _TAPS
_WHAT = f"an image of {_OLD} x {_OLD} to {_NEW} x {_NEW}, 3 channels, cubic"
_SIZES = "int elements, int height, int width, int channels, int rows, int columns, int taps_y, int taps_x"
_BEGIN = """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int channel = number % channels, j = number / channels % columns, i = number / channels / columns % rows;
  const {T} *image = data + number / channels / columns / rows * height * width * channels + channel;
"""
_TIMES = """// A product that is not joined with a sum to one rounding.
#ifdef __CUDACC_RTC__
__device__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ double times(double a, double b) { return __dmul_rn(a, b); }
#else
__device__ float times(float a, float b) { return a * b; }
__device__ double times(double a, double b) { return a * b; }
#endif
"""


def _weighing(number: str) -> str:
    """Text that adds weighted pixels up to `total`, of the type `number`."""
    return f"""  {number} total = 0;
  for (int tap = 0; tap < taps_y; ++tap) {{
    {number} sum = 0;
    for (int k = 0; k < taps_x; ++k)
      sum += times({number}(image[(at_y[tap * rows + i] * width + at_x[k * columns + j]) * channels]),
                   weight_x[k * columns + j]);
    total += times(sum, weight_y[tap * rows + i]);
  }}
"""


def _moved(itemsize: int) -> Moved:
    """Pixels of a row are read for each of the columns that they are in; caches have most of them."""
    return Moved(itemsize * _NUMBERS + 4 * _TABLES, itemsize * _NUMBERS + 4 * _TABLES)


_RESIZE = KernelTemplate(
    "opbox_resize",
    "const T *data, T *out, const int *at_y, const int *at_x, const A *weight_y, const A *weight_x, " + _SIZES,
    _BEGIN.replace("{T}", "T") + _weighing("A") + "  out[number] = T(total);\n",
    (_WHAT, lambda: _moved(4)),
    _TIMES,
)
_RESIZE_AREAS = KernelTemplate(
    "opbox_resize_byte_areas",
    "const unsigned char *data, unsigned char *out, const int *at_y, const int *at_x, const float *weight_y, "
    f"const float *weight_x, {_SIZES}, int quarters",
    _BEGIN.replace("{T}", "unsigned char")
    + _weighing("float")
    + """  const float pixel = quarters ? floor(total + 0.5f) : rint(total);
  out[number] = (unsigned char)(pixel < 0 ? 0 : pixel > 255 ? 255 : pixel);
""",
    (_WHAT, lambda: _moved(1)),
    _TIMES,
)
_RESIZE_BYTES = KernelTemplate(
    "opbox_resize_bytes",
    "const unsigned char *data, unsigned char *out, const int *at_y, const int *at_x, const int *weight_y, "
    f"const int *weight_x, {_SIZES}, int kind",
    _BEGIN.replace("{T}", "unsigned char")
    + f"""  if (kind == {NEAREST}) {{
    out[number] = image[(at_y[i] * width + at_x[j]) * channels];
    return;
  }}
  // As OpenCV, which rounds each kind its own way.
  const bool linear = kind == {LINEAR} || kind == {-AREA};
  int total = linear ? 2 : 0;
  for (int tap = 0; tap < taps_y; ++tap) {{
    int sum = 0;
    for (int k = 0; k < taps_x; ++k)
      sum += int(image[(at_y[tap * rows + i] * width + at_x[k * columns + j]) * channels]) * weight_x[k * columns + j];
    const int weight = weight_y[tap * rows + i];
    total += linear ? (sum >> 4) * weight >> 16 : sum * weight;
  }}
  const int pixel = linear ? total >> 2
                  : kind == {CUBIC} ? int(rint(total / {STEPS**2}.0)) : (total + {STEPS**2 // 2}) >> 22;
  out[number] = (unsigned char)(pixel < 0 ? 0 : pixel > 255 ? 255 : pixel);
""",
    (_WHAT, lambda: _moved(1)),
)
KERNELS += [_RESIZE, _RESIZE_AREAS, _RESIZE_BYTES]


def _accepts(p: ResizeParams, call: CallSpec) -> bool:
    arrays, dtype = (call.inputs[0], call.outputs[0]), call.inputs[0].dtype
    known = dtype.name in TYPES or dtype.kind in "iub"
    return call.plain and known and all(0 < size_of(a.shape) * dtype.itemsize <= MAX_ELEMENTS for a in arrays)


def _tables(ctx: OpContext, down: Taps, across: Taps) -> list[Array]:
    """The pixels that rows and columns of out read, tap by tap, and their weights, on the device."""
    pairs = [[taps[k] for taps in axis] for k in (0, 1) for axis in (down, across)]
    pixels, weights = pairs[:2], pairs[2:]
    whole = [np.concatenate(arrays).astype(np.int32) for arrays in pixels]
    parts = [np.concatenate([array.reshape(-1) for array in arrays]) for arrays in weights]
    return [ctx.xp.asarray(array) for array in (*whole, *parts)]


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts)
def _(p: ResizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (data,), calls = contiguous(ctx, inputs)
    out = outputs[0]
    if out is None:
        return as_one([])
    old, new = data.shape[-3:-1], out.shape[-3:-1]
    kind, dtype = kind_of(p, old, new), np.dtype(np.float32)
    weighed_in, last = works_in(kind, data.dtype).name, tuple[int, ...]()
    if data.dtype.name in TYPES:
        kernel, dtype = _RESIZE, data.dtype
        weighed_in = accumulation_type(dtype).name
    elif kind == AREA:
        # Four pixels at a time are rounded up at a half, other areas to the even number.
        kernel, last = _RESIZE_AREAS, (old == (2 * new[0], 2 * new[1]) and out.shape[-1] in (1, 3, 4),)
    else:
        # The nearest pixels are copied byte by byte, whatever their type.
        kernel, weighed_in, last = _RESIZE_BYTES, "whole", (kind,)
        data, out = data.view(np.uint8), out.view(np.uint8)
    down, across = (taps_of(kind, old[k], new[k], bool(k), weighed_in) for k in (0, 1))
    sizes = map(np.int32, (out.size, *old, out.shape[-1], *new, len(down), len(across), *last))
    arguments = (data, out, *_tables(ctx, down, across), *sizes)
    calls.append(by_thread(ctx, kernel, dtype, out.size, arguments))
    return as_one(calls)
