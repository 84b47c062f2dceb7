"""Convolution and FullyConnected whose output a ReLU alone reads, as a plan pass has them.

    data, weight, bias -> out = relu(Convolution(data, weight, bias)), or of FullyConnected

What is between the two is in no array. A library that has such kernels attaches the computes.
"""

from __future__ import annotations

from typing import Any

from ..operator import Op
from ..params import Params

__all__ = ["WITH_RELU", "ReluEpilogueParams"]


class ReluEpilogueParams(Params):
    params: Any
    """Of the operator before ReLU."""


def _with_relu(name: str) -> Op:
    return Op(
        f"_rectified_{name}",
        ReluEpilogueParams,
        lambda p: ["data", "weight", *(() if p.params.no_bias else ("bias",))],
        lambda p: ["output"],
        (),
        f"{name} with ReLU.",
    )


WITH_RELU = {name: _with_relu(name) for name in ("Convolution", "FullyConnected")}
"""By the operator before ReLU."""
