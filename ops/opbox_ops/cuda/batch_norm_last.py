"""BatchNorm of channels last on a GPU: arrays are rows of channels, shared out as `channel_rows` has it.

It runs images in a region of channels last, and arrays whose last axis the operator names. Forward is three kernels
where it needs the batch's statistics: one writes those of each slice, one joins them, and the last writes out; with the
moving statistics it is the last alone, and with a single slice nothing is joined. Backward is three as well. They move
what the kernels of `batch_norm` do, which has the formulas, and beside it a few numbers a channel and slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..layout import CHANNELS_LAST, physical, physical_arrays, share_layout
from ..nn.batch_norm import BatchNormParams, backward, op
from .batch_norm import ADDEND, COUNTED, GRADIENT, SLOPE, by_last_axis, by_mode, copies_back, target_temps, targets
from .channel_rows import JOIN_PLACE, MAX_SLICES, PLACE, SIZES, THREADS, blocks_for, join_slices, slices_of
from .fours import by_channel_rows
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, contiguous, of_one_type, scalar
from .row_blocks import LANES, MOMENTS

__all__ = ["accepts", "backward_temps", "bind_backward", "bind_forward", "forward_temps"]

_ELEMENTS = 32 * 64 * 112 * 112
_EXAMPLE = "32 images of 64 channels, 112 x 112, channels last"

_JOIN_EXAMPLE = f"{MAX_SLICES} slices of 64 channels"

_EIGHT_VALUES = "    add_values(own, x_of, min(count, 4));\n    add_values(own, x_of + 4, count - 4);\n"
STATISTICS = KernelTemplate(
    "opbox_batch_norm_last_statistics",
    f"const T *data, A *parts, {SIZES}",
    f"""{PLACE}  Moments own = {{A(0), A(0), A(0)}};
  if (c < channels) {{
{by_channel_rows({"x": "A(data[at])"}, fours=_EIGHT_VALUES, loads=8)}  }}
  const A count = slice_count(rows, slice, slices, rows_at_once);
  const Moments all = moments_over_lanes(own, count, scratch, 32, rows_at_once);
  if (row == 0 && c < channels) {{
    parts[slice * channels + c] = all.mean;
    parts[(slices + slice) * channels + c] = all.squares;
    parts[(2 * slices + slice) * channels + c] = all.count;
  }}
""",
    (_EXAMPLE, lambda: Moved(4 * _ELEMENTS, 4 * _ELEMENTS)),
    declares=LANES + MOMENTS,
    types=tuple(WITH_BFLOAT16),
)
JOIN_STATISTICS = KernelTemplate(
    "opbox_batch_norm_last_join",
    f"const A *parts, A *joined, {SIZES}",
    f"""{JOIN_PLACE}  Moments own = {{A(0), A(0), A(0)}};
  if (c < channels)
    for (int s = row; s < slices; s += rows_at_once)
      join_moments(own, parts[s * channels + c], parts[(slices + s) * channels + c],
                   parts[(2 * slices + s) * channels + c]);
  const Moments all = moments_over_lanes(own, A(rows), scratch, 32, rows_at_once);
  if (row > 0 || c >= channels) return;
  joined[c] = all.mean;
  joined[channels + c] = all.squares;
""",
    (_JOIN_EXAMPLE, lambda: Moved(4 * 3 * 64 * MAX_SLICES, 4 * 3 * 64 * MAX_SLICES)),
    declares=LANES + MOMENTS,
    types=("float32", "float64"),
)
_WRITE = "const A y = A(T((x - mean) * factor + shift)); out[at] = T(relu && y <= 0 ? A(0) : y);"
"""NaN stays NaN."""
FORWARD = KernelTemplate(
    "opbox_batch_norm_last",
    "const T *data, A *gamma, const A *beta, const A *moving_mean, const A *moving_var, T *out, A *means, A *inverses, "
    f"const A *joined, {SIZES}, A eps, int of_batch, int fix_gamma, int writes_gamma, int writes, int relu",
    f"""{PLACE}  if (c >= channels) return;
  const A mean = of_batch ? joined[c] : moving_mean[c];
  const A variance = of_batch ? joined[channels + c] / A(rows) : moving_var[c];
  const A inverse = 1 / sqrt(variance + eps);
  if (slice == 0 && row == 0) {{
    means[c] = mean;
    inverses[c] = inverse;
    if (writes_gamma) gamma[c] = 1;
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = beta[c];
{by_channel_rows({"x": "A(data[at])"}, _WRITE)}""",
    (_EXAMPLE, lambda: Moved(4 * 2 * _ELEMENTS, 4 * 2 * _ELEMENTS)),
    types=tuple(WITH_BFLOAT16),
)
_READS = {"g": "A(gout[at])", "x": "A(data[at])"}
SUMS = KernelTemplate(
    "opbox_batch_norm_last_sums",
    "const T *gout, const T *data, const A *gamma, const A *beta, const A *means, const A *inverses, A *parts, "
    f"{SIZES}, int fix_gamma, int relu",
    f"""{PLACE}  A sum = 0, products = 0;
  if (c < channels) {{
    const A mean = means[c], factor = fix_gamma ? inverses[c] : inverses[c] * gamma[c], shift = relu ? beta[c] : A(0);
{by_channel_rows(_READS, f"{COUNTED}sum += h; products += h * (x - mean);", loads=8)}  }}
  sum = add_over_lanes(sum, scratch, 32, rows_at_once);
  products = add_over_lanes(products, scratch, 32, rows_at_once);
  if (row == 0 && c < channels) {{
    parts[slice * channels + c] = sum;
    parts[(slices + slice) * channels + c] = products;
  }}
""",
    (_EXAMPLE, lambda: Moved(4 * 2 * _ELEMENTS, 4 * 2 * _ELEMENTS)),
    declares=LANES,
    types=tuple(WITH_BFLOAT16),
)
JOIN_SUMS = KernelTemplate(
    "opbox_batch_norm_last_join_sums",
    f"const A *parts, A *joined, {SIZES}",
    f"""{JOIN_PLACE}  A sum = 0, products = 0;
  if (c < channels)
    for (int s = row; s < slices; s += rows_at_once) {{
      sum += parts[s * channels + c];
      products += parts[(slices + s) * channels + c];
    }}
  sum = add_over_lanes(sum, scratch, 32, rows_at_once);
  products = add_over_lanes(products, scratch, 32, rows_at_once);
  if (row > 0 || c >= channels) return;
  joined[c] = sum;
  joined[channels + c] = products;
""",
    (_JOIN_EXAMPLE, lambda: Moved(4 * 2 * 64 * MAX_SLICES, 4 * 2 * 64 * MAX_SLICES)),
    declares=LANES,
    types=("float32", "float64"),
)
BACKWARD = KernelTemplate(
    "opbox_batch_norm_last_back",
    "const T *gout, const T *data, const A *gamma, const A *beta, const A *means, const A *inverses, A *moving_mean, "
    "A *moving_var, const T *addend, T *gdata, A *ggamma, A *gbeta, const A *joined, "
    f"{SIZES}, A eps, A momentum, int of_batch, int fix_gamma, int writes, int relu, int adds",
    f"""{PLACE}  if (c >= channels) return;
  const A mean = means[c], inverse = inverses[c], sum = joined[c];
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = relu ? beta[c] : A(0);
  A products = joined[channels + c];
{SLOPE}  if (slice == 0 && row == 0) {{
    ggamma[c] = fix_gamma ? 0 : products;
    gbeta[c] = sum;
    if (of_batch) {{
      moving_mean[c] = moving_mean[c] * momentum + mean * (1 - momentum);
      moving_var[c] = moving_var[c] * momentum + (1 / (inverse * inverse) - eps) * (1 - momentum);
    }}
  }}
  if (!writes) return;
  const A share = of_batch ? products * inverse / A(rows) : 0, level = of_batch ? sum / A(rows) : 0;
{by_channel_rows({**_READS, "more": ADDEND}, f"{COUNTED}{GRADIENT}")}""",
    (_EXAMPLE, lambda: Moved(4 * 3 * _ELEMENTS, 4 * 3 * _ELEMENTS)),
    types=tuple(WITH_BFLOAT16),
)
KERNELS += [STATISTICS, JOIN_STATISTICS, FORWARD, SUMS, JOIN_SUMS, BACKWARD]


def _sizes(p: BatchNormParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows, channels and slices."""
    channels = shape[p.axis % len(shape)]
    rows = size_of(shape) // channels
    return rows, channels, slices_of(rows, channels)


def _launch(ctx: OpContext, kernel: KernelTemplate, dtype: Any, sizes: tuple[int, int, int], arguments: Any) -> Any:
    shared_bytes = THREADS * accumulation_type(dtype).itemsize
    return kernel.call(ctx, dtype, blocks_for(*sizes[1:]), THREADS, arguments, shared_bytes)


def _joined(
    ctx: OpContext, kernel: KernelTemplate, sizes: tuple[int, int, int]
) -> tuple[Array, list[Callable[[], Any]]]:
    """The numbers of whole channels that slices make, the last temporary, and the call that joins slices, if any."""
    parts, joined = ctx.temp[-2:]
    _, channels, slices = sizes
    if slices == 1:
        return parts, []
    arguments = (parts, joined, *map(np.int32, sizes))
    return joined, [join_slices(ctx, kernel, parts.dtype, channels, arguments)]


def accepts(p: BatchNormParams, call: CallSpec, ins: tuple[int, ...]) -> bool:
    alike = [*(call.inputs[i] for i in ins), call.outputs[0]]
    in_a_region = alike[0].layout == CHANNELS_LAST and p.axis == 1
    return (
        (in_a_region or (call.plain and by_last_axis(p, call)))
        and share_layout(call, ins, (0,))
        and of_one_type(*alike, types=WITH_BFLOAT16)
    )


def forward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    return _temps(p, call, call.inputs[0], 3)


def backward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    return _temps(p, call, call.inputs[1], 2)


def _temps(p: BatchNormParams, call: CallSpec, data: ArraySpec, numbers: int) -> list[Temp]:
    """Room for outputs that nobody wants, and `numbers` numbers a channel and slice, and two a channel."""
    (_, channels, slices), wide = _sizes(p, data.shape), accumulation_type(data.dtype)
    return [*target_temps(call, 1, 2), Temp((numbers, slices, channels), wide), Temp((2, channels), wide)]


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: accepts(p, call, (0,)),
    temps=forward_temps,
)
def bind_forward(
    p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, relu: bool = False
) -> Callable[[], Any]:
    """Bind forward, with `relu` of BatchNorm and the ReLU behind it."""
    sizes, parts, statistics = _sizes(p, inputs[0].shape), ctx.temp[-2], targets(ctx, outputs, 1, 2)
    inputs, outputs = physical_arrays(ctx.call, inputs, outputs)
    (data, gamma, *others), calls = contiguous(ctx, inputs)
    writes_gamma = p.fix_gamma and ctx.call.wants(1)
    after = copies_back(ctx, inputs[1:2], [gamma]) if writes_gamma else []
    out: Array | None = outputs[0]
    numbers = tuple(map(np.int32, sizes))
    of_slices = _launch(ctx, STATISTICS, data.dtype, sizes, (data, parts, *numbers))
    joined, joins = _joined(ctx, JOIN_STATISTICS, sizes)

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        flags = map(np.int32, (of_batch, p.fix_gamma, writes_gamma and trains, out is not None, relu))
        arrays = (data, gamma, *others, data if out is None else out, *statistics, joined)
        arguments = (*arrays, *numbers, scalar(p.eps, data.dtype), *flags)
        before = [of_slices, *joins] if of_batch else []
        return as_one([*calls, *before, _launch(ctx, FORWARD, data.dtype, sizes, arguments), *after])

    return by_mode(p, ctx, launch)


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: accepts(p, call, (0, 1)),
    temps=backward_temps,
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    gout, data, gamma, *statistics = physical_arrays(ctx.call, inputs, outputs)[0]
    return bind_backward(p, ctx, [gout, data, gamma, gamma, *statistics], outputs)


def bind_backward(
    p: BatchNormParams,
    ctx: OpContext,
    inputs: Arrays,
    outputs: Outputs,
    *,
    relu: bool = False,
    addend: Array | None = None,
) -> Callable[[], Any]:
    """Bind backward.

    Args:
        inputs: as they lie: gout, data, gamma, beta, mean, var and the moving statistics. Without `relu` beta is not
            read.
        relu: whether gout is that of the ReLU behind BatchNorm.
        addend: what is added to data's gradient, as it lies.
    """
    parts, gradients = ctx.temp[-2], targets(ctx, outputs, 1, 2)
    gdata: Array | None = None if outputs[0] is None else physical(outputs[0], ctx.call.outputs[0].layout)
    arrays, calls = contiguous(ctx, inputs)
    gout, data = arrays[:2]
    sizes = _sizes(p, ctx.call.inputs[1].shape)
    (added,), more_calls = contiguous(ctx, [gout if addend is None else addend])
    after = copies_back(ctx, inputs[-2:], arrays[-2:])
    numbers = tuple(map(np.int32, sizes))
    switches = (np.int32(p.fix_gamma), np.int32(relu))
    sums = _launch(ctx, SUMS, data.dtype, sizes, (*arrays[:6], parts, *numbers, *switches))
    joined, joins = _joined(ctx, JOIN_SUMS, sizes)

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        factors = (scalar(p.eps, data.dtype), scalar(p.momentum, data.dtype))
        flags = map(np.int32, (of_batch, p.fix_gamma, gdata is not None, relu, addend is not None))
        results = (added, gout if gdata is None else gdata, *gradients, joined)
        arguments = (*arrays, *results, *numbers, *factors, *flags)
        launches = [sums, *joins, _launch(ctx, BACKWARD, data.dtype, sizes, arguments)]
        return as_one([*calls, *more_calls, *launches, *after])

    return by_mode(p, ctx, launch)
