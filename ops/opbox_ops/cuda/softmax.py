"""softmax and its kin, SoftmaxActivation, SoftmaxOutput's forward on a GPU, along any axis: rows by `row_blocks`.

Arrays are (outer, n, inner), n being the axis that sums to one. A first pass over a row has its maximum and its sum, a
second writes it; the second reads from a cache what a block's rows or slices were read for. That is the least where it
fits there. Many rows of 129 to 1,024 numbers side by side are those of `softmax_rows`.

    out = exp(z) / sum exp(z), z = factor data          log: z - log sum exp(z)
    gdata = factor out (gout - sum gout out)            log: factor (gout - exp(out) sum gout)

Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..loss import softmax_output
from ..nn import softmax
from ..registry import get
from .fours import by_rows
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar
from .row_blocks import APPLY, JOIN, ROW, ROW_SIZES, STATISTICS, RowBlocks
from .softmax_rows import softmax_rows, takes

__all__ = ["FORWARD", "ONLINE", "exponentials"]

_ROWS, _CLASSES = 8 * 4096, 1000
_EXAMPLE = "8 images of 1,000 classes, 64 x 64"


def _moved(passes: int, elements: int = _ROWS * _CLASSES) -> Callable[[], Moved]:
    return lambda: Moved(passes * elements * 4, passes * elements * 4)


ONLINE = """// The greatest of some numbers, and the sum of their exponentials, by its.
struct Exponentials {
  A top, sum;
};
// What is taken from a number before its exponential; where all are -infinity, 0, so that they count nothing.
__device__ A shift_of(A top) { return top < 0 && top - top != 0 ? A(0) : top; }
// Four numbers; those that are not there are -infinity.
__device__ void add_exponentials(Exponentials &own, const A *z) {
  A top = own.top;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (z[j] > top) top = z[j];
  const A shift = shift_of(top);
  if (top > own.top) {
    own.sum *= exp(own.top - shift);
    own.top = top;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) own.sum += exp(z[j] - shift);  // NaN where z is infinite
}
__device__ Exponentials over_lanes(const Exponentials &own, A *scratch, int width, int lanes) {
  Exponentials all;
  all.top = greatest_over_lanes(own.top, scratch, width, lanes);
  all.sum = add_over_lanes(own.sum * exp(own.top - shift_of(all.top)), scratch, width, lanes);
  return all;
}
"""


def exponentials(z: str, end: str = "row.end") -> str:
    """The text that has `all`, of the numbers z of a row's elements `at` before `end`."""
    return f"""  const A none = A(__int_as_float(0xff800000));
  Exponentials all = {{none, A(0)}};
  if (phase != {APPLY}) {{
{by_rows({"z": z}, end=end, none="none", fours="    add_exponentials(all, z_of);" + chr(10))}  }} else {{
    {JOIN} {{
      const A other = parts[s * outer * inner + row.number], sum = parts[(slices + s) * outer * inner + row.number];
      if (other > all.top || other != other) {{
        all.sum = all.sum * exp(all.top - shift_of(other)) + sum;
        all.top = other;
      }} else {{
        all.sum += sum * exp(other - shift_of(all.top));
      }}
    }}
  }}
  all = over_lanes(all, scratch, width, lanes);
  if (phase == {STATISTICS}) {{
    if (row.lane == 0 && row.inside) {{
      parts[row.slice * outer * inner + row.number] = all.top;
      parts[(slices + row.slice) * outer * inner + row.number] = all.sum;
    }}
    return;
  }}
"""


def _forward_kernel(name: str, masked: bool) -> KernelTemplate:
    """The kernel; `masked`: only elements below a row's length count, the others are 0."""
    value = "logarithm ? z - all.top - shift : exp(z - all.top) * inverse"
    counted = """  const double length = lengths[row.number];
  // A length that is NaN leaves nothing out.
  const unsigned end = min(row.end, length > 0 ? (length < n ? unsigned(ceil(length)) : n) : length <= 0 ? 0u : n);
"""
    return KernelTemplate(
        name,
        f"const T *data, {'const double *lengths, ' * masked}T *out, A *parts, A factor, int logarithm, {ROW_SIZES}, "
        "int phase",
        f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
{counted if masked else "  const unsigned end = row.end;" + chr(10)}{exponentials(_Z, "end")}\
  const A shift = log(all.sum), inverse = 1 / all.sum;
{by_rows({"z": _Z}, f"out[at] = {'i >= end ? T(0) : ' * masked}T({value});")}""",
        (_EXAMPLE, _moved(2)),
        declares=ROW + ONLINE,
    )


_Z = "A(data[at]) * factor"
FORWARD = _forward_kernel("opbox_softmax", False)
MASKED = _forward_kernel("opbox_softmax_masked", True)
_BACK_READS = {"g": "A(gout[at])", "y": "A(out[at])"}
BACKWARD = KernelTemplate(
    "opbox_softmax_back",
    f"const T *gout, const T *out, T *gdata, A *parts, A factor, int logarithm, {ROW_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
  A sum = 0;
  if (phase != {APPLY}) {{
{by_rows(_BACK_READS, "sum += logarithm ? g : g * y;")}  }} else {{
    {JOIN} sum += parts[s * outer * inner + row.number];
  }}
  sum = add_over_lanes(sum, scratch, width, lanes);
  if (phase == {STATISTICS}) {{
    if (row.lane == 0 && row.inside) parts[row.slice * outer * inner + row.number] = sum;
    return;
  }}
{by_rows(_BACK_READS, "gdata[at] = T(factor * (logarithm ? g - exp(y) * sum : (g - sum) * y));")}""",
    (_EXAMPLE, _moved(3)),
    declares=ROW,
)
KERNELS += [FORWARD, MASKED, BACKWARD]


def _launch(
    ctx: OpContext,
    kernel: KernelTemplate,
    inputs: Arrays,
    output: Any,
    shape: tuple[int, int, int],
    factor: float = 1.0,
    logarithm: bool = False,
) -> Callable[[], Any]:
    """A call of a kernel on arrays of shape (outer, n, inner)."""
    arrays, calls = contiguous(ctx, inputs)
    dtype = output.dtype
    if kernel is FORWARD and takes(shape):
        return as_one([*calls, softmax_rows(ctx, arrays[0], output, *shape[:2], factor, logarithm)])
    arguments = (*arrays, output, ctx.temp[-1], scalar(factor, dtype), np.int32(logarithm))
    return as_one([*calls, *RowBlocks(*shape).calls(ctx, kernel, dtype, arguments)])


def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    shape = shape or (1,)
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _parts(shape: tuple[int, int, int], array: ArraySpec, numbers: int) -> list[Temp]:
    return [RowBlocks(*shape).parts(numbers, array.dtype)]


def _attach(name: str, sign: float, logarithm: bool) -> None:
    """Computes of softmax or one of its kin."""

    def temps(p: softmax.SoftmaxParams, call: CallSpec) -> list[Temp]:
        data, *lengths = call.inputs
        return [*(Temp(one.shape, "float64") for one in lengths), *_parts(_split(data.shape, p.axis), data, 2)]

    @get(name).compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: call.plain and fits(call, call.inputs[0], call.outputs[0]),
        temps=temps,
    )
    def _(p: softmax.SoftmaxParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        shape, factor = _split(inputs[0].shape, p.axis), sign / (p.temperature or 1.0)
        if len(inputs) == 1:
            return _launch(ctx, FORWARD, inputs, outputs[0], shape, factor, logarithm)
        lengths = ctx.temp[0]
        widened = partial(ctx.xp.copyto, lengths, inputs[1], casting="unsafe")
        masked = _launch(ctx, MASKED, [inputs[0], lengths], outputs[0], shape, factor, logarithm)
        return as_one([widened, masked])

    @get(f"_backward_{name}").compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: fits(call, *call.inputs[:2], call.outputs[0]),
        temps=lambda p, call: _parts(_split(call.inputs[1].shape, p.axis), call.inputs[1], 1),
    )
    def _(p: softmax.SoftmaxParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        shape, factor = _split(inputs[0].shape, p.axis), sign / (p.temperature or 1.0)
        return _launch(ctx, BACKWARD, inputs[:2], outputs[0], shape, factor, logarithm)


_attach("softmax", 1.0, False)
_attach("softmin", -1.0, False)
_attach("log_softmax", 1.0, True)


def _activation_shape(p: softmax.SoftmaxActivationParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if p.mode == "channel":
        return shape[0], shape[1], math.prod(shape[2:])
    return math.prod(shape[:-1]), shape[-1], 1


@softmax.activation.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0]),
    temps=lambda p, call: _parts(_activation_shape(p, call.inputs[0].shape), call.inputs[0], 2),
)
def _(p: softmax.SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _launch(ctx, FORWARD, inputs, outputs[0], _activation_shape(p, inputs[0].shape))


@softmax.activation_backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, *call.inputs[:2], call.outputs[0]),
    temps=lambda p, call: _parts(_activation_shape(p, call.inputs[0].shape), call.inputs[0], 1),
)
def _(p: softmax.SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    shape = _activation_shape(p, inputs[0].shape)
    return _launch(ctx, BACKWARD, inputs[:2], outputs[0], shape)


@softmax_output.op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0]),
    temps=lambda p, call: _parts(softmax_output.row_shape(p, call.inputs[0].shape), call.inputs[0], 2),
)
def _(p: softmax_output.SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    shape = softmax_output.row_shape(p, inputs[0].shape)
    return _launch(ctx, FORWARD, inputs[:1], outputs[0], shape)
