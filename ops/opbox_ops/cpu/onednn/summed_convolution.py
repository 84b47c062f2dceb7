"""Convolution that adds to an array by oneDNN: the sum is the primitive's post-operation.

    data, weight, bias, addend -> out = Convolution(data, weight, bias) + addend

The primitive adds to what is in the array that it writes: the addend itself, where the plan put both in one place, and
else a copy of it. Sums are in another order than in two steps: float32 agrees within its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...compute import Arrays, OpContext, Outputs
from ...layout import physical
from ...nn.summed_convolution import SUMMED, SummedParams
from .by_images import ByImages, ConvolutionRecipe
from .convolution import forward_recipe
from .pointwise_convolution import PointwiseConvolution


def _recipe(p: SummedParams) -> ConvolutionRecipe | None:
    """Return the recipe of a convolution with an addend; None where oneDNN has none."""
    if p.call.outputs[0].dtype != np.float32:
        return None  # of another type the output is rounded before it is added
    recipe = forward_recipe(p.params, p.call, adds=True)
    adds_apart = isinstance(recipe, PointwiseConvolution) and recipe.adds_apart
    return recipe if adds_apart or not p.apart else None


@SUMMED.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _recipe(p) is not None,
    temps=lambda p, call: getattr(_recipe(p), "temps", ()),
    prepares=True,
    packs=lambda p, call: getattr(_recipe(p), "packs", ()),
)
def _(p: SummedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    recipe, call = _recipe(p), p.call
    assert recipe is not None
    data, weight, *bias, addend = [physical(x, s.layout) for x, s in zip(inputs, ctx.call.inputs, strict=True)]
    out = physical(outputs[0], call.outputs[0].layout)
    arrays = (data, weight, out, *bias)
    runs: Callable[[], Any]
    if p.apart:
        assert isinstance(recipe, PointwiseConvolution)
        if ctx.packs:
            return recipe.packed(ctx.temp, arrays, ctx.mode, addend)
        return recipe.bind(ctx.temp, arrays, addend)
    if ctx.packs and not isinstance(recipe, ByImages):
        runs = recipe.packed(ctx.temp, arrays, ctx.mode)
    else:
        runs = recipe.bind(ctx.temp, arrays)
    if addend.ctypes.data == out.ctypes.data:
        return runs

    def call_on_a_copy() -> None:
        np.copyto(out, addend)
        runs()

    return call_on_a_copy
