"""Pooling on a GPU: a thread a window forward, and a thread an element of data backward.

Channels second are images of one channel each: neighbouring threads have neighbouring positions. Of channels last
neighbouring threads have neighbouring channels. Windows over all of data are rows, shared out by `row_blocks`. Each
array is read and written once, as far as the cache keeps what neighbouring windows share. Backward adds nothing to
memory: the thread of an element looks at the windows that it is in, in one order. The gradient of a maximum goes to the
first element that is it, which a launch before finds for each window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np

from ..bound_calls import as_one
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..layout import CHANNELS_LAST, physical_arrays, share_layout
from ..nn.pooling import PoolingParams, backward, op, taps_of
from ..nn.taps import Taps
from ..nn.window import channels_first, is_last
from .division import DIVISION, declared, divisors
from .fours import by_rows
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, by_thread, contiguous, of_one_type, scalar
from .row_blocks import APPLY, JOIN, ROW, ROW_SIZES, STATISTICS, RowBlocks

_THREADS = 256
_KINDS = ("max", "avg", "sum", "lp")
_SIZES = (
    "int channels, int d, int h, int w, int od, int oh, int ow, int kd, int kh, int kw, "
    "int sd, int sh, int sw, int pd, int ph, int pw"
)
"""Channels that lie together, then data, windows, kernel, stride and padding along three dimensions."""
_WHAT = "32 images of 64 channels, 112 x 112, by 3 x 3"
_DATA, _OUT = 32 * 64 * 112 * 112, 32 * 64 * 56 * 56

_TERM = "kind != 3 || power == 1 ? v : power == 2 ? v * v : v * v * v"
_ROOT = "kind != 3 || power == 1 ? value : power == 2 ? sqrt(value) : cbrt(value)"
# Elements that avg divides by: what lies beyond the padding is never counted, padding where `padded` says so.
_COUNT = """    A count = 1;
    const int at[3] = {o0 * sd - pd, o1 * sh - ph, o2 * sw - pw}, reach[3] = {kd, kh, kw}, size[3] = {d, h, w};
    const int pads[3] = {pd, ph, pw};
    for (int axis = 0; axis < 3; ++axis) {
      int first = at[axis], end = min(at[axis] + reach[axis], size[axis] + pads[axis]);
      if (!padded) first = max(first, 0), end = min(end, size[axis]);
      count *= max(end - first, 1);
    }
"""

_WINDOW = """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int place = OPBOX_QUOTIENT(number, channels), row = OPBOX_QUOTIENT(place, ow), o2 = place - row * ow;
  const int sheet = OPBOX_QUOTIENT(row, oh), o1 = row - sheet * oh;
  const int image_number = OPBOX_QUOTIENT(sheet, od), o0 = sheet - image_number * od;
  const T *image = data + (long long)image_number * d * h * w * channels + (number - place * channels);
"""
_ELEMENTS = """  for (int z = max(o0 * sd - pd, 0); z < min(o0 * sd - pd + kd, d); ++z)
    for (int y = max(o1 * sh - ph, 0); y < min(o1 * sh - ph + kh, h); ++y)
      for (int x = max(o2 * sw - pw, 0); x < min(o2 * sw - pw + kw, w); ++x)"""

FORWARD = KernelTemplate(
    "opbox_pool",
    "const T *data, T *out, int elements, int kind, int power, int padded, A lowest, "
    f"{_SIZES}, {declared('channels', 'od', 'oh', 'ow')}",
    f"""{_WINDOW}  A value = kind == 0 ? lowest : A(0);
{_ELEMENTS} {{
        const A v = A(image[((z * h + y) * w + x) * channels]);
        if (kind == 0) {{
          if (v > value || v != v) value = v;
        }} else {{
          value += {_TERM};
        }}
      }}
  if (kind == 1) {{
{_COUNT}    value /= count;
  }}
  out[number] = T({_ROOT});
""",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT), 4 * (_DATA + _OUT))),
    declares=DIVISION,
    types=tuple(WITH_BFLOAT16),
)
_TAKE = f"if (kind != 0) value += {_TERM}; else if (v > value || v != v) value = v;"
WHOLE_WINDOW = KernelTemplate(
    "opbox_pool_whole",
    f"const T *data, T *out, A *parts, int kind, int power, A lowest, {ROW_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
  A value = kind == 0 ? lowest : A(0);
  if (phase != {APPLY}) {{
{by_rows({"v": "A(data[at])"}, _TAKE)}  }} else {{
    {JOIN} {{
      const A v = parts[s * outer * inner + row.number];
      if (kind == 0) {{
        if (v > value || v != v) value = v;
      }} else {{
        value += v;
      }}
    }}
  }}
  value = kind == 0 ? greatest_over_lanes(value, scratch, width, lanes) : add_over_lanes(value, scratch, width, lanes);
  if (row.lane > 0 || !row.inside) return;
  if (phase == {STATISTICS}) {{
    parts[row.slice * outer * inner + row.number] = value;
    return;
  }}
  if (kind == 1) value /= A(n);
  if (row.slice == 0) out[row.number] = T({_ROOT});
""",
    ("32 images of 2,048 channels, 7 x 7", lambda: Moved(4 * 65536 * 50, 4 * 65536 * 50)),
    declares=ROW,
    types=tuple(WITH_BFLOAT16),
)
WHOLE_MAX_BACK = KernelTemplate(
    "opbox_pool_whole_max_back",
    f"const T *gout, const T *data, const T *out, T *gdata, int *parts, {ROW_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
  int first = n;
  if (phase != {APPLY}) {{
    const A top = A(out[row.number]);
{by_rows({"v": "A(data[at])"}, "if (v == top && i < first) first = int(i);")}  }} else {{
    {JOIN} first = min(first, parts[s * outer * inner + row.number]);
  }}
  first = least_over_lanes(first, (int *)scratch, width, lanes);
  if (phase == {STATISTICS}) {{
    if (row.lane == 0 && row.inside) parts[row.slice * outer * inner + row.number] = first;
    return;
  }}
  const T g = gout[row.number];
{by_rows({}, "gdata[at] = i == first ? g : T(0);")}""",
    ("32 images of 2,048 channels, 7 x 7", lambda: Moved(4 * 65536 * 100, 4 * 65536 * 100)),
    declares=ROW,
    types=tuple(WITH_BFLOAT16),
)
BACKWARD = KernelTemplate(
    "opbox_pool_back",
    "const T *gout, const T *data, const T *out, T *gdata, const int *firsts, int elements, int kind, int power, "
    f"int padded, {_SIZES}, {declared('channels', 'd', 'h', 'w', 'sd', 'sh', 'sw')}",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int place = OPBOX_QUOTIENT(number, channels), channel = number - place * channels;
  const int row = OPBOX_QUOTIENT(place, w), x = place - row * w, sheet = OPBOX_QUOTIENT(row, h), y = row - sheet * h;
  const int plane = OPBOX_QUOTIENT(sheet, d), z = sheet - plane * d, own = place - plane * d * h * w;
  const A v = kind == 3 ? A(data[number]) : A(0);
  A sum = 0;
  for (int o0 = OPBOX_QUOTIENT(max(z + pd - kd + sd, 0), sd); o0 < od && o0 * sd <= z + pd; ++o0)
    for (int o1 = OPBOX_QUOTIENT(max(y + ph - kh + sh, 0), sh); o1 < oh && o1 * sh <= y + ph; ++o1)
      for (int o2 = OPBOX_QUOTIENT(max(x + pw - kw + sw, 0), sw); o2 < ow && o2 * sw <= x + pw; ++o2) {{
    const int o = (((plane * od + o0) * oh + o1) * ow + o2) * channels + channel;
    if (kind == 0) {{
      if (firsts[o] == own) sum += A(gout[o]);
      continue;
    }}
    const A g = A(gout[o]);
    if (kind == 2 || kind == 3 && power == 1) {{
      sum += g;
      continue;
    }}
    if (kind == 1) {{
{_COUNT}      sum += g / count;
      continue;
    }}
    const A top = A(out[o]), ratio = top == 0 ? A(0) : v / top;
    sum += g * (power == 2 ? ratio : ratio * ratio);
  }}
  gdata[number] = T(sum);
""",
    (_WHAT, lambda: Moved(4 * 2 * (_DATA + _OUT), 4 * 2 * (_DATA + _OUT))),
    declares=DIVISION,
    types=tuple(WITH_BFLOAT16),
)
FIRSTS = KernelTemplate(
    "opbox_pool_firsts",
    f"const T *data, const T *out, int *firsts, int elements, {_SIZES}, {declared('channels', 'od', 'oh', 'ow')}",
    f"""{_WINDOW}  const A top = A(out[number]);
  int first = -1;
{_ELEMENTS}
        if (first < 0 && A(image[((z * h + y) * w + x) * channels]) == top) first = (z * h + y) * w + x;
  firsts[number] = first;
""",
    (_WHAT, lambda: Moved(4 * (_DATA + 2 * _OUT), 4 * (_DATA + 2 * _OUT))),
    declares=DIVISION,
    types=tuple(WITH_BFLOAT16),
)
"""The number, in its image, of the first element of each window that is the maximum; -1 where there is none."""
KERNELS += [FORWARD, WHOLE_WINDOW, WHOLE_MAX_BACK, FIRSTS, BACKWARD]


def _numbers(p: PoolingParams) -> tuple[Any, ...]:
    """kind and power."""
    return np.int32(_KINDS.index(p.pool_type)), np.int32(p.p_value or 1)


def _triples(taps: Taps) -> list[tuple[int, ...]]:
    """Data, windows, kernel, stride and padding along three dimensions."""
    lists = (taps.data, taps.out, taps.kernel, taps.stride, taps.pad)
    return [(k,) * (3 - len(values)) + values for values, k in zip(lists, (1, 1, 1, 1, 0), strict=True)]


def _sizes(channels: int, taps: Taps) -> tuple[Any, ...]:
    """The numbers that _SIZES declares."""
    return tuple(map(np.int32, (channels, *chain(*_triples(taps)))))


def _accepts(p: PoolingParams, call: CallSpec, *arrays: ArraySpec) -> bool:
    return share_layout(call, range(len(call.inputs)), (0,)) and of_one_type(*arrays, types=WITH_BFLOAT16)


def _windows(p: PoolingParams, data: ArraySpec, out: ArraySpec) -> tuple[int, Taps]:
    """Return how many channels lie together, and the windows."""
    shape = channels_first(data.shape, p.layout) or ()
    together = shape[1] if is_last(p.layout) or data.layout == CHANNELS_LAST else 1
    return together, taps_of(p, shape, channels_first(out.shape, p.layout) or ())


def _whole(p: PoolingParams, data: ArraySpec, out: ArraySpec) -> RowBlocks:
    """Windows over all of data as rows; no row where they are smaller."""
    channels, taps = _windows(p, data, out)
    size = math.prod(taps.data)
    return RowBlocks(size_of(data.shape) // (size * channels), size, channels) if taps.whole else RowBlocks(0, 1, 1)


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts(p, call, call.inputs[0], call.outputs[0]),
    temps=lambda p, call: [_whole(p, call.inputs[0], call.outputs[0]).parts(1, call.inputs[0].dtype)],
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    inputs, (out,) = physical_arrays(ctx.call, inputs, outputs)
    (data,), calls = contiguous(ctx, inputs)
    channels, taps = _windows(p, ctx.call.inputs[0], ctx.call.outputs[0])
    # Where a window reaches over the edge, its maximum is of the padding too, which is the least finite number.
    least = ml_dtypes.finfo(data.dtype).min  # type: ignore[no-untyped-call]
    lowest = scalar(-math.inf if taps.whole or taps.covered else float(least), data.dtype)
    if taps.whole:
        arguments = (data, out, ctx.temp[0], *_numbers(p), lowest)
        blocks = _whole(p, ctx.call.inputs[0], ctx.call.outputs[0])
        return as_one([*calls, *blocks.calls(ctx, WHOLE_WINDOW, data.dtype, arguments)])
    numbers = (np.int32(out.size), *_numbers(p), _padded(p), lowest, *_sizes(channels, taps))
    arguments = (data, out, *numbers, *divisors(channels, *_triples(taps)[1]))
    return as_one([*calls, FORWARD.call(ctx, data.dtype, -(-out.size // _THREADS), _THREADS, arguments)])


def _firsts(p: PoolingParams, call: CallSpec) -> Temp:
    """The first maximum of each window, or of slices of windows that are all of data."""
    gout, gdata = call.inputs[0], call.outputs[0]
    if p.pool_type == "max" and not _windows(p, gdata, gout)[1].whole:
        return Temp(gout.shape, np.int32)
    return _whole(p, gdata, gout).parts(1, np.int32)


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts(p, call, *call.inputs, call.outputs[0]),
    temps=lambda p, call: [_firsts(p, call)],
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    inputs, (gdata,) = physical_arrays(ctx.call, inputs, outputs)
    (gout, *forward), calls = contiguous(ctx, inputs)
    data, out = forward or (gout, gout)
    channels, taps = _windows(p, ctx.call.outputs[0], ctx.call.inputs[0])
    if taps.whole and p.pool_type == "max":
        blocks = _whole(p, ctx.call.outputs[0], ctx.call.inputs[0])
        arguments = (gout, data, out, gdata, ctx.temp[0])
        return as_one([*calls, *blocks.calls(ctx, WHOLE_MAX_BACK, gdata.dtype, arguments)])
    sizes, (size, windows, _, stride, _) = _sizes(channels, taps), _triples(taps)
    if p.pool_type == "max":
        numbers = (np.int32(out.size), *sizes, *divisors(channels, *windows))
        calls.append(by_thread(ctx, FIRSTS, out.dtype, out.size, (data, out, ctx.temp[0], *numbers)))
    numbers = (np.int32(gdata.size), *_numbers(p), _padded(p), *sizes, *divisors(channels, *size, *stride))
    arguments = (gout, data, out, gdata, ctx.temp[0], *numbers)
    return as_one([*calls, by_thread(ctx, BACKWARD, gdata.dtype, gdata.size, arguments)])


def _padded(p: PoolingParams) -> Any:
    """Return 1 if avg counts padding, else 0, as the kernel's argument."""
    return np.int32(p.count_include_pad is not False)
