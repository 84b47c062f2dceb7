"""data @ weight.T + bias as one call of cuBLASLt, for computes that are no FullyConnected of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import switches
from ..compute import Array
from ..trust import is_trusted
from .cublaslt import ALIGNMENT, DATA_TYPES, BiasedProduct, planned

__all__ = ["biased_product"]


def biased_product(device: str, data: Array, weight: Array, bias: Array, out: Array) -> Callable[[], Any] | None:
    """A call that writes out (rows, hidden); None where cuBLASLt does not run it, or not from where the arrays lie."""
    kind, arrays = data.dtype, (data, weight, bias, out)
    if device != "gpu" or kind.name not in DATA_TYPES or switches.is_off("cublaslt"):
        return None
    if not is_trusted("FullyConnected/cuda.fully_connected", kind.name):
        return None
    if any(a.dtype != kind or not a.size or not a.flags.c_contiguous or a.data.ptr % ALIGNMENT for a in arrays):
        return None
    plan = planned(BiasedProduct.of(kind.name, out.shape[0], out.shape[1], weight.shape[1]))
    return None if plan is None else plan.bind(data, weight, bias, out)
