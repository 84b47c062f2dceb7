"""Convolution_v1: Convolution under the name, and with the parameters, of its first version.

out[n, f] = sum over channels and kernel taps of weight[f] * data[n] under the kernel, + bias[f]: data
(batch, channel, *spatial), weight (num_filter, channel / num_group, *kernel), bias (num_filter,), out
(batch, num_filter, *out). Everything else is in `convolution.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

from ..params import Bool, Field, NonNegativeInt, Params, PositiveInt, Shape
from ..registry import Slot, register, unless
from .convolution import op as convolution


def _none(value: object) -> object:
    return None if value == "None" else value


class ConvolutionV1Params(Params):
    kernel: Shape = Field(description="Size of the kernel, one number a spatial dimension.")
    stride: Shape = Field((), description="Step of the kernel; 1 by default.")
    dilate: Shape = Field((), description="Distance of the kernel's taps; 1 by default.")
    pad: Shape = Field((), description="Zeros before and after each spatial dimension; 0 by default.")
    num_filter: PositiveInt = Field(description="Channels of out.")
    num_group: PositiveInt = Field(1, description="Groups that channels and filters are split into.")
    workspace: NonNegativeInt = Field(1024, description="Has no effect; for MXNet's files.")
    no_bias: Bool = Field(False, description="Leave bias out.")
    cudnn_tune: Annotated[Literal["fastest", "limited_workspace", "off"] | None, BeforeValidator(_none)] = Field(
        None, description="Has no effect; for MXNet's files."
    )
    cudnn_off: Bool = Field(False, description="Has no effect; for MXNet's files.")
    layout: Annotated[Literal["NCHW", "NCDHW", "NHWC", "NDHWC"] | None, BeforeValidator(_none)] = Field(
        None, description="Order of data's axes; by default the channels are second."
    )


op = register("Convolution_v1", ConvolutionV1Params, inputs=("data", "weight", Slot("bias", unless("no_bias"))))
for key in convolution.attr_keys():
    op.set_attr(key, convolution.get_attr(key))
