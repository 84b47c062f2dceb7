"""Convolution and its gradients on a CPU: by kernels of our own, or oneDNN's where these are faster.

One to three dimensions, groups, dilation, channels second or last.

oneDNN lays the weight out for its kernels, data and out stay as they are: so the weight is reordered in each run, but
for one that is known to be as it was (`packs`), and its gradient back. Forward of 1 x 1 is a product, which
`pointwise_convolution` makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import numpy as np

from ...bound_calls import as_one
from ...compute import Arrays, CallSpec, Kernel, OpContext, Outputs, Temp
from ...layout import physical_arrays, share_layout
from ...nn.convolution import ConvolutionParams, backward, op, strides
from ...nn.convolution_v1 import op as first_version
from ...nn.window import is_last
from ..onednn.convolution_primitives import convolution_backward_data, convolution_backward_weights, convolution_forward
from ..onednn.library import library
from ..onednn.primitive import have_elements
from ..runtime.c_compiler import thread_count
from ..runtime.memory_format import MemoryFormat, memory_of
from .blocked_gradients import BlockedDataGradient, BlockedWeightGradient
from .by_images import (
    ByImages,
    ConvolutionKernel,
    ConvolutionPiece,
    DataGradientKernel,
    DataPiece,
    WeightGradientKernel,
    WeightPiece,
    by_images,
    images_of,
)
from .data_gradient import DataGradient, WindowedGradient, data_gradient
from .half_pointwise import HalfPointwise, data_as_product, forward_as_product, weight_as_product
from .pointwise_convolution import pointwise_convolution
from .short_rows import short_rows_gradient
from .split_convolution import split_convolution, split_data_gradient
from .weight_gradient import WeightGradient, weight_gradient
from .window_products import data_by_windows, forward_by_windows, weight_by_windows
from .winograd_convolution import winograd_convolution, winograd_data_gradient, winograd_weight_gradient

_Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Stride, dilation and padding."""


def _forward_half(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: _Window,
    adds: bool = False,
) -> HalfPointwise | None:
    product = None if adds else forward_as_product(data, weight, bias, out, window)
    packing = None if product is None else convolution_forward(data, weight, bias, out, window)
    return None if product is None or packing is None else HalfPointwise(product, packing)


def _multiplications(weight: MemoryFormat, out: MemoryFormat) -> int:
    """Multiplications for an image of out: as many for each position as the weight has numbers."""
    return math.prod(out.shape[2:]) * math.prod(weight.shape)


def forward_by_images(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: _Window,
    adds: bool = False,
) -> ConvolutionKernel | None:
    """A convolution, of arrays data, weight, out and bias where there is one; None where there is none."""

    def make(count: int) -> ConvolutionPiece | None:
        of_images = images_of(data, count), weight, bias, images_of(out, count), window, adds
        kinds = (
            *(pointwise_convolution, winograd_convolution, forward_by_windows, split_convolution),
            *(_forward_half, convolution_forward),
        )
        return next((piece for kind in kinds if (piece := kind(*of_images)) is not None), None)

    has_images = (True, False, True, *([] if bias is None else [False]))
    kernel = by_images(make, out.shape[0], _multiplications(weight, out), has_images)
    return cast(ConvolutionKernel | None, kernel)


def backward_data_kernel(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> DataGradientKernel | None:
    """The gradient of a convolution's data, of arrays gout, weight and data's gradient; None where there is none."""

    def make(count: int) -> DataPiece | None:
        of_images = images_of(gout, count), weight, images_of(data, count), window
        kinds = winograd_data_gradient, data_by_windows, split_data_gradient, data_as_product, convolution_backward_data
        return next((piece for kind in kinds if (piece := kind(*of_images)) is not None), None)

    has_images = (True, False, True)
    kernel = by_images(make, gout.shape[0], _multiplications(weight, gout), has_images)
    return cast(DataGradientKernel | None, kernel)


def backward_weight_kernel(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, window: _Window, bias: MemoryFormat | None = None
) -> WeightGradientKernel | None:
    """The gradient of a convolution's weight, of arrays gout, data and the gradients of weight and, if any, of bias.

    None where there is none.
    """

    def make(count: int) -> WeightPiece | None:
        of_images = images_of(gout, count), images_of(data, count), weight, bias, window
        kinds = (
            winograd_weight_gradient,
            weight_by_windows,
            short_rows_gradient,
            weight_as_product,
            convolution_backward_weights,
        )
        return next((piece for kind in kinds if (piece := kind(*of_images)) is not None), None)

    has_images = (True, True, False, *([] if bias is None else [False]))
    kernel = by_images(make, gout.shape[0], _multiplications(weight, gout), has_images)
    return cast(WeightGradientKernel | None, kernel)


def plain_forward_kernel(
    data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat, window: _Window
) -> ConvolutionKernel | None:
    """A convolution without bias, of arrays data, weight and out; None where there is none."""
    return forward_by_images(data, weight, None, out, window)


def _weight(p: ConvolutionParams, weight: MemoryFormat) -> MemoryFormat:
    """The weight with its groups as an axis of their own, in front."""
    if p.num_group == 1:
        return weight
    filters = p.num_filter // p.num_group
    shape = (p.num_group, filters, *weight.shape[1:])
    return MemoryFormat(shape, (filters * weight.strides[0], *weight.strides), weight.dtype)


def _memories(
    p: ConvolutionParams, call: CallSpec, data: int, out: int
) -> tuple[MemoryFormat, MemoryFormat, MemoryFormat]:
    """Describe data, the weight, which follows it, and out: an output in forward, else input 0."""
    order = (0, len(p.kernel) + 1, *range(1, len(p.kernel) + 1)) if is_last(p.layout) else None
    target = call.outputs[0] if out < 0 else call.inputs[out]
    weight = _weight(p, memory_of(call.inputs[data + 1], order))
    return memory_of(call.inputs[data], order), weight, memory_of(target, order)


def type_for_convolutions(call: CallSpec) -> np.dtype[Any] | None:
    """The one type of all arrays, where there are kernels for it: float32, and what the processor multiplies by oneDNN.

    Other types they would widen themselves, which `half_precision` does faster.
    """
    dnnl, arrays = library(), (*call.inputs, *call.outputs)
    types = {array.dtype for array in arrays}
    if len(types) > 1 or not have_elements(*arrays):
        return None
    dtype = types.pop()
    multiplied = () if dnnl is None else dnnl.multiplied_types
    return dtype if dtype == np.float32 or dtype.name in multiplied else None


def _pads_more_than_it_reaches(p: ConvolutionParams) -> bool:
    """True if some window is over padding alone: an output may be far larger than data then, and one call very long.

    Without oneDNN a convolution is done a block at a time, between which it may be stopped.
    """
    _, dilate, pad = strides(p)
    return any(q > d * (k - 1) for q, d, k in zip(pad, dilate, p.kernel, strict=True))


def forward_kernel(p: ConvolutionParams, call: CallSpec, adds: bool = False) -> ConvolutionKernel | None:
    """The kernel of a forward call, which with `adds` adds to what is in the output; None where there is none."""
    if _pads_more_than_it_reaches(p) or not share_layout(call, (0,), (0,)) or type_for_convolutions(call) is None:
        return None
    data, weight, out = _memories(p, call, 0, -1)
    bias = None if p.no_bias else memory_of(call.inputs[2])
    return forward_by_images(data, weight, bias, out, strides(p), adds)


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The kernels of the gradients that a backward call wants; None for one that it does not.

    Attributes:
        data: data's.
        weight: weight's and bias's.
        unread: whether bias's is wanted and weight's, which comes with it, is not.
    """

    data: DataGradientKernel | DataGradient | BlockedDataGradient | WindowedGradient | None
    weight: WeightGradientKernel | WeightGradient | BlockedWeightGradient | None
    unread: Temp | None

    @property
    def temps(self) -> tuple[Temp, ...]:
        scratches = [temp for part in (self.data, self.weight) if part is not None for temp in part.temps]
        return (*scratches, *(() if self.unread is None else (self.unread,)))

    def bind(self, p: ConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
        """Return a call that writes the gradients; see `Kernel.bind`."""
        (gout, data, weight), outputs = physical_arrays(ctx.call, inputs, outputs)
        scratches = iter(ctx.temp)
        runs: list[Callable[[], None]] = []
        if self.data is not None:
            runs.append(self.data.bind(list(islice(scratches, len(self.data.temps))), (gout, weight, outputs[0])))
        if self.weight is not None:
            temps = list(islice(scratches, len(self.weight.temps)))
            gweight = next(scratches) if self.unread is not None else outputs[1]
            gbias = None if p.no_bias else outputs[2]
            if isinstance(self.weight, WeightGradient | BlockedWeightGradient):
                runs.append(self.weight.bind(temps, gout, data, gweight, gbias))
            else:
                runs.append(self.weight.bind(temps, (gout, data, gweight, *([] if gbias is None else [gbias]))))
        return as_one(runs)


def _implementation(kernel: DataGradientKernel | WeightGradientKernel | None) -> str:
    return "" if kernel is None else kernel.implementation


def _gradients(p: ConvolutionParams, call: CallSpec) -> _Gradients | None:
    """Return the kernels of a backward call's gradients; None where one of them has no kernel."""
    wants_bias = not p.no_bias and call.wants(2)
    if _pads_more_than_it_reaches(p) or not share_layout(call, (0, 1), (0,)) or type_for_convolutions(call) is None:
        return None
    data, weight, out = _memories(p, call, 1, 0)
    window = strides(p)
    of_data: DataGradientKernel | DataGradient | BlockedDataGradient | WindowedGradient | None = None
    if call.wants(0):
        of_data = own_data = backward_data_kernel(out, weight, data, window)
        if p.num_group == 1 and (own_data is not None or library() is None):
            of_data = data_gradient(out, weight, data, window, _implementation(own_data)) or own_data
    of_weight: WeightGradientKernel | WeightGradient | BlockedWeightGradient | None = None
    if call.wants(1) or wants_bias:
        of_weight = own = backward_weight_kernel(
            out, data, weight, window, memory_of(call.outputs[2]) if wants_bias else None
        )
        if p.num_group == 1 and (own is not None or library() is None):
            last, name = is_last(p.layout), _implementation(own)
            of_weight = weight_gradient(data, out, window, p.kernel, last, name, thread_count()) or own
        if of_weight is None:
            return None
    if call.wants(0) and of_data is None:
        return None
    unread = wants_bias and not call.wants(1)
    return _Gradients(of_data, of_weight, Temp(call.outputs[1].shape, call.outputs[1].dtype) if unread else None)


@op.kernel("cpu", level="library")
@first_version.kernel("cpu", level="library")
def _(p: ConvolutionParams, call: CallSpec) -> Kernel | None:
    kernel = forward_kernel(p, call)
    return None if kernel is None else Kernel(partial(_bind, kernel), tuple(kernel.temps), kernel.packs)


def _bind(
    kernel: ConvolutionKernel, p: ConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    inputs, outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays = (*inputs[:2], outputs[0], *inputs[2:3])
    if ctx.packs and not isinstance(kernel, ByImages):
        return kernel.packed(ctx.temp, arrays, ctx.mode)
    return kernel.bind(ctx.temp, arrays)


@backward.kernel("cpu", level="library")
def _(p: ConvolutionParams, call: CallSpec) -> Kernel | None:
    gradients = _gradients(p, call)
    return None if gradients is None else Kernel(gradients.bind, gradients.temps)
