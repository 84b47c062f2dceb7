"""softmax and its kin, SoftmaxActivation, SoftmaxOutput on a GPU: a block a row, or a thread where rows lie apart.

Arrays are (outer, n, inner), n being the axis that sums to one. Where inner is 1 a block has a row in shared memory: it
is read once and written once, the least possible; rows beyond SHARED bytes are read three times. Where inner is above 1
neighbouring threads have neighbouring rows and read each element twice.

    out = exp(z) / sum exp(z), z = factor data          log: z - log sum exp(z)
    gdata = factor out (gout - sum gout out)            log: factor (gout - exp(out) sum gout)
    gdata = scale (out - one_hot(label))                SoftmaxOutput
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs
from ..loss import softmax_output
from ..nn import softmax
from ..registry import get
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar, threads_for

__all__ = ["SHARED"]

SHARED = 40_960
"""Bytes of shared memory that a block takes without asking; the rest of the 48 KiB is the sums' scratch."""
_THREADS = 256


def _moved(passes: int, least: int, elements: int = 128 * 50_000, itemsize: int = 4) -> Callable[[], Moved]:
    return lambda: Moved(passes * elements * itemsize, least * elements * itemsize)


ROWS = KernelTemplate(
    "opbox_softmax_rows",
    "const T *data, T *out, int n, int cached, A factor, int logarithm",
    """  extern __shared__ A scratch[];
  A *row = scratch + blockDim.x;
  const long long start = (long long)blockIdx.x * n;
  A top = A(data[start]) * factor;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const A z = A(data[start + i]) * factor;
    if (cached) row[i] = z;
    top = z > top ? z : top;
  }
  scratch[threadIdx.x] = top;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    const A other = threadIdx.x < half ? scratch[threadIdx.x + half] : top;
    if (threadIdx.x < half && other > scratch[threadIdx.x]) scratch[threadIdx.x] = other;
    __syncthreads();
  }
  top = scratch[0];
  __syncthreads();
  A sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += exp((cached ? row[i] : A(data[start + i]) * factor) - top);
  sum = block_sum(sum, scratch);
  const A shift = log(sum);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const A z = (cached ? row[i] : A(data[start + i]) * factor) - top;
    out[start + i] = T(logarithm ? z - shift : exp(z) / sum);
  }
""",
    ("128 rows of 1,000", _moved(2, 2, 128 * 1000)),
)
COLUMNS = KernelTemplate(
    "opbox_softmax_columns",
    "const T *data, T *out, int n, int inner, int rows, A factor, int logarithm",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= rows) return;
  const long long start = (long long)(number / inner) * n * inner + number % inner;
  A top = A(data[start]) * factor, sum = 0;
  for (int i = 0; i < n; ++i) {
    const A z = A(data[start + (long long)i * inner]) * factor;
    if (z > top) {
      sum = sum * exp(top - z) + exp(z - z);  // NaN where z is infinite
      top = z;
    } else {
      sum += z == top && z < 0 ? A(1) : exp(z - top);
    }
  }
  const A shift = log(sum);
  for (int i = 0; i < n; ++i) {
    const long long at = start + (long long)i * inner;
    const A z = A(data[at]) * factor - top;
    out[at] = T(logarithm ? z - shift : exp(z) / sum);
  }
""",
    ("32 images of 21 classes, 128 x 128", _moved(3, 2, 32 * 21 * 128 * 128)),
)
ROWS_BACK = KernelTemplate(
    "opbox_softmax_rows_back",
    "const T *gout, const T *out, T *gdata, int n, int cached, A factor, int logarithm",
    """  extern __shared__ A scratch[];
  A *g = scratch + blockDim.x, *y = g + n;
  const long long start = (long long)blockIdx.x * n;
  A sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const A a = A(gout[start + i]), b = A(out[start + i]);
    if (cached) {
      g[i] = a;
      y[i] = b;
    }
    sum += logarithm ? a : a * b;
  }
  sum = block_sum(sum, scratch);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const A a = cached ? g[i] : A(gout[start + i]), b = cached ? y[i] : A(out[start + i]);
    gdata[start + i] = T(factor * (logarithm ? a - exp(b) * sum : (a - sum) * b));
  }
""",
    ("128 rows of 1,000", _moved(3, 3, 128 * 1000)),
)
COLUMNS_BACK = KernelTemplate(
    "opbox_softmax_columns_back",
    "const T *gout, const T *out, T *gdata, int n, int inner, int rows, A factor, int logarithm",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= rows) return;
  const long long start = (long long)(number / inner) * n * inner + number % inner;
  A sum = 0;
  for (int i = 0; i < n; ++i) {
    const long long at = start + (long long)i * inner;
    sum += logarithm ? A(gout[at]) : A(gout[at]) * A(out[at]);
  }
  for (int i = 0; i < n; ++i) {
    const long long at = start + (long long)i * inner;
    const A a = A(gout[at]), b = A(out[at]);
    gdata[at] = T(factor * (logarithm ? a - exp(b) * sum : (a - sum) * b));
  }
""",
    ("32 images of 21 classes, 128 x 128", _moved(5, 3, 32 * 21 * 128 * 128)),
)
LOSS_BACK = KernelTemplate(
    "opbox_softmax_loss_back",
    "const T *out, const T *label, T *gdata, int classes, int positions, int elements, A scale, A hit, A spread, "
    "int ignores, A ignored",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int position = number % positions, kind = number / positions % classes, row = number / positions / classes;
  const A wanted = trunc(A(label[row * positions + position]));
  A value = A(out[number]) - spread;
  if (wanted == A(kind)) value -= hit;
  if (ignores && wanted == ignored) value = 0;
  gdata[number] = T(value * scale);
""",
    ("128 rows of 1,000", lambda: Moved(4 * (2 * 128 * 1000 + 128), 4 * (2 * 128 * 1000 + 128))),
)
KERNELS += [ROWS, COLUMNS, ROWS_BACK, COLUMNS_BACK, LOSS_BACK]


def _launch(
    ctx: OpContext,
    kernels: tuple[KernelTemplate, KernelTemplate],
    inputs: Arrays,
    output: Any,
    shape: tuple[int, int, int],
    factor: float = 1.0,
    logarithm: bool = False,
) -> Callable[[], Any]:
    """A call of the kernel for rows, or of that for columns, on arrays of shape (outer, n, inner)."""
    arrays, calls = contiguous(ctx, inputs)
    outer, n, inner = shape
    dtype = output.dtype
    numbers = (scalar(factor, dtype), np.int32(logarithm))
    if inner == 1:
        itemsize = accumulation_type(dtype).itemsize
        row_bytes = len(inputs) * n * itemsize
        cached, block = row_bytes <= SHARED, threads_for(n, _THREADS)
        arguments = (*arrays, output, np.int32(n), np.int32(cached), *numbers)
        scratch = block * itemsize + row_bytes * cached
        return as_one([*calls, kernels[0].call(ctx, dtype, outer, block, arguments, scratch)])
    rows = outer * inner
    arguments = (*arrays, output, np.int32(n), np.int32(inner), np.int32(rows), *numbers)
    return as_one([*calls, kernels[1].call(ctx, dtype, -(-rows // _THREADS), _THREADS, arguments)])


def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _attach(name: str, sign: float, logarithm: bool) -> None:
    """Computes of softmax or one of its kin, without length."""

    @get(name).compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: len(call.inputs) == 1 and fits(call, call.inputs[0], call.outputs[0]),
    )
    def _(p: softmax.SoftmaxParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        shape, factor = _split(inputs[0].shape, p.axis), sign / (p.temperature or 1.0)
        return _launch(ctx, (ROWS, COLUMNS), inputs[:1], outputs[0], shape, factor, logarithm)

    @get(f"_backward_{name}").compute(
        "gpu", level="generated", prepares=True, accepts=lambda p, call: fits(call, *call.inputs[:2], call.outputs[0])
    )
    def _(p: softmax.SoftmaxParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        shape, factor = _split(inputs[0].shape, p.axis), sign / (p.temperature or 1.0)
        return _launch(ctx, (ROWS_BACK, COLUMNS_BACK), inputs[:2], outputs[0], shape, factor, logarithm)


_attach("softmax", 1.0, False)
_attach("softmin", -1.0, False)
_attach("log_softmax", 1.0, True)


def _activation_shape(p: softmax.SoftmaxActivationParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if p.mode == "channel":
        return shape[0], shape[1], math.prod(shape[2:])
    return math.prod(shape[:-1]), shape[-1], 1


@softmax.activation.compute(
    "gpu", level="generated", prepares=True, accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0])
)
def _(p: softmax.SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _launch(ctx, (ROWS, COLUMNS), inputs, outputs[0], _activation_shape(p, inputs[0].shape))


@softmax.activation_backward.compute(
    "gpu", level="generated", prepares=True, accepts=lambda p, call: fits(call, *call.inputs[:2], call.outputs[0])
)
def _(p: softmax.SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    shape = _activation_shape(p, inputs[0].shape)
    return _launch(ctx, (ROWS_BACK, COLUMNS_BACK), inputs[:2], outputs[0], shape)


@softmax_output.op.compute(
    "gpu", level="generated", prepares=True, accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0])
)
def _(p: softmax_output.SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    shape = softmax_output.row_shape(p, inputs[0].shape)
    return _launch(ctx, (ROWS, COLUMNS), inputs[:1], outputs[0], shape)


def _of_classes(p: softmax_output.SoftmaxOutputParams, call: CallSpec) -> bool:
    """Return whether labels are class numbers, the divisor does not depend on them, and gout is not read."""
    label, out = call.inputs[:2]
    return (
        label.shape != out.shape
        and p.normalization != "valid"
        and not p.out_grad
        and fits(call, label, out, call.outputs[0])
    )


@softmax_output.backward.compute("gpu", level="generated", prepares=True, accepts=_of_classes)
def _(p: softmax_output.SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (label, out), calls = contiguous(ctx, inputs[:2])
    _, classes, positions = softmax_output.row_shape(p, out.shape)
    smooth = p.smooth_alpha if not p.multi_output else 0.0
    spread = smooth / max(1, classes - 1)
    numbers = [softmax_output.divided_scale(p, label.shape, positions), 1 - smooth - spread, spread]
    sizes = map(np.int32, (classes, positions, out.size))
    ignored = (np.int32(p.use_ignore), scalar(int(p.ignore_label), out.dtype))
    arguments = (out, label, outputs[0], *sizes, *(scalar(n, out.dtype) for n in numbers), *ignored)
    grid = -(-out.size // _THREADS)
    return as_one([*calls, LOSS_BACK.call(ctx, out.dtype, grid, _THREADS, arguments)])
