"""Matrix products of float32 by oneDNN's matmul, for FullyConnected, its gradients, and products that share a weight.

    out = data @ weight.T + bias        gdata = gout @ weight        gweight = gout.T @ data

oneDNN takes the weight as it lies, transposed or not. `product` says which products it computes; NumPy's BLAS runs the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from ...bound_calls import as_one
from ...compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Reusable, Temp
from ...cuda.product import matmul
from ...infer import size_of
from ...nn.fully_connected import FullyConnectedParams, backward, matrix, op
from ...nn.shared_product import (
    STACKED,
    SUMMED,
    SharedProductParams,
    pieces,
    stacked_temps,
    sum_products,
    summed_temps,
    wanted_weights,
)
from ..algorithms.blocked_product import ProductSizes
from ..algorithms.column_sums import column_sums
from ..algorithms.stacked_rows import stacked_rows
from .packable_product import PackableProduct, packable_product
from .product import ProductRecipe, fast_product, weight_gradient_product


def type_of(call: CallSpec) -> np.dtype[Any] | None:
    """The type of all arrays, which are plain; None where there are several."""
    types = {spec.dtype for spec in (*call.inputs, *call.outputs)}
    return types.pop() if call.plain and len(types) == 1 else None


def all_plain_float32(call: CallSpec) -> bool:
    return type_of(call) == np.float32


def features_of(p: FullyConnectedParams, data: ArraySpec) -> tuple[int, int]:
    """The shape of data as a matrix."""
    axes = 1 if p.flatten else len(data.shape) - 1
    return size_of(data.shape[:axes]), size_of(data.shape[axes:])


MOST_PACKED = 1 << 20
"""Numbers of a weight that is packed for inference: it takes as much memory again, and the product of few rows by a
larger one waits for memory, packed or not. Two threads with AVX-512, GFLOP/s, as it lies and packed, in the caches:
128 x 784 by 784 x 128 283 and 314, 32 x 256 by 256 x 1024 206 and 292, 1024 x 512 by 512 x 2048 326 and 348."""


def product_of(p: FullyConnectedParams, call: CallSpec) -> ProductRecipe | PackableProduct | None:
    """The recipe of a FullyConnected; None where NumPy's BLAS is to compute it."""
    if not all_plain_float32(call):
        return None
    rows, features = features_of(p, call.inputs[0])
    sizes, bias = (rows, features, p.num_hidden), not p.no_bias
    product = packable_product(sizes, bias) if features * p.num_hidden <= MOST_PACKED else None
    return fast_product(sizes, bias, transposed=True) if product is None else product


def _temps(recipe: ProductRecipe | PackableProduct | None) -> Sequence[Temp]:
    return () if recipe is None else recipe.temps


def _reusable(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Reusable | None:
    recipe = product_of(p, ctx.call)
    assert recipe is not None
    execute = recipe.rebound(ctx.temp)

    def run(inputs: Arrays, outputs: Outputs) -> None:
        execute((*inputs[:2], outputs[0], *inputs[2:]))

    return run


@op.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: product_of(p, call) is not None,
    temps=lambda p, call: _temps(product_of(p, call)),
    prepares=True,
    packs=lambda p, call: getattr(product_of(p, call), "packs", ()),
    reusable=_reusable,
)
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    recipe = product_of(p, ctx.call)
    assert recipe is not None
    arrays = (*inputs[:2], outputs[0], *inputs[2:])
    if ctx.packs and isinstance(recipe, PackableProduct):
        return recipe.packed(ctx.temp, arrays, ctx.mode)
    return recipe.bind(ctx.temp, arrays)


def _data_gradient(sizes: tuple[int, int, int]) -> ProductRecipe | PackableProduct | None:
    """gdata = gout @ weight, of these rows, terms and columns; with the weight packed first for a matrix unit.

    Two threads, 1024 x 512 by 512 x 2048, GFLOP/s: 422 and 523; by vectors packing takes what it gains.
    """
    if sizes[1] * sizes[2] <= MOST_PACKED and ProductSizes(*sizes).splits:
        product = packable_product(sizes, bias=False, transposed=False)
        if product is not None and product.packs_first:
            return product
    return fast_product(sizes, bias=False, transposed=False)


def _gradients(
    p: FullyConnectedParams, call: CallSpec
) -> tuple[ProductRecipe | PackableProduct | None, ProductRecipe | None]:
    """Return the recipes of data's and weight's gradients; None for one that is not wanted, or that NumPy computes."""
    if not all_plain_float32(call):
        return None, None
    rows, features = features_of(p, call.inputs[1])
    of_data = _data_gradient((rows, p.num_hidden, features)) if call.wants(0) else None
    return of_data, weight_gradient_product(rows, p.num_hidden, features) if call.wants(1) else None


def _backward_temps(p: FullyConnectedParams, call: CallSpec) -> list[Temp]:
    return [temp for recipe in _gradients(p, call) for temp in _temps(recipe)]


@backward.compute(
    "cpu", level="library", accepts=lambda p, call: any(_gradients(p, call)), temps=_backward_temps, prepares=True
)
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    gout, data, weight = inputs
    x = matrix(p, data)
    g = gout.reshape(x.shape[0], p.num_hidden)
    gdata, gweight, *gbias = outputs
    of_data, of_weight = _gradients(p, ctx.call)
    first = len(_temps(of_data))
    runs: list[Callable[[], Any]] = []
    if of_data is not None:
        runs.append(of_data.bind(ctx.temp[:first], (g, weight, gdata)))
    elif gdata is not None:
        runs.append(partial(matmul, np, g, weight, gdata.reshape(x.shape)))
    if of_weight is not None:
        runs.append(of_weight.bind(ctx.temp[first:], (g, x, gweight)))
    elif gweight is not None:
        runs.append(partial(matmul, np, g.T, x, gweight))
    if gbias and gbias[0] is not None:
        runs.append(column_sums(g, gbias[0]))

    return as_one(runs)


def _stacked_recipe(p: SharedProductParams, call: CallSpec) -> ProductRecipe | None:
    if not all_plain_float32(call):
        return None
    (rows, columns), summed = call.outputs[0].shape, call.inputs[p.calls].shape[1]
    return fast_product((rows, summed, columns), bool(p.bias), transposed=True)


@STACKED.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _stacked_recipe(p, call) is not None,
    temps=lambda p, call: [*stacked_temps(p, call), *_temps(_stacked_recipe(p, call))],
    prepares=True,
)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    recipe = _stacked_recipe(p, ctx.call)
    assert recipe is not None
    rows, *temps = ctx.temp
    product = recipe.bind(temps, (rows, inputs[p.calls], outputs[0], *inputs[p.calls + 1 :]))
    return as_one([stacked_rows(rows, inputs[: p.calls]), product])


def summed_parts(p: SharedProductParams, call: CallSpec) -> dict[tuple[int, int, bool], ProductRecipe]:
    """The recipes of products by rows, features, and whether they add; none unless oneDNN is faster for all."""
    if not all_plain_float32(call):
        return {}
    gouts = call.inputs[: p.calls]
    rows, hidden = [gout.shape[0] for gout in gouts], gouts[0].shape[1]
    recipes = {}
    for _, features in wanted_weights(p, call):
        for number, part in enumerate(pieces(rows)):
            count = sum(rows[i] for i in part)
            recipe = weight_gradient_product(count, hidden, features, adds=number > 0)
            if recipe is None:
                return {}
            recipes[count, features, number > 0] = recipe
    return recipes


def summed_product_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    """List the temporaries of the sum, and of the product that needs most."""
    rooms = zip_longest(*(recipe.temps for recipe in summed_parts(p, call).values()), fillvalue=Temp((0,), np.uint8))
    return [*summed_temps(p, call), *(max(room, key=lambda temp: temp.shape) for room in rooms)]


@SUMMED.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: bool(summed_parts(p, call)),
    temps=summed_product_temps,
    prepares=True,
)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    recipes, own = summed_parts(p, ctx.call), len(summed_temps(p, ctx.call))

    def product(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], None]]:
        return [recipes[*x.shape, adds].bind(ctx.temp[own:], (g, x, gweight))]

    return sum_products(p, ctx.temp[:own], inputs, outputs, product, stacked_rows)
