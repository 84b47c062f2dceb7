"""FullyConnected with a weight that another step has packed, as a plan pass has it.

    pack        weight -> packed
    product     data, weight, bias, packed -> out

A library that has kernels for packed weights attaches the computes, and to FullyConnected `FPackedProduct`: `(params,
call)` to the bytes that the packed weight takes, or None where it is not to be packed.
"""

from __future__ import annotations

from typing import Any

from ..operator import Op
from ..params import Params

__all__ = ["LEAST_CALLS", "PACK", "PACKED", "PackParams"]

LEAST_CALLS = 4
"""Calls with one weight from which on it is packed: a pack of 1024 x 256 takes as long as two to three calls gain."""


class PackParams(Params):
    params: Any
    """FullyConnected's."""
    call: Any
    """The call of FullyConnected that the weight is packed for."""


PACK = Op(
    "_pack_FullyConnected",
    PackParams,
    lambda p: ["weight"],
    lambda p: ["packed"],
    (),
    "FullyConnected's weight, as a kernel reads it.",
)
PACKED = Op(
    "_packed_FullyConnected",
    PackParams,
    lambda p: ["data", "weight", *(() if p.params.no_bias else ("bias",)), "packed"],
    lambda p: ["output"],
    (),
    "FullyConnected with a packed weight.",
)
