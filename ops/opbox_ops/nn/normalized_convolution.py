"""Convolution, and the BatchNorm and ReLU that alone read its output, as a plan pass has them for inference.

    data, weight, bias, gamma, beta, moving_mean, moving_var -> relu(BatchNorm(Convolution(data, weight, bias)))

By the moving statistics it is one sweep: what is between is in no array. By those of the batch, as `is_train` says, out
is normalized where it lies. A library that has such kernels attaches the compute.
"""

from __future__ import annotations

from typing import Any

from ..operator import Op
from ..params import Params

__all__ = ["NORMALIZED_CONVOLUTION", "NormalizedConvolutionParams"]


class NormalizedConvolutionParams(Params):
    params: Any
    """Convolution's."""
    call: Any
    """The call of Convolution."""
    norm: Any
    """BatchNorm's parameters."""


NORMALIZED_CONVOLUTION = Op(
    "_normalized_Convolution",
    NormalizedConvolutionParams,
    lambda p: [
        *("data", "weight", *(() if p.params.no_bias else ("bias",))),
        *("gamma", "beta", "moving_mean", "moving_var"),
    ],
    lambda p: ["output"],
    (),
    "Convolution with BatchNorm and ReLU, for inference.",
)
