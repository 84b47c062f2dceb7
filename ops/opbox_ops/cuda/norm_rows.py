"""LayerNorm, GroupNorm, InstanceNorm and L2Normalization on a GPU: rows shared out by `row_blocks`.

A row is what is normalised together. Forward reads it for its statistics and again, from a cache, to write it.
Backward takes the statistics from data once more, adds up what the row's gradient needs, and writes it: three passes,
of which two read a cache. Gradients of gamma and beta are sums over rows: those of groups are made of a number a row,
those of LayerNorm are `norm_columns`'s.

    out = gamma x + beta, x = (data - mean) / std       gdata = (g - mean(g) - x mean(g x)) / std, g = gamma gout
    out = data / norm                                   gdata = (gout - out sum(gout out)) / norm       L2Normalization
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..nn import group_norm, l2_normalization, layer_norm
from ..nn.layer_norm import LayerNormParams
from ..registry import get
from .fours import by_rows
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, contiguous, fits, scalar
from .norm_columns import column_parts, column_sums, row_parts, row_sums
from .row_blocks import APPLY, JOIN, MOMENTS, ROW, ROW_SIZES, STATISTICS, WHOLE, RowBlocks

_ROWS, _WIDTH = 8192, 1024
_ELEMENTS = _ROWS * _WIDTH
_EXAMPLE = "8,192 rows of 1,024"
_SUMS = 3
"""The phase between statistics and what comes of them: backward's sums of a slice."""
_OWN_ROW = """  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
  const int rows = outer * inner;
"""
_X = "A(data[at]) - origin"
"""An element, less the row's first: what is left is small where the row is far from 0, so that few digits are lost."""


def _slice_moments(phases: str) -> str:
    """The text that has the moments of data's row in `all`: of its slice in the first phase, joined in the others."""
    return f"""  const A origin = A(data[row.start]);
  Moments own = {{A(0), A(0), A(0)}};
  if ({phases}) {{
{by_rows({"x": _X}, fours="    add_values(own, x_of, count);" + chr(10))}  }} else {{
    {JOIN}
      join_moments(own, parts[s * rows + row.number], parts[(slices + s) * rows + row.number],
                   parts[(2 * slices + s) * rows + row.number]);
  }}
  const A count = phase == {STATISTICS} ? slice_count(n, row.slice, slices, lanes) : A(n);
  const Moments all = moments_over_lanes(own, count, scratch, width, lanes);
  if (phase == {STATISTICS}) {{
    if (row.lane == 0 && row.inside) {{
      parts[row.slice * rows + row.number] = all.mean;
      parts[(slices + row.slice) * rows + row.number] = all.squares;
      parts[(2 * slices + row.slice) * rows + row.number] = all.count;
    }}
    return;
  }}
  const A deviation = sqrt(all.squares / A(n) + eps);
"""


_AFFINE = {
    "x": _X,
    "factor": "A(gamma[groups ? group : i])",
    "shift": "A(beta[groups ? group : i])",
}
_GRADIENT = {"g": "groups ? A(gout[at]) : A(gout[at]) * A(gamma[i])", "x": _X}
FORWARD = KernelTemplate(
    "opbox_norm_rows",
    "const T *data, const T *gamma, const T *beta, T *out, T *means, T *deviations, A *parts, A eps, int groups, "
    f"int writes, {ROW_SIZES}, int phase",
    f"""{_OWN_ROW}{_slice_moments(f"phase != {APPLY}")}  if (row.lane == 0 && row.slice == 0 && row.inside) {{
    if (writes & 2) means[row.number] = T(origin + all.mean);
    if (writes & 4) deviations[row.number] = T(deviation);
  }}
  if (!(writes & 1)) return;
  const A inverse = 1 / deviation;
  const int group = groups ? row.number % groups : 0;
{by_rows(_AFFINE, "out[at] = T((x - all.mean) * inverse * factor + shift);")}""",
    (_EXAMPLE, lambda: Moved(4 * 2 * _ELEMENTS, 4 * 2 * _ELEMENTS)),
    declares=ROW + MOMENTS,
    types=tuple(WITH_BFLOAT16),
)
BACKWARD = KernelTemplate(
    "opbox_norm_rows_back",
    "const T *gout, const T *data, const T *gamma, T *gdata, A *of_rows, A *parts, A eps, int groups, int writes, "
    f"{ROW_SIZES}, int phase",
    f"""{_OWN_ROW}{_slice_moments(f"phase == {WHOLE} || phase == {STATISTICS}")}  A sum = 0, products = 0;
  const A inverse = 1 / deviation;
  A *sums = parts + 3 * slices * rows, *sums_of_products = sums + slices * rows;
  if (phase != {APPLY}) {{
{by_rows(_GRADIENT, "sum += g; products += g * ((x - all.mean) * inverse);")}  }} else {{
    {JOIN} {{
      sum += sums[s * rows + row.number];
      products += sums_of_products[s * rows + row.number];
    }}
  }}
  sum = add_over_lanes(sum, scratch, width, lanes);
  products = add_over_lanes(products, scratch, width, lanes);
  if (phase == {_SUMS}) {{
    if (row.lane == 0 && row.inside) {{
      sums[row.slice * rows + row.number] = sum;
      sums_of_products[row.slice * rows + row.number] = products;
    }}
    return;
  }}
  if (row.lane == 0 && row.slice == 0 && row.inside) {{
    of_rows[row.number] = groups ? products : origin + all.mean;
    of_rows[rows + row.number] = groups ? sum : inverse;
  }}
  if (!writes) return;
  const A level = sum / A(n), slope = products / A(n), factor = groups ? A(gamma[row.number % groups]) : A(1);
{by_rows(_GRADIENT, "gdata[at] = T((g - level - (x - all.mean) * inverse * slope) * factor * inverse);")}""",
    (_EXAMPLE, lambda: Moved(4 * 3 * _ELEMENTS, 4 * 3 * _ELEMENTS)),
    declares=ROW + MOMENTS,
    types=tuple(WITH_BFLOAT16),
)
LENGTH = KernelTemplate(
    "opbox_l2_rows",
    f"const T *data, T *out, T *norms, A *parts, A eps, int writes, {ROW_SIZES}, int phase",
    f"""{_OWN_ROW}  A sum = 0;
  if (phase != {APPLY}) {{
{by_rows({"x": "A(data[at])"}, "sum += x * x;")}  }} else {{
    {JOIN} sum += parts[s * rows + row.number];
  }}
  sum = add_over_lanes(sum, scratch, width, lanes);
  if (phase == {STATISTICS}) {{
    if (row.lane == 0 && row.inside) parts[row.slice * rows + row.number] = sum;
    return;
  }}
  const A norm = sqrt(sum + eps), inverse = 1 / norm;
  if (row.lane == 0 && row.slice == 0 && row.inside && (writes & 2)) norms[row.number] = T(norm);
  if (!(writes & 1)) return;
{by_rows({"x": "A(data[at])"}, "out[at] = T(x * inverse);")}""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _ELEMENTS + _ROWS), 4 * (2 * _ELEMENTS + _ROWS))),
    declares=ROW,
    types=tuple(WITH_BFLOAT16),
)
_LENGTH_READS = {"g": "A(gout[at])", "y": "A(out[at])"}
LENGTH_BACK = KernelTemplate(
    "opbox_l2_rows_back",
    f"const T *gout, const T *out, const T *norms, T *gdata, A *parts, {ROW_SIZES}, int phase",
    f"""{_OWN_ROW}  A sum = 0;
  if (phase != {APPLY}) {{
{by_rows(_LENGTH_READS, "sum += g * y;")}  }} else {{
    {JOIN} sum += parts[s * rows + row.number];
  }}
  sum = add_over_lanes(sum, scratch, width, lanes);
  if (phase == {STATISTICS}) {{
    if (row.lane == 0 && row.inside) parts[row.slice * rows + row.number] = sum;
    return;
  }}
  const A inverse = 1 / A(norms[row.number]);
{by_rows(_LENGTH_READS, "gdata[at] = T((g - y * sum) * inverse);")}""",
    (_EXAMPLE, lambda: Moved(4 * (3 * _ELEMENTS + _ROWS), 4 * (3 * _ELEMENTS + _ROWS))),
    declares=ROW,
    types=tuple(WITH_BFLOAT16),
)
KERNELS += [FORWARD, BACKWARD, LENGTH, LENGTH_BACK]


def _layer_blocks(p: LayerNormParams, shape: tuple[int, ...]) -> RowBlocks:
    axis = p.axis % len(shape)
    return RowBlocks(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _blocks(p: Any, call: CallSpec, first: int) -> RowBlocks:
    """The rows of data, which is input `first`, before gamma."""
    shape = call.inputs[first].shape
    if isinstance(p, LayerNormParams):
        return _layer_blocks(p, shape)
    rows = shape[0] * size_of(call.inputs[first + 1].shape)
    return RowBlocks(rows, size_of(shape) // rows, 1)


def _groups(p: Any, gamma: Array) -> Any:
    """gamma's size where each of its numbers is a whole row's; 0 for LayerNorm, where each is an element's."""
    return np.int32(0 if isinstance(p, LayerNormParams) else gamma.size)


def _accepts(p: Any, call: CallSpec) -> bool:
    return fits(call, *call.inputs, *call.outputs, types=WITH_BFLOAT16)


def _forward(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    data, gamma = arrays[:2]
    targets = [*outputs, None, None][:3]
    writes = sum(1 << k for k, target in enumerate(targets) if target is not None)
    # What is not written is any array of the type.
    written = [data if target is None else target for target in targets]
    arguments = (*arrays, *written, ctx.temp[0], scalar(p.eps, data.dtype), _groups(p, gamma), np.int32(writes))
    return as_one([*calls, *_blocks(p, ctx.call, 0).calls(ctx, FORWARD, data.dtype, arguments)])


def _back_temps(p: Any, call: CallSpec) -> list[Temp]:
    """The parts of slices, two numbers a row, and those of gamma's gradients that `norm_columns` adds up."""
    data, gamma = call.inputs[1:3]
    blocks = _blocks(p, call, 1)
    temps = [blocks.parts(5, data.dtype), Temp((2, blocks.rows), accumulation_type(data.dtype))]
    if not (call.wants(1) or call.wants(2)):
        return temps
    if isinstance(p, LayerNormParams):
        return [*temps, *column_parts(blocks, data.dtype)]
    return [*temps, row_parts(data.shape[0], size_of(gamma.shape), data.dtype)]


def _backward(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    gout, data, gamma = arrays
    parts, of_rows, *further = ctx.temp
    gdata, *gradients = outputs
    blocks = _blocks(p, ctx.call, 1)
    numbers = (scalar(p.eps, data.dtype), _groups(p, gamma), np.int32(gdata is not None))
    arguments = (*arrays, gout if gdata is None else gdata, of_rows, parts, *numbers)
    calls += blocks.calls(ctx, BACKWARD, data.dtype, arguments, (STATISTICS, _SUMS, APPLY))
    if further and isinstance(p, LayerNormParams):
        calls += column_sums(ctx, blocks, (gout, data), of_rows, further, gradients)
    elif further:
        calls += row_sums(ctx, of_rows, gamma.size, further[0], gradients, gout)
    return as_one(calls)


for _op, _name in (
    (layer_norm.op, "_backward_LayerNorm"),
    (group_norm.group_norm, "_backward_GroupNorm"),
    (group_norm.instance_norm, "_backward_InstanceNorm"),
):
    _op.compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=_accepts,
        temps=lambda p, call: [_blocks(p, call, 0).parts(3, call.inputs[0].dtype)],
    )(_forward)
    get(_name).compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_back_temps)(_backward)


def _l2_blocks(p: l2_normalization.L2NormalizationParams, call: CallSpec) -> RowBlocks:
    shape = call.inputs[0].shape
    if p.mode == "channel":
        return RowBlocks(shape[0], shape[1], size_of(shape[2:]))
    rows = size_of(shape[: 2 if p.mode == "spatial" else 1])
    return RowBlocks(rows, size_of(shape) // rows, 1)


def _l2_temps(p: l2_normalization.L2NormalizationParams, call: CallSpec) -> list[Temp]:
    return [_l2_blocks(p, call).parts(1, call.inputs[0].dtype)]


@l2_normalization.op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_l2_temps)
def _(p: l2_normalization.L2NormalizationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data,), calls = contiguous(ctx, inputs)
    writes = sum(1 << k for k, target in enumerate(outputs) if target is not None)
    written = [data if target is None else target for target in outputs]
    arguments = (data, *written, ctx.temp[0], scalar(p.eps, data.dtype), np.int32(writes))
    return as_one([*calls, *_l2_blocks(p, ctx.call).calls(ctx, LENGTH, data.dtype, arguments)])


@l2_normalization.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: call.wants(0) and _accepts(p, call),
    temps=_l2_temps,
)
def _(p: l2_normalization.L2NormalizationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    arguments = (*arrays, outputs[0], ctx.temp[0])
    return as_one([*calls, *_l2_blocks(p, ctx.call).calls(ctx, LENGTH_BACK, arrays[0].dtype, arguments)])
