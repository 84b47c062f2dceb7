"""Convolution whose output is added to an array that is there already, as a plan pass has it.

    data, weight, bias, addend -> out = Convolution(data, weight, bias) + addend

The residual sum of a network is then written by the convolution itself, into the addend's memory where nobody reads
that any more, or into memory of its own. A library that has such a kernel attaches the compute.
"""

from __future__ import annotations

from typing import Any

from ..operator import Op
from ..params import Params

__all__ = ["SUMMED", "SummedParams"]


class SummedParams(Params):
    params: Any
    """Convolution's."""
    call: Any
    """The call of Convolution, without the addend."""
    apart: bool = False
    """Whether the addend stays where it is, as others read it."""


SUMMED = Op(
    "_summed_Convolution",
    SummedParams,
    lambda p: ["data", "weight", *(() if p.params.no_bias else ("bias",)), "addend"],
    lambda p: ["output"],
    (),
    "Convolution, added to an array.",
)
