"""A bias added to each channel of a convolution, and its gradient: the channel's sum over samples and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, ArraySpec, OpContext, Temp
from ..infer import size_of
from .channel_rows import JOIN_PLACE, MAX_SLICES, PLACE, SIZES, THREADS, blocks_for, join_slices, slices_of
from .channel_slices import CHANNEL_SIZES, WALK, ChannelSlices
from .fours import by_channel_rows, by_walk
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved
from .row_blocks import APPLY, LANES, STATISTICS

__all__ = ["BIAS", "bias_gradient", "bias_parts", "last_bias_gradient", "last_parts"]

_DATA = 32 * 64 * 56 * 56
_EXAMPLE = "32 images of 64 channels, 56 x 56"

BIAS = KernelTemplate(
    "opbox_convolution_bias",
    "const A *product, const T *bias, T *out, int elements, int filters, int positions, int with_bias",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  out[number] = T(product[number] + (with_bias ? A(bias[number / positions % filters]) : A(0)));
""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _DATA + 64), 4 * (2 * _DATA + 64))),
)
_BIAS_BACK = KernelTemplate(
    "opbox_convolution_bias_back",
    f"const T *gout, T *gbias, A *parts, {CHANNEL_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const int c = blockIdx.x / slices;
  A sum = 0;
  if (phase != {APPLY}) {{
{by_walk({"g": "A(gout[at])"}, "sum += g;")}  }} else {{
    for (int s = threadIdx.x; s < slices; s += blockDim.x) sum += parts[s * channels + c];
  }}
  sum = add_over_lanes(sum, scratch, 1, blockDim.x);
  if (threadIdx.x > 0) return;
  if (phase == {STATISTICS})
    parts[blockIdx.x % slices * channels + c] = sum;
  else
    gbias[c] = T(sum);
""",
    (_EXAMPLE, lambda: Moved(4 * (_DATA + 64), 4 * (_DATA + 64))),
    declares=LANES + WALK,
    types=tuple(WITH_BFLOAT16),
)
_LAST_SUMS = KernelTemplate(
    "opbox_convolution_bias_last_sums",
    f"const T *gout, A *parts, {SIZES}",
    f"""{PLACE}  A sum = 0;
  if (c < channels) {{
{by_channel_rows({"g": "A(gout[at])"}, "sum += g;")}  }}
  sum = add_over_lanes(sum, scratch, 32, rows_at_once);
  if (row == 0 && c < channels) parts[slice * channels + c] = sum;
""",
    (_EXAMPLE, lambda: Moved(4 * (_DATA + MAX_SLICES * 64), 4 * _DATA)),
    declares=LANES,
    types=tuple(WITH_BFLOAT16),
)
_LAST_BACK = KernelTemplate(
    "opbox_convolution_bias_last_back",
    "const A *parts, T *gbias, int channels, int slices",
    f"""{JOIN_PLACE}  A sum = 0;
  if (c < channels)
    for (int s = row; s < slices; s += rows_at_once) sum += parts[s * channels + c];
  sum = add_over_lanes(sum, scratch, 32, rows_at_once);
  if (row == 0 && c < channels) gbias[c] = T(sum);
""",
    (
        f"64 channels of {MAX_SLICES} slices",
        lambda: Moved(4 * 64 * (MAX_SLICES + 1), 4 * 64 * (MAX_SLICES + 1)),
    ),
    declares=LANES,
    types=tuple(WITH_BFLOAT16),
)
KERNELS += [BIAS, _BIAS_BACK, _LAST_SUMS, _LAST_BACK]


def bias_parts(gout: ArraySpec) -> Temp:
    """The temporary for `bias_gradient`: a sum for each channel of gout (sample, channel, ...) and slice."""
    return _slices(gout.shape).parts(1, gout.dtype)


def bias_gradient(ctx: OpContext, gout: Array, parts: Array, gbias: Array) -> Callable[[], Any]:
    """A call that writes the sum of each channel of gout (sample, channel, ...), in one order, to gbias."""
    return as_one(_slices(gout.shape).calls(ctx, _BIAS_BACK, gout.dtype, (gout, gbias, parts)))


def _slices(shape: tuple[int, ...]) -> ChannelSlices:
    return ChannelSlices(shape[0], shape[1], size_of(shape[2:]))


def last_parts(gout: ArraySpec, filters: int) -> Temp:
    """The temporary for `last_bias_gradient`: a sum for each channel and slice."""
    slices = slices_of(size_of(gout.shape) // filters, filters)
    return Temp((slices, filters), accumulation_type(gout.dtype))


def last_bias_gradient(ctx: OpContext, gout: Array, parts: Array, gbias: Array) -> Callable[[], Any]:
    """A call that does the same for gout (sample, ..., channel)."""
    slices, filters = parts.shape
    numbers = map(np.int32, (gout.size // filters, filters, slices))
    scratch, blocks = THREADS * parts.dtype.itemsize, blocks_for(filters, slices)
    joined = (parts, gbias, np.int32(filters), np.int32(slices))
    return as_one(
        [
            _LAST_SUMS.call(ctx, gout.dtype, blocks, THREADS, (gout, parts, *numbers), scratch),
            join_slices(ctx, _LAST_BACK, gout.dtype, filters, joined),
        ]
    )
