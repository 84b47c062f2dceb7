"""Matrix products into an array that exists: half precision in float32, rounded once."""

from __future__ import annotations

from typing import Any

from ..accumulation import is_narrow
from ..compute import Array, Arrays, ArraySpec, CallSpec, Temp
from ..cuda.product import matmul, takes_narrow
from ..infer import size_of

__all__ = ["backward_copies", "product", "wide_copies"]


def wide_copies(*arrays: ArraySpec) -> list[Temp]:
    """Temporary float32 arrays for `product`: one for each of `arrays` (a, b, plus, out); none unless out is narrow."""
    return [Temp((size_of(array.shape),), "float32") for array in arrays] if is_narrow(arrays[-1].dtype) else []


def product(xp: Any, a: Array, b: Array, out: Array, wide: Arrays, plus: Array | None = None) -> None:
    """out = a @ b + plus, with `wide` the temporary arrays that `wide_copies` lists."""
    total = out
    if is_narrow(out.dtype):
        unconverted = a.shape[-1] > 1 and takes_narrow(xp, a, b, out)
        if not unconverted:
            a, b = (_copied(xp, space, array) for space, array in zip(wide, (a, b), strict=False))
        if plus is not None or not unconverted:
            total = wide[-1].reshape(out.shape)
        plus = None if plus is None else _copied(xp, wide[2], plus)
    if a.ndim == b.ndim == 2 and a.shape[1] == 1:
        xp.multiply(a, b, out=total)  # an outer product: NumPy's matmul takes six times as long
    else:
        matmul(xp, a, b, total)
    if plus is not None:
        xp.add(total, plus, out=total)
    if total is not out:
        xp.copyto(out, total, casting="unsafe")


def _copied(xp: Any, space: Array, array: Array) -> Array:
    copy = space.reshape(array.shape)
    xp.copyto(copy, array)
    return copy


def backward_copies(p: Any, call: CallSpec) -> list[Temp]:
    """The temporaries of both products of a backward operator that reads (gout, lhs, rhs)."""
    gout, lhs, rhs = call.inputs
    left, right = (gout, rhs) if not p.transpose_a else (rhs, gout), (lhs, gout) if not p.transpose_b else (gout, lhs)
    return [*wide_copies(*left, lhs), *wide_copies(*right, rhs)]
