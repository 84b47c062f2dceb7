"""Products with a weight that another step has packed, as a plan pass has them.

    pack        weight -> packed
    product     data, weight, bias, packed -> out          ograd, weight, packed -> data's gradient

A library that has kernels for packed weights attaches the computes, and to FullyConnected and its gradient
`FPackedProduct`: a `PackedProduct`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..compute import CallSpec
from ..operator import Op
from ..params import Params

__all__ = ["MIN_CALLS", "PACK", "PACKED", "PACKED_BACKWARD", "PACK_BACKWARD", "PackParams", "PackedProduct"]

MIN_CALLS = 4
"""Minimum number of calls with one weight for it to be packed: a pack of 1024 x 256 takes as long as two to three calls
gain."""


class PackParams(Params):
    params: Any
    """FullyConnected's."""
    call: Any
    """The call of the operator that the weight is packed for."""


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """How an operator's calls with one weight read it packed.

    Attributes:
        reads: the numbers of the operator's inputs that the product reads, those it has: the weight is the second.
        pack, product: the operators that stand for a call.
        nbytes: from parameters and call to the bytes that the packed weight takes; None where it is not to be packed.
    """

    reads: tuple[int, ...]
    pack: Op
    product: Op
    nbytes: Callable[[Any, CallSpec], int | None]


def _pack(operator: str) -> Op:
    names = ["weight"], ["packed"]
    doc = f"{operator}'s weight, as a kernel reads it."
    return Op(f"_pack_{operator.lstrip('_')}", PackParams, lambda p: names[0], lambda p: names[1], (), doc)


PACK, PACK_BACKWARD = _pack("FullyConnected"), _pack("_backward_FullyConnected")
PACKED = Op(
    "_packed_FullyConnected",
    PackParams,
    lambda p: ["data", "weight", *(() if p.params.no_bias else ("bias",)), "packed"],
    lambda p: ["output"],
    (),
    "FullyConnected with a packed weight.",
)
PACKED_BACKWARD = Op(
    "_packed_backward_FullyConnected",
    PackParams,
    lambda p: ["ograd", "weight", "packed"],
    lambda p: ["data"],
    (),
    "The gradient of FullyConnected's data, with a packed weight.",
)
