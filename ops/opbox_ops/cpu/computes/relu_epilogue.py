"""ReLU as the last step of what is before it: of Winograd's and the matrix unit's convolutions, of products in blocks.

They write the larger of a sum and 0 where they would write the sum; NaN stays NaN. oneDNN's post-operation would make 0
of it, and a network that has diverged would not show it: its kernels stay without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...compute import Arrays, CallSpec, Kernel, OpContext, Outputs
from ...layout import physical_arrays
from ...nn.relu_epilogue import WITH_RELU, ReluEpilogueParams
from .blocked_recipe import BlockedRecipe
from .convolution import forward_recipe
from .matmul import product_of
from .packable_product import PackableProduct
from .split_convolution import SplitConvolution
from .winograd_convolution import WinogradConvolution

_RECIPES: dict[str, Callable[[Any, CallSpec], Any]] = {"Convolution": forward_recipe, "FullyConnected": product_of}


def with_relu(recipe: Any) -> Any:
    """The recipe with ReLU behind it; None where it has no such kernel."""
    if isinstance(recipe, BlockedRecipe | SplitConvolution):
        return replace(recipe, relu=True)
    if isinstance(recipe, WinogradConvolution):
        return replace(recipe, tiling=replace(recipe.tiling, relu=True))
    if isinstance(recipe, PackableProduct):
        unpacked, packing = with_relu(recipe.unpacked), with_relu(recipe.packing)
        return None if unpacked is None or packing is None else replace(recipe, unpacked=unpacked, packing=packing)
    return None


def _attach(name: str) -> None:
    @WITH_RELU[name].kernel("cpu", level="library")
    def _(p: ReluEpilogueParams, call: CallSpec) -> Kernel | None:
        recipe = with_relu(_RECIPES[name](p.params, call))
        return None if recipe is None else Kernel(partial(_bind, recipe), recipe.temps, recipe.packs)


def _bind(recipe: Any, p: ReluEpilogueParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    inputs, outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays = (*inputs[:2], outputs[0], *inputs[2:])
    run: Callable[[], Any] = recipe.packed(ctx.temp, arrays, ctx.mode) if ctx.packs else recipe.bind(ctx.temp, arrays)
    return run


for _name in WITH_RELU:
    _attach(_name)
