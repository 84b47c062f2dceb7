"""Conversions of whole arrays between float32 and types of 16 bits, in C where there is a compiler, in threads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..accumulation import is_narrow
from ..bound_calls import Call
from ..compute import Array, CallSpec
from .language import Expression
from .operators import kernel_of
from .pointwise import Pointwise, program_of

__all__ = ["converting", "widened_call"]

_FLOAT32 = np.dtype(np.float32)
_COPY = Pointwise(("x",), (Expression("x", ("x",)),))


def converting(source: Array, target: Array) -> Call:
    """Return a call that writes the numbers of `source` to `target`, of the same shape and another type."""
    kernel = kernel_of(*_program(source.dtype, target.dtype), np, None)
    return kernel.bind(target.shape, [source], [target], {})


@cache
def _program(source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    return program_of(_COPY, [source], [target], (0,))


def widened_call(call: CallSpec) -> CallSpec:
    """The call with float32 in place of types of 16 bits."""
    inputs, outputs = (
        tuple([replace(spec, dtype=_FLOAT32) if is_narrow(spec.dtype) else spec for spec in specs])
        for specs in (call.inputs, call.outputs)
    )
    return replace(call, inputs=inputs, outputs=outputs)
