"""Convolution, BatchNorm by its moving statistics, and ReLU, as the last steps of Winograd's and of products in blocks.

What is computed has the bits of Convolution and of BatchNorm with ReLU (`norm_sweeps`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ...layout import laid
from ...nn.normalized_convolution import NORMALIZED_CONVOLUTION, NormalizedConvolutionParams
from ...nn.normalized_relu import norm_of, sweeps_of
from ..algorithms.blocked_product import padded
from ..algorithms.norm_numbers import norm_numbers
from .convolution import forward_recipe
from .rectified import rectified

LINE = 64
"""Bytes of a line of the cache, at which arrays begin."""


def _recipes(p: NormalizedConvolutionParams) -> tuple[Any, Any]:
    """Return the recipes of the convolution alone, and with ReLU behind it; None where there is none."""
    alone = forward_recipe(p.params, p.call)
    return alone, None if alone is None else rectified(alone)


def _temps(p: NormalizedConvolutionParams, call: CallSpec) -> list[Temp]:
    """List packed weights, the numbers that normalize, those of BatchNorm's channels, and room for all others.

    The convolution's and those of BatchNorm with ReLU are in one place: they run one after the other.
    """
    (packed, others), filters = _split(_recipes(p)[0]), p.call.outputs[0].shape[1]
    own, room = [temp for temp in others if temp is not None], Temp((filters,))
    size = max(sum(map(_bytes, temps)) for temps in (own, sweeps_of(p.call.outputs[0]).forward_temps))
    return [*packed, Temp((3, padded(filters))), *[room] * 4, Temp((size,), np.uint8)]


def _split(recipe: Any) -> tuple[list[Temp], list[Temp | None]]:
    """Return the recipe's packed copies, the others without elements; and the others, those None."""
    copies = {k for _, k in recipe.packs}
    pairs = [(temp, k in copies) for k, temp in enumerate(recipe.temps)]
    return [temp if copy else Temp((0,)) for temp, copy in pairs], [None if copy else temp for temp, copy in pairs]


def _bytes(temp: Temp) -> int:
    """Return how many bytes an array takes in a room that begins at a line of the cache."""
    lines: int = -(-math.prod(temp.shape) * np.dtype(temp.dtype).itemsize // LINE)
    return lines * LINE


def _carved(room: Array, temps: Sequence[Temp]) -> list[Array]:
    """Return arrays for temporaries, one behind the other in a room."""
    arrays, begin = [], 0
    for temp in temps:
        nbytes = math.prod(temp.shape) * np.dtype(temp.dtype).itemsize
        arrays.append(room[begin : begin + nbytes].view(temp.dtype).reshape(temp.shape))
        begin += _bytes(temp)
    return arrays


@NORMALIZED_CONVOLUTION.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _recipes(p)[1] is not None,
    temps=_temps,
    prepares=True,
    packs=lambda p, call: getattr(_recipes(p)[0], "packs", ()),
)
def _(p: NormalizedConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    alone, whole = _recipes(p)
    (_, others), count = _split(alone), len(alone.temps)
    packed, (numbers, *of_channels, room) = ctx.temp[:count], ctx.temp[count:]
    carved = iter(_carved(room, [temp for temp in others if temp is not None]))
    temps = [one if temp is None else next(carved) for one, temp in zip(packed, others, strict=True)]
    operands, statistics = inputs[:-4], inputs[-4:]
    (data, weight, *bias), (out,) = laid(p.call, operands, outputs)
    arrays = (data, weight, out, *bias)

    def bound(recipe: Any, **norm: Array) -> Callable[[], None]:
        run: Callable[[], None] = (
            recipe.packed(temps, arrays, ctx.mode, **norm) if ctx.packs else recipe.bind(temps, arrays, **norm)
        )
        return run

    convolve, infer, prepare = bound(alone), bound(whole, norm=numbers), norm_numbers(p.norm, statistics, numbers)
    matrix = out.reshape(-1, p.call.outputs[0].shape[1])
    sweeps = sweeps_of(p.call.outputs[0])
    rooms = of_channels, _carved(room, sweeps.forward_temps)
    train = sweeps.forward(norm_of(p.norm), matrix, matrix, statistics, *rooms)

    def run() -> None:
        if ctx.is_train and not p.norm.use_global_stats:
            convolve()
            train(True)
        else:
            prepare()
            infer()

    return run
