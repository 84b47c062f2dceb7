"""FullyConnected, its gradients, and products that share a weight, in float32: in blocks or by oneDNN's matmul.

    out = data @ weight.T + bias        gdata = gout @ weight        gweight = gout.T @ data

oneDNN takes the weight as it lies, transposed or not. `product` says which products it computes; NumPy's BLAS runs the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from ...bound_calls import as_one
from ...compute import Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs, Reusable, Temp
from ...cuda.product import matmul
from ...infer import size_of
from ...nn.fully_connected import FullyConnectedParams, backward, matrix, op
from ...nn.shared_product import (
    STACKED,
    SUMMED,
    SharedProductParams,
    Stacking,
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
from .product import ProductKernel, fast_product, weight_gradient_product


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


MAX_PACKED_NUMBERS = 1 << 20
"""Maximum number of elements of a weight that is packed for inference: it takes as much memory again, and the product
of few rows by a larger one waits for memory, packed or not. Two threads with AVX-512, GFLOP/s, as it lies and packed,
in the caches: 128 x 784 by 784 x 128 283 and 314, 32 x 256 by 256 x 1024 206 and 292, 1024 x 512 by 512 x 2048 326 and
348."""


def product_of(p: FullyConnectedParams, call: CallSpec) -> ProductKernel | PackableProduct | None:
    """The kernel of a FullyConnected; None where NumPy's BLAS is to compute it."""
    if not all_plain_float32(call):
        return None
    rows, features = features_of(p, call.inputs[0])
    sizes, bias = (rows, features, p.num_hidden), not p.no_bias
    product = packable_product(sizes, bias) if features * p.num_hidden <= MAX_PACKED_NUMBERS else None
    return fast_product(sizes, bias, transposed=True) if product is None else product


@op.kernel("cpu", level="library")
def _(p: FullyConnectedParams, call: CallSpec) -> Kernel | None:
    kernel = product_of(p, call)
    if kernel is None:
        return None
    return Kernel(partial(_bind, kernel), kernel.temps, kernel.packs, partial(_rebind, kernel))


def _bind(
    kernel: ProductKernel | PackableProduct, p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    arrays = (*inputs[:2], outputs[0], *inputs[2:])
    if ctx.packs and isinstance(kernel, PackableProduct):
        return kernel.packed(ctx.temp, arrays, ctx.mode)
    return kernel.bind(ctx.temp, arrays)


def _rebind(
    kernel: ProductKernel | PackableProduct, p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Reusable:
    execute = kernel.rebound(ctx.temp)

    def run(inputs: Arrays, outputs: Outputs) -> None:
        execute((*inputs[:2], outputs[0], *inputs[2:]))

    return run


def _data_gradient(sizes: tuple[int, int, int]) -> ProductKernel | PackableProduct | None:
    """gdata = gout @ weight, of these rows, terms and columns; with the weight packed first for a matrix unit.

    Two threads, 1024 x 512 by 512 x 2048, GFLOP/s: 422 and 523; by vectors packing takes what it gains.
    """
    if sizes[1] * sizes[2] <= MAX_PACKED_NUMBERS and ProductSizes(*sizes).splits:
        product = packable_product(sizes, bias=False, transposed=False)
        if product is not None and product.packs_first:
            return product
    return fast_product(sizes, bias=False, transposed=False)


def _gradients(
    p: FullyConnectedParams, call: CallSpec
) -> tuple[ProductKernel | PackableProduct | None, ProductKernel | None]:
    """Return the kernels of data's and weight's gradients; None for one that is not wanted, or that NumPy computes."""
    if not all_plain_float32(call):
        return None, None
    rows, features = features_of(p, call.inputs[1])
    of_data = _data_gradient((rows, p.num_hidden, features)) if call.wants(0) else None
    return of_data, weight_gradient_product(rows, p.num_hidden, features) if call.wants(1) else None


@backward.kernel("cpu", level="library")
def _(p: FullyConnectedParams, call: CallSpec) -> Kernel | None:
    of_data, of_weight = _gradients(p, call)
    if of_data is None and of_weight is None:
        return None
    temps = [temp for kernel in (of_data, of_weight) if kernel is not None for temp in kernel.temps]
    return Kernel(partial(_bind_gradients, of_data, of_weight), tuple(temps))


def _bind_gradients(
    of_data: ProductKernel | PackableProduct | None,
    of_weight: ProductKernel | None,
    p: FullyConnectedParams,
    ctx: OpContext,
    inputs: Arrays,
    outputs: Outputs,
) -> Callable[[], None]:
    gout, data, weight = inputs
    x = matrix(p, data)
    g = gout.reshape(x.shape[0], p.num_hidden)
    gdata, gweight, *gbias = outputs
    first = 0 if of_data is None else len(of_data.temps)
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


@STACKED.kernel("cpu", level="library")
def _(p: SharedProductParams, call: CallSpec) -> Kernel | None:
    if not all_plain_float32(call):
        return None
    (rows, columns), summed = call.outputs[0].shape, call.inputs[p.calls].shape[1]
    kernel = fast_product((rows, summed, columns), bool(p.bias), transposed=True)
    return None if kernel is None else Kernel(partial(_bind_stacked, kernel), (*stacked_temps(p, call), *kernel.temps))


def _bind_stacked(
    kernel: ProductKernel, p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    rows, *temps = ctx.temp
    product = kernel.bind(temps, (rows, inputs[p.calls], outputs[0], *inputs[p.calls + 1 :]))
    return as_one([stacked_rows(rows, inputs[: p.calls]), product])


@dataclass(frozen=True, slots=True)
class SummedProducts:
    """The products of float32 whose sums are the gradients of weights.

    Attributes:
        kernels: by rows, features, and whether the product adds.
        sums: the temporaries of the sum, in front of those of the products.
    """

    kernels: Mapping[tuple[int, int, bool], ProductKernel]
    sums: tuple[Temp, ...]

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The temporaries of the sum, and of the product that needs most."""
        alternatives = zip_longest(*(kernel.temps for kernel in self.kernels.values()), fillvalue=Temp((0,), np.uint8))
        return (*self.sums, *(max(temps, key=lambda temp: temp.shape) for temps in alternatives))

    def bind(
        self,
        p: SharedProductParams,
        temps: Sequence[Array],
        inputs: Arrays,
        outputs: Outputs,
        stacking: Stacking,
    ) -> Callable[[], None]:
        """Return a call that writes the gradients; `stacking` copies and sums rows."""
        own = len(self.sums)

        def product(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], None]]:
            return [self.kernels[*x.shape, adds].bind(temps[own:], (g, x, gweight))]

        return sum_products(p, temps[:own], inputs, outputs, product, stacking)


def summed_products(p: SharedProductParams, call: CallSpec) -> SummedProducts | None:
    """The products of a call of float32; None unless oneDNN is faster for all."""
    if not all_plain_float32(call):
        return None
    gouts = call.inputs[: p.calls]
    rows, hidden = [gout.shape[0] for gout in gouts], gouts[0].shape[1]
    kernels = {}
    for _, features in wanted_weights(p, call):
        for number, part in enumerate(pieces(rows)):
            count = sum(rows[i] for i in part)
            kernel = weight_gradient_product(count, hidden, features, adds=number > 0)
            if kernel is None:
                return None
            kernels[count, features, number > 0] = kernel
    return SummedProducts(kernels, tuple(summed_temps(p, call))) if kernels else None


@SUMMED.kernel("cpu", level="library")
def _(p: SharedProductParams, call: CallSpec) -> Kernel | None:
    products = summed_products(p, call)
    return None if products is None else Kernel(partial(_bind_summed, products), products.temps)


def _bind_summed(
    products: SummedProducts, p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    return products.bind(p, ctx.temp, inputs, outputs, stacked_rows)
