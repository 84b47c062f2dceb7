"""BatchNorm, BatchNormWithReLU, BatchNorm_v1, SyncBatchNorm on a GPU: channels shared out by `channel_slices`.

Arrays are (before, channel, after); BatchNorm whose channels are last is `batch_norm_last`'s. Forward reads data twice
and writes out: mean and variance come from one pass, by the formulas of `row_blocks.MOMENTS`. Backward reads gout and
data twice and writes gdata: gbeta and ggamma come from the first pass. Both are the least possible where a channel does
not fit on the chip. Where there are many channels, a launch does both passes, else each pass is one. With ReLU, forward
also writes the bytes `positive`, 1 where out is above 0, and backward multiplies gout by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..nn import batch_norm, batch_norm_relu
from ..nn.batch_norm import BatchNormParams
from ..nn.batch_norm_relatives import BatchNormV1Params
from ..registry import get
from .channel_slices import CHANNEL_SIZES, WALK, ChannelSlices
from .fours import by_walk
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, contiguous, fits, scalar
from .row_blocks import APPLY, LANES, MOMENTS, STATISTICS

__all__ = [
    "ADDEND",
    "COUNTED",
    "GRADIENT",
    "SLOPE",
    "backward_temps",
    "bind_backward",
    "bind_forward",
    "by_last_axis",
    "by_mode",
    "copies_back",
    "forward_temps",
    "target_temps",
    "targets",
]

COUNTED = "const A h = relu ? g * A(A(T((x - mean) * factor + shift)) > 0) : g; "
"""What an element of gout counts as: with ReLU 0 where its input, worked out again, was not above 0."""
GRADIENT = "const A own = A(T((h - level - (x - mean) * share) * slope)); gdata[at] = adds ? T(own + more) : T(own);"
"""The gradient is rounded before something is added to it, as in a step of its own."""
SLOPE = """  A inverse_now = inverse, slope = factor;
  if (!of_batch) {
    inverse_now = 1 / sqrt(moving_var[c] + eps);
    slope = fix_gamma ? inverse_now : inverse_now * gamma[c];
    if (mean != moving_mean[c]) products += (mean - moving_mean[c]) * sum;
  }
  products *= inverse_now;
"""
"""Without the batch's statistics the gradient is by the moving ones, also behind a forward in training."""
ADDEND = "adds ? A(addend[at]) : A(0)"

_ELEMENTS = 32 * 64 * 112 * 112
_EXAMPLE = "32 images of 64 channels, 112 x 112"

_CHANNEL = """  extern __shared__ A scratch[];
  const int c = blockIdx.x / slices, slice = blockIdx.x % slices, count = before * after;
"""


def _forward_kernel(name: str, more: str, write: str, moved: int) -> KernelTemplate:
    """The kernel with `more` parameters behind its arrays; `write` puts y, element `at` of the result, into out."""
    return KernelTemplate(
        name,
        "const T *data, A *gamma, const A *beta, const A *moving_mean, const A *moving_var, T *out, A *means, "
        f"A *inverses, {more}A *parts, A eps, int of_batch, int fix_gamma, int writes_gamma, int gives_variance, "
        f"int writes, int relu, {CHANNEL_SIZES}, int phase",
        f"""{_CHANNEL}  A mean = moving_mean[c], variance = moving_var[c];
  if (of_batch) {{
    Moments own = {{A(0), A(0), A(0)}};
    if (phase != {APPLY}) {{
{by_walk({"x": "A(data[at])"}, fours="    add_values(own, x_of, count);" + chr(10))}    }} else {{
      for (int s = threadIdx.x; s < slices; s += blockDim.x)
        join_moments(own, parts[s * channels + c], parts[(slices + s) * channels + c],
                     parts[(2 * slices + s) * channels + c]);
    }}
    const A values = phase == {STATISTICS} ? slice_count(count, slice, slices, blockDim.x) : A(count);
    const Moments all = moments_over_lanes(own, values, scratch, 1, blockDim.x);
    if (phase == {STATISTICS}) {{
      if (threadIdx.x == 0) {{
        parts[slice * channels + c] = all.mean;
        parts[(slices + slice) * channels + c] = all.squares;
        parts[(2 * slices + slice) * channels + c] = all.count;
      }}
      return;
    }}
    mean = all.mean;
    variance = all.squares / A(count);
  }}
  const A inverse = 1 / sqrt(variance + eps);
  if (threadIdx.x == 0 && slice == 0) {{
    means[c] = mean;
    inverses[c] = gives_variance ? variance : inverse;
    if (writes_gamma) gamma[c] = 1;
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = beta[c];
{by_walk({"x": "A(data[at])"}, f"const A y = (x - mean) * factor + shift;{write}")}""",
        (_EXAMPLE, lambda: Moved(moved * _ELEMENTS, moved * _ELEMENTS)),
        declares=LANES + MOMENTS + WALK,
        types=tuple(WITH_BFLOAT16),
    )


def _backward_kernel(name: str, more: str, gradient: str, moved: int) -> KernelTemplate:
    """The kernel with `more` parameters behind gout; `gradient` is what element `at` of gout counts as."""
    reads = {"g": gradient, "x": "A(data[at])"}
    return KernelTemplate(
        name,
        f"const T *gout, {more}const T *data, const A *gamma, const A *means, const A *inverses, A *moving_mean, "
        "A *moving_var, T *gdata, A *ggamma, A *gbeta, A *parts, const A *beta, const T *addend, A eps, A momentum, "
        f"int of_batch, int fix_gamma, int takes_variance, int writes, int relu, int adds, {CHANNEL_SIZES}, int phase",
        f"""{_CHANNEL}  const A mean = means[c], inverse = takes_variance ? 1 / sqrt(inverses[c] + eps) : inverses[c];
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = relu ? beta[c] : A(0);
  A sum = 0, products = 0;
  if (phase != {APPLY}) {{
{by_walk(reads, f"{COUNTED}sum += h; products += h * (x - mean);")}  }} else {{
    for (int s = threadIdx.x; s < slices; s += blockDim.x) {{
      sum += parts[s * channels + c];
      products += parts[(slices + s) * channels + c];
    }}
  }}
  sum = add_over_lanes(sum, scratch, 1, blockDim.x);
  products = add_over_lanes(products, scratch, 1, blockDim.x);
  if (phase == {STATISTICS}) {{
    if (threadIdx.x == 0) {{
      parts[slice * channels + c] = sum;
      parts[(slices + slice) * channels + c] = products;
    }}
    return;
  }}
{SLOPE}  if (threadIdx.x == 0 && slice == 0) {{
    ggamma[c] = fix_gamma ? 0 : products;
    gbeta[c] = sum;
    if (of_batch) {{
      moving_mean[c] = moving_mean[c] * momentum + mean * (1 - momentum);
      const A variance = takes_variance ? inverses[c] : 1 / (inverse * inverse) - eps;
      moving_var[c] = moving_var[c] * momentum + variance * (1 - momentum);
    }}
  }}
  if (!writes) return;
  const A share = of_batch ? products * inverse / A(count) : 0, level = of_batch ? sum / A(count) : 0;
{by_walk({**reads, "more": ADDEND}, f"{COUNTED}{GRADIENT}")}""",
        (_EXAMPLE, lambda: Moved(moved * _ELEMENTS, moved * _ELEMENTS)),
        declares=LANES + WALK,
        types=tuple(WITH_BFLOAT16),
    )


FORWARD = _forward_kernel("opbox_batch_norm", "", " out[at] = T(relu && A(T(y)) <= 0 ? A(0) : y);", 3 * 4)
FORWARD_RELU = _forward_kernel(
    "opbox_batch_norm_relu",
    "unsigned char *positive, ",
    " positive[at] = y > 0; out[at] = T(y < 0 ? A(0) : y);",
    3 * 4 + 1,
)
BACKWARD = _backward_kernel("opbox_batch_norm_back", "", "A(gout[at])", 5 * 4)
BACKWARD_RELU = _backward_kernel(
    "opbox_batch_norm_relu_back", "const unsigned char *positive, ", "A(gout[at]) * A(positive[at])", 5 * 4 + 2
)
KERNELS += [FORWARD, FORWARD_RELU, BACKWARD, BACKWARD_RELU]


_Params: TypeAlias = BatchNormParams | BatchNormV1Params


def _slices(p: _Params, shape: tuple[int, ...]) -> ChannelSlices:
    axis = p.axis % len(shape) if isinstance(p, BatchNormParams) else 1
    return ChannelSlices(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def by_last_axis(p: BatchNormParams, call: CallSpec) -> bool:
    """Return whether the channels are the last axis: `batch_norm_last` has kernels for that."""
    ndim = len(call.outputs[0].shape)
    return p.axis % ndim == ndim - 1


def target_temps(call: CallSpec, *numbers: int) -> list[Temp]:
    """Room for those of the outputs that nobody wants."""
    return [Temp(call.outputs[k].shape, call.outputs[k].dtype) for k in numbers if not call.wants(k)]


def _temps(p: _Params, call: CallSpec, numbers: int, *outputs: int) -> list[Temp]:
    """Those of `target_temps`, and `numbers` numbers a channel and slice."""
    data = call.inputs[0]
    return [*target_temps(call, *outputs), _slices(p, data.shape).parts(numbers, data.dtype)]


def forward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    return _temps(p, call, 3, 1, 2)


def backward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    return _temps(p, call, 2, 1, 2)


def targets(ctx: OpContext, outputs: Outputs, *numbers: int) -> list[Any]:
    """The outputs of these numbers, or the temporaries that `target_temps` asked for."""
    spare = iter(ctx.temp)
    return [next(spare) if outputs[k] is None else outputs[k] for k in numbers]


def copies_back(ctx: OpContext, inputs: Arrays, arrays: Arrays) -> list[Callable[[], Any]]:
    """The calls that write to inputs what a kernel wrote to contiguous copies of them."""
    return [partial(ctx.xp.copyto, own, plain) for own, plain in zip(inputs, arrays, strict=True) if plain is not own]


def _forward(
    p: _Params,
    ctx: OpContext,
    inputs: Arrays,
    kernel: KernelTemplate,
    out: Array | None,
    rest: Arrays,
    relu: bool = False,
) -> Callable[[], Any]:
    """Bind a forward kernel; `rest` is behind out in its parameters, and with `relu` it writes ReLU."""
    (data, gamma, *others), calls = contiguous(ctx, inputs)
    old = isinstance(p, BatchNormV1Params)  # its output is the variance, and it always sets gamma
    writes_gamma = p.fix_gamma and (old or ctx.call.wants(1))
    after = copies_back(ctx, inputs[1:2], [gamma]) if writes_gamma else []
    slices, parts = _slices(p, data.shape), ctx.temp[-1]

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        flags = map(np.int32, (of_batch, p.fix_gamma, writes_gamma and (old or trains), old, out is not None, relu))
        arrays = (data, gamma, *others, data if out is None else out, *rest)
        arguments = (*arrays, parts, scalar(p.eps, data.dtype), *flags)
        launches = slices.calls(ctx, kernel, data.dtype, arguments, statistics=of_batch)
        return as_one([*calls, *launches, *after])

    return by_mode(p, ctx, launch)


def by_mode(p: _Params, ctx: OpContext, launch: Callable[[bool, bool], Callable[[], Any]]) -> Callable[[], Any]:
    """A call that takes the batch's statistics in a run that trains, and the moving ones in others.

    Args:
        p, ctx: the node's parameters and context.
        launch: from whether the statistics are the batch's, and whether the run trains, to the call for that.
    """
    infer, train, mode = launch(False, False), launch(not p.use_global_stats, True), ctx.mode

    def run() -> None:
        (train if mode.is_train else infer)()

    return run


def _backward(
    p: _Params,
    ctx: OpContext,
    inputs: Arrays,
    kernel: KernelTemplate,
    gdata: Array | None,
    rest: Arrays,
    beta: Array | None = None,
    addend: Array | None = None,
) -> Callable[[], Any]:
    """Bind a backward kernel, whose inputs end in the moving statistics; `rest` is behind gdata in its parameters.

    Args:
        beta: BatchNorm's, where gout is that of the ReLU behind it.
        addend: what is added to data's gradient.
    """
    arrays, calls = contiguous(ctx, inputs)
    more = [array for array in (beta, addend) if array is not None]
    plain, more_calls = contiguous(ctx, more)
    others = dict(zip(map(id, more), plain, strict=True))
    gout = arrays[0]
    after = copies_back(ctx, inputs[-2:], arrays[-2:])
    slices, parts = _slices(p, gout.shape), ctx.temp[-1]
    # Where there is none, the kernel has an array of the type that it does not read.
    beside = [unread if array is None else others[id(array)] for array, unread in ((beta, parts), (addend, gout))]

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        factors = (scalar(p.eps, gout.dtype), scalar(p.momentum, gout.dtype))
        known = (of_batch, p.fix_gamma, isinstance(p, BatchNormV1Params), gdata is not None)
        flags = map(np.int32, (*known, beta is not None, addend is not None))
        arguments = (*arrays, gout if gdata is None else gdata, *rest, parts, *beside, *factors, *flags)
        return as_one([*calls, *more_calls, *slices.calls(ctx, kernel, gout.dtype, arguments), *after])

    return by_mode(p, ctx, launch)


@batch_norm.op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: (
        not by_last_axis(p, call) and fits(call, call.inputs[0], call.outputs[0], types=WITH_BFLOAT16)
    ),
    temps=forward_temps,
)
def bind_forward(
    p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, relu: bool = False
) -> Callable[[], Any]:
    """Bind forward, with `relu` of BatchNorm and the ReLU behind it."""
    return _forward(p, ctx, inputs, FORWARD, outputs[0], targets(ctx, outputs, 1, 2), relu)


@batch_norm_relu.op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0], types=WITH_BFLOAT16),
    temps=lambda p, call: _temps(p, call, 3, 0, 1, 2, 3),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out, *rest = targets(ctx, outputs, 0, 1, 2, 3)
    return _forward(p, ctx, inputs, FORWARD_RELU, out, rest)


@batch_norm.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: (
        not by_last_axis(p, call) and fits(call, *call.inputs[:2], call.outputs[0], types=WITH_BFLOAT16)
    ),
    temps=backward_temps,
)
def bind_backward(
    p: BatchNormParams,
    ctx: OpContext,
    inputs: Arrays,
    outputs: Outputs,
    *,
    beta: Array | None = None,
    addend: Array | None = None,
) -> Callable[[], Any]:
    """Bind backward; `beta` and `addend` as in the step with ReLU."""
    return _backward(p, ctx, inputs, BACKWARD, outputs[0], targets(ctx, outputs, 1, 2), beta, addend)


@batch_norm_relu.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.inputs[2], call.outputs[0], types=WITH_BFLOAT16),
    temps=lambda p, call: _temps(p, call, 2, 1, 2),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _backward(p, ctx, inputs, BACKWARD_RELU, outputs[0], targets(ctx, outputs, 1, 2))


def _old_forward(p: BatchNormV1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _forward(p, ctx, inputs, FORWARD, outputs[0], targets(ctx, outputs, 1, 2))


def _old_backward(p: BatchNormV1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _backward(p, ctx, inputs, BACKWARD, outputs[0], targets(ctx, outputs, 1, 2))


for _name in ("BatchNorm_v1", "_contrib_SyncBatchNorm"):
    get(_name).compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0], types=WITH_BFLOAT16),
        temps=lambda p, call: _temps(p, call, 3, 1, 2),
    )(_old_forward)
    get(f"_backward_{_name}").compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: fits(call, *call.inputs[:2], call.outputs[0], types=WITH_BFLOAT16),
        temps=lambda p, call: _temps(p, call, 2, 1, 2),
    )(_old_backward)
