"""_contrib_fft, _contrib_ifft and their gradients on a GPU by cuFFT, in planned memory.

`linalg/fourier` has the formulas; its own computes run what is empty, and everything where cuFFT is absent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..bound_calls import as_one
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..linalg.fourier import FourierParams, fft, fft_backward, ifft, ifft_backward
from .cufft import FORWARD, INVERSE, Transform, planned
from .kernel import fits

_COMPLEX = np.dtype(np.complex64)


def _transform(pairs: ArraySpec) -> Transform | None:
    """The transform of an array whose last axis has pairs of numbers."""
    length = pairs.shape[-1] // 2
    return planned(length, size_of(pairs.shape[:-1]))


def _takes(p: Any, call: CallSpec) -> bool:
    """Return whether cuFFT runs a call: the longer of both arrays has the pairs."""
    arrays = call.inputs[0], call.outputs[0]
    return fits(call, *arrays) and _transform(max(arrays, key=lambda array: array.shape[-1])) is not None


def _bound(spec: ArraySpec) -> Transform:
    transform = _transform(spec)
    if transform is None:
        raise MXNetError("cuFFT: expected a plan for the transform on this device too")
    return transform


def _work(spec: ArraySpec) -> Temp:
    return Temp((_bound(spec).work_bytes,), np.uint8)


@fft.compute("gpu", level="library", prepares=True, accepts=_takes, temps=lambda p, call: [_work(call.outputs[0])])
@ifft_backward.compute(
    "gpu", level="library", prepares=True, accepts=_takes, temps=lambda p, call: [_work(call.outputs[0])]
)
def _(p: FourierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out = outputs[0]
    aligned = out.data.ptr % _COMPLEX.itemsize == 0
    pairs = out if aligned else ctx.backend.empty(out.shape, out.dtype)
    numbers = pairs.view(_COMPLEX)
    calls: list[Callable[[], Any]] = [
        partial(ctx.xp.copyto, numbers, inputs[0]),
        _bound(ctx.call.outputs[0]).bind(numbers, FORWARD, ctx.temp[0]),
    ]
    if not aligned:
        calls.append(partial(ctx.xp.copyto, out, pairs))
    return as_one(calls)


def _pairs_and_work(p: FourierParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.outputs[0].shape, _COMPLEX), _work(call.inputs[0])]


@ifft.compute("gpu", level="library", prepares=True, accepts=_takes, temps=_pairs_and_work)
@fft_backward.compute("gpu", level="library", prepares=True, accepts=_takes, temps=_pairs_and_work)
def _(p: FourierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    numbers, work = ctx.temp
    return as_one(
        [
            partial(ctx.xp.copyto, numbers.view(np.float32), inputs[0]),
            _bound(ctx.call.inputs[0]).bind(numbers, INVERSE, work),
            partial(ctx.xp.copyto, outputs[0], numbers.real),
        ]
    )
