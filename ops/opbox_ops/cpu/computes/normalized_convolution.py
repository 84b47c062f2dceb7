"""Convolution, BatchNorm by its moving statistics, and ReLU, as the last steps of Winograd's and of products in blocks.

What is computed has the bits of Convolution and of BatchNorm with ReLU (`norm_sweeps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...compute import Array, Arrays, CallSpec, Kernel, OpContext, Outputs, Temp
from ...layout import physical_arrays
from ...nn.normalized_convolution import NORMALIZED_CONVOLUTION, NormalizedConvolutionParams
from ...nn.normalized_relu import norm_of, sweeps_of
from ..algorithms.blocked_product import padded
from ..algorithms.norm_numbers import norm_numbers
from .convolution import forward_kernel
from .relu_epilogue import with_relu

LINE = 64
"""Bytes of a line of the cache, at which arrays begin."""


def _split(kernel: Any) -> tuple[list[Temp], list[Temp | None]]:
    """Return the kernel's packed copies, the others without elements; and the others, those None."""
    copies = {k for _, k in kernel.packs}
    pairs = [(temp, k in copies) for k, temp in enumerate(kernel.temps)]
    return [temp if copy else Temp((0,)) for temp, copy in pairs], [None if copy else temp for temp, copy in pairs]


def _bytes(temp: Temp) -> int:
    """Return how many bytes an array takes in scratch that begins at a line of the cache."""
    lines: int = -(-math.prod(temp.shape) * np.dtype(temp.dtype).itemsize // LINE)
    return lines * LINE


def _carved(scratch: Array, temps: Sequence[Temp]) -> list[Array]:
    """Return arrays for temporaries, one behind the other in `scratch`."""
    arrays, begin = [], 0
    for temp in temps:
        nbytes = math.prod(temp.shape) * np.dtype(temp.dtype).itemsize
        arrays.append(scratch[begin : begin + nbytes].view(temp.dtype).reshape(temp.shape))
        begin += _bytes(temp)
    return arrays


@NORMALIZED_CONVOLUTION.kernel("cpu", level="library")
def _(p: NormalizedConvolutionParams, call: CallSpec) -> Kernel | None:
    alone: Any = forward_kernel(p.params, p.call)
    whole = None if alone is None else with_relu(alone)
    if whole is None:
        return None
    # Packed weights, the numbers that normalize, those of BatchNorm's channels, and scratch for all others: the
    # convolution's and those of BatchNorm with ReLU are in one place, as they run one after the other.
    (packed, others), filters = _split(alone), p.call.outputs[0].shape[1]
    own = [temp for temp in others if temp is not None]
    size = max(sum(map(_bytes, temps)) for temps in (own, sweeps_of(p.call.outputs[0]).forward_temps))
    temps = (*packed, Temp((3, padded(filters))), *[Temp((filters,))] * 4, Temp((size,), np.uint8))
    return Kernel(partial(_bind, alone, whole), temps, alone.packs)


def _bind(
    alone: Any, whole: Any, p: NormalizedConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    """A call of the convolution `alone` and BatchNorm by the batch, or of the `whole` by its moving statistics."""
    (_, others), count = _split(alone), len(alone.temps)
    packed, (numbers, *of_channels, scratch) = ctx.temp[:count], ctx.temp[count:]
    carved = iter(_carved(scratch, [temp for temp in others if temp is not None]))
    temps = [one if temp is None else next(carved) for one, temp in zip(packed, others, strict=True)]
    operands, statistics = inputs[:-4], inputs[-4:]
    (data, weight, *bias), (out,) = physical_arrays(p.call, operands, outputs)
    arrays = (data, weight, out, *bias)

    def bound(kernel: Any, **norm: Array) -> Callable[[], None]:
        run: Callable[[], None] = (
            kernel.packed(temps, arrays, ctx.mode, **norm) if ctx.packs else kernel.bind(temps, arrays, **norm)
        )
        return run

    convolve, infer, prepare = bound(alone), bound(whole, norm=numbers), norm_numbers(p.norm, statistics, numbers)
    matrix = out.reshape(-1, p.call.outputs[0].shape[1])
    sweeps = sweeps_of(p.call.outputs[0])
    scratches = of_channels, _carved(scratch, sweeps.forward_temps)
    train = sweeps.forward(norm_of(p.norm), matrix, matrix, statistics, *scratches)

    def run() -> None:
        if ctx.is_train and not p.norm.use_global_stats:
            convolve()
            train(True)
        else:
            prepare()
            infer()

    return run
