"""batch_dot and its gradients by products whose matrices threads share; formulas in `batch_dot`.

float32 runs in blocks, bfloat16 by oneDNN's matmul where the processor multiplies it. NumPy computes one product of a
batch after the other, of which each is too small for more than one thread. Two threads with AVX-512, 64 products of 128
x 64 by 64 x 128, ms: 1.7 and 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...bound_calls import as_one
from ...call_list import CallList
from ...compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ...infer import size_of
from ...linalg.batch_dot import backward, op
from ...linalg.dot import DotParams
from ..algorithms.blocked_product import ProductSizes
from .half_product import HalfProduct, half_product
from .library import library
from .matmul import type_of
from .primitive import bind_in_order
from .product import FEWEST, LEAST, MOST, blocked_kernel

__all__: list[str] = []

_FLOAT32 = np.dtype(np.float32)


def _sizes(a: ArraySpec, b: ArraySpec, transposed: tuple[bool, bool]) -> ProductSizes:
    rows, terms = a.shape[-2:][:: -1 if transposed[0] else 1]
    columns = b.shape[-2 if transposed[1] else -1]
    return ProductSizes(rows, terms, columns, transposed, size_of(a.shape[:-2]))


def _forward(p: DotParams, call: CallSpec) -> ProductSizes:
    lhs, rhs = call.inputs
    return _sizes(lhs, rhs, (p.transpose_a, p.transpose_b))


def _gradients(p: DotParams, call: CallSpec) -> list[tuple[int, int, ProductSizes]]:
    """The two products, glhs and grhs: which inputs of the call are a and b, and their sizes."""
    left = (2, 0, (p.transpose_b, True)) if p.transpose_a else (0, 2, (False, not p.transpose_b))
    right = (0, 1, (True, p.transpose_a)) if p.transpose_b else (1, 0, (not p.transpose_a, False))
    return [(a, b, _sizes(call.inputs[a], call.inputs[b], transposed)) for a, b, transposed in (left, right)]


def _pays(call: CallSpec, products: Sequence[ProductSizes]) -> bool:
    """Return whether the products are large enough, of arrays that the functions take."""
    if not call.plain or {spec.dtype for spec in (*call.inputs, *call.outputs)} != {_FLOAT32}:
        return False
    large = all(
        min(s.rows, s.terms, s.columns) >= FEWEST and LEAST <= s.batch * s.rows * s.terms * s.columns < MOST
        for s in products
    )
    return large and blocked_kernel() is not None


def _call(sizes: ProductSizes, a: Array, b: Array, out: Array) -> CallList:
    kernel, runs = blocked_kernel(), CallList()
    assert kernel is not None
    runs.calls.append(kernel.product(sizes, (runs.contiguous(a), runs.contiguous(b), None, out)))
    return runs


@op.compute("cpu", level="library", accepts=lambda p, call: _pays(call, [_forward(p, call)]), prepares=True)
def _(p: DotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> CallList:
    lhs, rhs = inputs
    return _call(_forward(p, ctx.call), lhs, rhs, outputs[0])


@backward.compute(
    "cpu", level="library", accepts=lambda p, call: _pays(call, [s for *_, s in _gradients(p, call)]), prepares=True
)
def _(p: DotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    products = zip(_gradients(p, ctx.call), outputs, strict=True)
    return as_one([_call(sizes, inputs[a], inputs[b], out) for (a, b, sizes), out in products if out is not None])


def _halves(call: CallSpec, products: Sequence[ProductSizes]) -> list[HalfProduct] | None:
    """oneDNN's products of a type that the processor multiplies; None where it is not to compute one of them."""
    dtype, dnnl = type_of(call), library()
    if dtype is None or dnnl is None or dtype.name not in dnnl.multiplied_types:
        return None
    recipes = [half_product(dtype, (s.rows, s.terms, s.columns), False, s.transposed, s.batch) for s in products]
    taken = [recipe for recipe in recipes if recipe is not None]
    return taken if len(taken) == len(recipes) else None


def _of_forward(p: DotParams, call: CallSpec) -> list[HalfProduct] | None:
    return _halves(call, [_forward(p, call)])


def _of_gradients(p: DotParams, call: CallSpec) -> list[HalfProduct] | None:
    return _halves(call, [sizes for *_, sizes in _gradients(p, call)])


def _half_temps(products: Sequence[HalfProduct] | None) -> list[Temp]:
    return [temp for product in products or () for temp in product.temps]


@op.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _of_forward(p, call) is not None,
    temps=lambda p, call: _half_temps(_of_forward(p, call)),
    prepares=True,
)
def _(p: DotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    products = _of_forward(p, ctx.call)
    assert products is not None
    return products[0].bind(ctx.temp, (*inputs, *outputs))


@backward.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _of_gradients(p, call) is not None,
    temps=lambda p, call: _half_temps(_of_gradients(p, call)),
    prepares=True,
)
def _(p: DotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    arrays = [
        None if out is None else (inputs[a], inputs[b], out)
        for (a, b, _), out in zip(_gradients(p, ctx.call), outputs, strict=True)
    ]
    return as_one(bind_in_order(_of_gradients(p, ctx.call) or (), ctx.temp, arrays))
