"""_contrib_quantize and _contrib_dequantize on a GPU: a launch each, which reads the range on the device.

`elementwise/quantize` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..elementwise.quantize import STEPS, DequantizeParams, QuantizeParams, dequantize, quantize
from ..infer import size_of
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, threads_for

_THREADS = 256
_ELEMENTS = 32 * 64 * 112 * 112
_EXAMPLE = ("32 images of 64 channels, 112 x 112", lambda: Moved(5 * _ELEMENTS, 5 * _ELEMENTS))
_C_NAMES = {"int8": "signed char", "uint8": "unsigned char"}
_LARGEST = """const float first = fabs(low[0]), second = fabs(high[0]);
  const float largest = isnan(first) || first > second ? first : second;
"""
"""NaN where either end is NaN, as the reference."""


def _quantize_kernel(kind: str) -> KernelTemplate:
    least, greatest = STEPS[kind]
    ends = ("-largest", "largest") if kind == "int8" else ("low[0]", "high[0]")
    return KernelTemplate(
        f"opbox_quantize_{kind}",
        f"const float *data, const float *low, const float *high, {_C_NAMES[kind]} *out, float *first_end, "
        "float *last_end, int elements",
        f"""  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {_LARGEST}  if (i == 0) {{
    first_end[0] = {ends[0]};
    last_end[0] = {ends[1]};
  }}
  if (i >= elements) return;
  const float step = rint(data[i] * ({greatest}.0f / largest));
  out[i] = ({_C_NAMES[kind]})(int)(step < {least} ? {least} : step > {greatest} ? {greatest} : step);
""",
        _EXAMPLE,
    )


def _dequantize_kernel(kind: str) -> KernelTemplate:
    return KernelTemplate(
        f"opbox_dequantize_{kind}",
        f"const {_C_NAMES[kind]} *data, const float *low, const float *high, float *out, int elements",
        f"""  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  {_LARGEST}  out[i] = float(data[i]) * (largest / {STEPS[kind][1]}.5f);
""",
        _EXAMPLE,
    )


_QUANTIZE = {kind: _quantize_kernel(kind) for kind in STEPS}
_DEQUANTIZE = {kind: _dequantize_kernel(kind) for kind in STEPS}
KERNELS += [*_QUANTIZE.values(), *_DEQUANTIZE.values()]


def _accepts(p: QuantizeParams | DequantizeParams, call: CallSpec) -> bool:
    return call.plain and 0 < size_of(call.inputs[0].shape) <= MAX_ELEMENTS


def _temps(p: QuantizeParams, call: CallSpec) -> list[Temp]:
    """Room for the outputs that nobody wants."""
    return [Temp(out.shape, out.dtype) for k, out in enumerate(call.outputs) if not call.wants(k)]


@quantize.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: QuantizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    temps = iter(ctx.temp)
    targets = [next(temps) if out is None else out for out in outputs]
    return as_one([*calls, _launch(ctx, _QUANTIZE[p.out_type], [*arrays, *targets], arrays[0].size)])


@dequantize.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: DequantizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    out = ctx.temp[0] if outputs[0] is None else outputs[0]
    data = arrays[0]
    return as_one([*calls, _launch(ctx, _DEQUANTIZE[data.dtype.name], [*arrays, out], data.size)])


def _launch(ctx: OpContext, kernel: KernelTemplate, arrays: Arrays, elements: int) -> Callable[[], Any]:
    block = threads_for(elements, _THREADS)
    return kernel.call(ctx, "float32", -(-elements // block), block, (*arrays, np.int32(elements)))
