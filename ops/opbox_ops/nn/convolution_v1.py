"""Convolution_v1: Convolution under the name, and with the parameters, of its first version.

out[n, f] = sum over channels and kernel taps of weight[f] * data[n] under the kernel, + bias[f]: data
(batch, channel, *spatial), weight (num_filter, channel / num_group, *kernel), bias (num_filter,), out
(batch, num_filter, *out). Everything else is in `convolution.py`.
"""

from __future__ import annotations

from ..params import Field
from ..registry import Slot, register, unless
from .convolution import ConvolutionParams
from .convolution import op as convolution
from .window import SpatialLayout


class ConvolutionV1Params(ConvolutionParams):
    layout: SpatialLayout = Field(None, description="Order of data's axes; by default the channels are second.")


op = register("Convolution_v1", ConvolutionV1Params, inputs=("data", "weight", Slot("bias", unless("no_bias"))))
for key in convolution.attr_keys():
    op.set_attr(key, convolution.get_attr(key))
