"""Correlation on a GPU: a thread for each number of out, and of the gradients, which gathers what meets it.

Sums go through displacements, the kernel's taps and channels in one order, so that runs agree to the last bit. Nothing
is padded: what lies outside of an image is read as 0.

`nn/correlation` has the formulas. Dosovitskiy et al., "FlowNet" (2015).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs
from ..nn.correlation import CorrelationParams, backward, op, scale_of, width_of
from .kernel import KERNELS, KernelTemplate, Moved, by_thread, contiguous, fits, scalar

_BATCH, _CHANNELS, _HEIGHT, _WIDTH, _DISPLACED = 8, 256, 48, 64, 21
_DATA, _OUT = _BATCH * _CHANNELS * _HEIGHT * _WIDTH, _BATCH * _DISPLACED**2 * _HEIGHT * _WIDTH
_WHAT = f"{_BATCH} pairs of {_CHANNELS} channels, {_HEIGHT} x {_WIDTH}, {_DISPLACED} x {_DISPLACED} displacements"
_SIZES = (
    "int elements, int channels, int height, int width, int out_y, int out_x, int across, int kernel, int reach, "
    "int step, int apart, int pad, int multiply, A scale"
)
"""Data, places, displacements along a dimension, kernel, max_displacement, stride1, stride2, padding, is_multiply."""
_AT = """__device__ A at(const T *plane, int y, int x, int height, int width) {
  return y >= 0 && y < height && x >= 0 && x < width ? A(plane[y * width + x]) : A(0);
}
"""
_FORWARD = KernelTemplate(
    "opbox_correlation",
    f"const T *one, const T *two, T *out, {_SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int shift = number / (out_x * out_y) % (across * across), image = number / (out_x * out_y) / (across * across);
  const int dy = (shift / across - across / 2) * apart, dx = (shift % across - across / 2) * apart;
  const int top = number / out_x % out_y * step + reach - pad, left = number % out_x * step + reach - pad;
  A total = 0;
  for (int i = 0; i < kernel; ++i)
    for (int j = 0; j < kernel; ++j) {
      const int y = top + i, x = left + j;
      A sum = 0;
      for (int channel = 0; channel < channels; ++channel) {
        const int plane = (image * channels + channel) * height * width;
        const A a = at(one + plane, y, x, height, width), b = at(two + plane, y + dy, x + dx, height, width);
        sum += multiply ? a * b : fabs(a - b);
      }
      total += sum;
    }
  out[number] = T(total * scale);
""",
    (_WHAT, lambda: Moved(4 * (2 * _DATA + _OUT), 4 * (2 * _DATA + _OUT))),
    _AT,
    contracts=True,
)
_BACK = KernelTemplate(
    "opbox_correlation_back",
    f"const T *gout, const T *here, const T *there, T *gradient, int second, {_SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int column = number % width, row = number / width % height, plane = number / (width * height);
  const T *other = there + plane * height * width, *grads = gout + plane / channels * across * across * out_y * out_x;
  const A own = A(here[number]);
  A sum = 0;
  for (int shift = 0; shift < across * across; ++shift) {
    const int dy = (shift / across - across / 2) * apart, dx = (shift % across - across / 2) * apart;
    // The place in data1, and the element that it met.
    const int y = row - (second ? dy : 0), x = column - (second ? dx : 0);
    const A met = at(other, second ? y : y + dy, second ? x : x + dx, height, width);
    const A part = multiply ? met : (second ? met >= own : own >= met) ? A(1) : A(-1);
    for (int i = 0; i < kernel; ++i) {
      const int top = y + pad - reach - i;
      if (top < 0 || top % step || top / step >= out_y) continue;
      for (int j = 0; j < kernel; ++j) {
        const int left = x + pad - reach - j;
        if (left < 0 || left % step || left / step >= out_x) continue;
        const A g = A(grads[(shift * out_y + top / step) * out_x + left / step]) * scale;
        sum += second && !multiply ? -(g * part) : g * part;
      }
    }
  }
  gradient[number] = T(sum);
""",
    (_WHAT, lambda: Moved(4 * (3 * _DATA + _OUT), 4 * (3 * _DATA + _OUT))),
    _AT,
    contracts=True,
)
KERNELS += [_FORWARD, _BACK]


def _accepts(p: CorrelationParams, call: CallSpec) -> bool:
    return fits(call, *call.inputs, *call.outputs)


def _sizes(p: CorrelationParams, elements: int, data: Array, places: tuple[int, ...]) -> list[Any]:
    """The numbers that _SIZES declares."""
    options = (width_of(p), p.kernel_size, p.max_displacement, p.stride1, p.stride2, p.pad_size, p.is_multiply)
    sizes = [*map(np.int32, (elements, *data.shape[1:], *places, *options))]
    return [*sizes, scalar(scale_of(p, data.shape[1]), data.dtype)]


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts)
def _(p: CorrelationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (one, two), calls = contiguous(ctx, inputs)
    out = outputs[0]
    if out is None:
        return as_one([])
    sizes = _sizes(p, out.size, one, out.shape[2:])
    return as_one([*calls, by_thread(ctx, _FORWARD, out.dtype, out.size, (one, two, out, *sizes))])


@backward.compute("gpu", level="generated", prepares=True, accepts=_accepts)
def _(p: CorrelationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (gout, *images), calls = contiguous(ctx, inputs)
    for second, gradient in enumerate(outputs):
        if gradient is not None:
            here, there = images[second], images[1 - second]
            sizes = _sizes(p, here.size, here, gout.shape[2:])
            arguments = (gout, here, there, gradient, np.int32(second), *sizes)
            calls.append(by_thread(ctx, _BACK, here.dtype, here.size, arguments))
    return as_one(calls)
