"""What BatchNorm by its moving statistics multiplies by and adds, for whoever computes it as a last step.

    numbers = mean, scale, shift        (x - mean) scale + shift, scale = gamma / sqrt(variance + eps)

in the order of `norm_sweeps`, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float, c_int, c_long, c_void_p

import numpy as np

from ...bound_calls import c_call, place_of
from ...compute import Array, Arrays
from ...nn.batch_norm import BatchNormParams, invert
from ..runtime.c_compiler import compiled_function
from ..runtime.kernel_text import kernel_text

__all__ = ["norm_numbers"]

_TEXT = kernel_text("norm_numbers.c")


def norm_numbers(p: BatchNormParams, inputs: Arrays, numbers: Array) -> Callable[[], None]:
    """Return a call that writes the numbers.

    Args:
        p: BatchNorm's parameters.
        inputs: gamma, which is not read where it is fixed, beta, moving mean and moving variance: (channels), float32.
        numbers: (3, channels or more); what is beyond the channels stays.
    """
    gamma, beta, mean, variance = inputs
    function = compiled_function(_TEXT, "opbox_norm_numbers")
    if function is not None:
        function.restype, function.argtypes = None, [*[c_void_p] * 5, c_long, c_long, c_int, c_float]
        places = [place_of(array) for array in (*inputs, numbers)]
        sizes = numbers.strides[0] // numbers.itemsize, len(gamma), p.fix_gamma, p.eps
        return c_call(function, (*places, *sizes), (inputs, numbers))
    means, scale, shift = numbers[:, : len(gamma)]

    def call() -> None:
        np.copyto(means, mean)
        invert(np, variance, p.eps, scale)
        if not p.fix_gamma:
            np.multiply(scale, gamma, out=scale)
        np.copyto(shift, beta)

    return call
