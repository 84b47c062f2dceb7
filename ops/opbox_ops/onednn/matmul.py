"""Matrix products of float32 by oneDNN's matmul, for FullyConnected, its gradients, and products that share a weight.

    out = data @ weight.T + bias        gdata = gout @ weight        gweight = gout.T @ data

oneDNN takes the weight as it lies, transposed or not. Its kernels for AVX-512 are the faster ones from LEAST
multiplications on; elsewhere, and for small products, NumPy's BLAS runs. Which one a product gets depends on its shape
alone, so that an operator called by itself gives what it gives in a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Reusable, Temp
from ..cuda.product import matmul
from ..infer import size_of
from ..nn.fully_connected import FullyConnectedParams, backward, matrix, op
from ..nn.shared_product import (
    STACKED,
    SUMMED,
    SharedProductParams,
    pieces,
    stack,
    stacked_temps,
    sum_products,
    summed_temps,
    wanted_weights,
)
from .cache import RECIPES
from .library import ArgumentNumber, Query
from .primitive import MemoryFormat, Operand, Recipe

LEAST = 1 << 18
"""Multiplications of a product that oneDNN computes.

Processor us of one thread with AVX-512, NumPy's OpenBLAS and oneDNN: 128 x 64 by 64 x 10 6.7 and 5.6, 10 x 128 by
128 x 64 3.2 and 4.6, 128 x 128 by 128 x 64 28 and 19, 128 x 784 by 784 x 128 318 and 203. Of gradients of weights,
64 x 64 by 64 x 64 7 and 4, 64 x 128 by 128 x 128 21 and 12.
"""
SHARED_SETS = 1024
"""Bytes: rows that lie a multiple of it apart share few sets of the first cache, and evict one another."""
LEAST_REORDERED = 1 << 22
"""Multiplications of a weight's gradient from which on data with such rows is reordered.

1024 x 256 by 256 x 256 takes 1505 us as it lies and 1126 reordered on a processor of Intel's, 586 and 592 on one of
AMD's. Other data is read as it lies: 128 x 128 by 128 x 784 takes 109 us and 118, with two threads 66 and 110.
"""
FEWEST = 16
"""Rows, columns and terms of such a product: 1 x 25088 by 25088 x 4096 takes 35 ms by OpenBLAS and 48 by oneDNN."""
SINGLE = 1 << 22
"""Multiplications up to which a product runs in one thread: waking another takes as long as it would save."""

MOST = 1 << 36
"""Multiplications from which on NumPy's BLAS runs in pieces (`large_products`): oneDNN would not stop for seconds."""

_Sizes: TypeAlias = tuple[int, int, int]
"""Rows, summed and columns of a product."""


@lru_cache(maxsize=RECIPES)
def _recipe(
    sizes: _Sizes, bias: bool, transposed: tuple[bool, bool], free: bool = False, adds: bool = False
) -> Recipe | None:
    """out = a @ b, where `transposed` says whose arrays lie as the transposed matrix, `free` that b is reordered.

    With `adds`, out += a @ b.
    """
    rows, summed, columns = sizes
    factors = [
        MemoryFormat.plain((height, width)[:: -1 if turned else 1], np.float32, (1, 0) if turned else None)
        for height, width, turned in ((rows, summed, transposed[0]), (summed, columns, transposed[1]))
    ]
    operands = [
        Operand(ArgumentNumber.SOURCE, factors[0]),
        Operand(ArgumentNumber.WEIGHTS, factors[1], Query.WEIGHTS, free),
        Operand(ArgumentNumber.DESTINATION, MemoryFormat.plain((rows, columns), np.float32), written=True),
    ]
    if bias:
        operands.append(Operand(ArgumentNumber.BIAS, MemoryFormat.plain((1, columns), np.float32)))

    def arguments(a: int, b: int, out: int, bias: int | None = None) -> tuple[Any, ...]:
        return (a, b, bias, out)

    return Recipe.of("matmul", operands, arguments, single=math.prod(sizes) <= SINGLE, adds=adds)


@cache
def has_fast_kernels() -> bool:
    """Whether this processor has oneDNN's kernels for AVX-512; its others are no faster than OpenBLAS."""
    recipe = _recipe((64, 64, 64), False, (False, True))
    return _fast(recipe) is not None


def _fast(recipe: Recipe | None) -> Recipe | None:
    return recipe if recipe is not None and recipe.implementation.startswith("brg:avx512") else None


def _product(sizes: _Sizes, bias: bool, transposed: bool) -> Recipe | None:
    """out = a @ b, or a @ b.T + bias, where oneDNN is the faster one; else None."""
    if min(sizes) < FEWEST or not LEAST <= math.prod(sizes) < MOST or not has_fast_kernels():
        return None
    return _fast(_recipe(sizes, bias, (False, transposed)))


def packing_recipe(sizes: _Sizes, bias: bool) -> Recipe | None:
    """out = a @ b.T + bias with b packed beforehand, for what oneDNN computes as it lies; else None."""
    if _product(sizes, bias, transposed=True) is None:
        return None
    recipe = _fast(_recipe(sizes, bias, (False, True), free=True))
    return recipe if recipe is not None and recipe.packs == ((1, 1),) else None


def _weight_gradient(rows: int, hidden: int, features: int, adds: bool = False) -> Recipe | None:
    """gweight = gout.T @ data, where oneDNN is the faster one; else None."""
    sizes = hidden, rows, features
    count = math.prod(sizes)
    if min(sizes) < FEWEST or not LEAST <= count < MOST or not has_fast_kernels():
        return None
    reordered = count >= LEAST_REORDERED and features * np.float32().nbytes % SHARED_SETS == 0
    return _fast(_recipe(sizes, False, (True, False), reordered, adds))


def all_plain_float32(call: CallSpec) -> bool:
    return call.plain and all(array.dtype == np.float32 for array in (*call.inputs, *call.outputs))


def features_of(p: FullyConnectedParams, data: ArraySpec) -> tuple[int, int]:
    """The shape of data as a matrix."""
    axes = 1 if p.flatten else len(data.shape) - 1
    return size_of(data.shape[:axes]), size_of(data.shape[axes:])


def _forward_recipe(p: FullyConnectedParams, call: CallSpec) -> Recipe | None:
    if not all_plain_float32(call):
        return None
    return _product((*features_of(p, call.inputs[0]), p.num_hidden), not p.no_bias, transposed=True)


def _temps(recipe: Recipe | None) -> Sequence[Temp]:
    return () if recipe is None else recipe.temps


def _reusable(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Reusable | None:
    recipe = _forward_recipe(p, ctx.call)
    assert recipe is not None
    execute = recipe.rebound(ctx.temp)

    def run(inputs: Arrays, outputs: Outputs) -> None:
        execute((*inputs[:2], outputs[0], *inputs[2:]))

    return run


@op.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _forward_recipe(p, call) is not None,
    temps=lambda p, call: _temps(_forward_recipe(p, call)),
    prepares=True,
    reusable=_reusable,
)
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    recipe = _forward_recipe(p, ctx.call)
    assert recipe is not None
    return recipe.bind(ctx.temp, (*inputs[:2], outputs[0], *inputs[2:]))


def _gradients(p: FullyConnectedParams, call: CallSpec) -> tuple[Recipe | None, Recipe | None]:
    """What computes the gradients of data and of weight; None for one that is not wanted, or by NumPy."""
    if not all_plain_float32(call):
        return None, None
    rows, features = features_of(p, call.inputs[1])
    of_data = _product((rows, p.num_hidden, features), bias=False, transposed=False) if call.wants(0) else None
    return of_data, _weight_gradient(rows, p.num_hidden, features) if call.wants(1) else None


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
        runs.append(partial(np.add.reduce, g, axis=0, out=gbias[0]))

    return as_one(runs)


def _stacked_recipe(p: SharedProductParams, call: CallSpec) -> Recipe | None:
    if not all_plain_float32(call):
        return None
    (rows, columns), summed = call.outputs[0].shape, call.inputs[p.calls].shape[1]
    return _product((rows, summed, columns), bool(p.bias), transposed=True)


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
    pairs = stack(rows, inputs[: p.calls])
    product = recipe.bind(temps, (rows, inputs[p.calls], outputs[0], *inputs[p.calls + 1 :]))

    def run() -> None:
        for block, data in pairs:
            np.copyto(block, data)
        product()

    return run


def _parts(p: SharedProductParams, call: CallSpec) -> dict[tuple[int, int, bool], Recipe]:
    """The recipes of products by rows, features, and whether they add; none unless oneDNN is faster for all."""
    if not all_plain_float32(call):
        return {}
    gouts = call.inputs[: p.calls]
    rows, hidden = [gout.shape[0] for gout in gouts], gouts[0].shape[1]
    recipes = {}
    for _, features in wanted_weights(p, call):
        for number, part in enumerate(pieces(rows)):
            count = sum(rows[i] for i in part)
            recipe = _weight_gradient(count, hidden, features, adds=number > 0)
            if recipe is None:
                return {}
            recipes[count, features, number > 0] = recipe
    return recipes


def _summed_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    """Those of the sum, and of the product that needs most."""
    rooms = zip_longest(*(recipe.temps for recipe in _parts(p, call).values()), fillvalue=Temp((0,), np.uint8))
    return [*summed_temps(p, call), *(max(room, key=lambda temp: temp.shape) for room in rooms)]


@SUMMED.compute(
    "cpu", level="library", accepts=lambda p, call: bool(_parts(p, call)), temps=_summed_temps, prepares=True
)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    recipes, own = _parts(p, ctx.call), len(summed_temps(p, ctx.call))

    def product(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], None]]:
        return [recipes[*x.shape, adds].bind(ctx.temp[own:], (g, x, gweight))]

    return sum_products(p, np, ctx.temp[:own], inputs, outputs, product)
