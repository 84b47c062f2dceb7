"""A convolution and its bias in one call of cuDNN, whose kernel adds the bias before it rounds.

    out = convolution(data, weight) + bias          cudnnConvolutionBiasActivationForward

The call ends in an activation. Only the identity is used, which cuDNN has for IMPLICIT_PRECOMP_GEMM alone: of ReLU it
takes no description but CUDNN_NOT_PROPAGATE_NAN, which turns NaN into 0, where MXNet's relu keeps it. It also adds a
multiple of a further array, which is 0 here: that array is not read.

No function of cuDNN says whether it takes a problem. So the call is tried, once for each problem and device, when a
plan is compiled. Another algorithm with a bias behind it may be faster: where algorithms are measured, so are the two
ways, and the one call is taken where it is no slower. Otherwise it is taken where its algorithm is the recommended one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from functools import lru_cache, partial
from typing import Any

import ml_dtypes  # noqa: F401  # gives NumPy the name bfloat16
import numpy as np

from opbox_protocol.errors import MXNetError

from ..compute import Array
from .algorithms import (
    WORKSPACE_ALIGNMENT,
    ConvolutionProblem,
    Descriptors,
    PlannedConvolution,
    UsableAlgorithm,
    aligned,
    planned,
)
from .library import DATA_TYPES, DeviceHandle, current_handle, device

__all__ = ["BiasedConvolution", "bias_behind", "biased"]

IMPLICIT_PRECOMP_GEMM = 1
_NOT_PROPAGATE_NAN, _IDENTITY = 0, 5
_ROUNDS, _CALLS = 3, 4
"""Of a measurement: the fastest of so many rounds of so many calls."""
_PROBLEMS = 4096


class BiasedConvolution:
    """A problem, of direction FORWARD, with the algorithm that runs it and adds the bias.

    Attributes:
        workspace: bytes that it needs, aligned to WORKSPACE_ALIGNMENT.
    """

    def __init__(self, handle: DeviceHandle, problem: ConvolutionProblem, algorithm: UsableAlgorithm) -> None:
        self._handle, self._problem = handle, problem
        self._number, _, self.workspace = algorithm
        self._descriptors = descriptors = Descriptors(handle, problem)
        descriptors.multiply_in(algorithm.math)
        out = problem.shapes[2]
        self._bias = descriptors.tensor(DATA_TYPES[problem.dtype], (1, out[1], *(1,) * (len(out) - 2)), False)
        self._activation = descriptors.created("Activation", "", _IDENTITY, _NOT_PROPAGATE_NAN, 0.0)

    def bind(self, data: Array, weight: Array, bias: Array, out: Array, workspace: Array | None) -> Callable[[], None]:
        """A call that computes out."""
        (x, w, y), convolution = self._descriptors.arrays, self._descriptors.convolution
        scalar = ctypes.c_double if self._problem.dtype == "float64" else ctypes.c_float
        one, zero = scalar(1), scalar(0)
        place = None if not self.workspace or workspace is None else aligned(workspace.data.ptr)
        return partial(
            self._run,
            (data, weight, bias, out, workspace),
            *(byref(one), x, data.data.ptr, w, weight.data.ptr, convolution, self._number, place, self.workspace),
            *(byref(zero), y, out.data.ptr, self._bias, bias.data.ptr, self._activation, y, out.data.ptr),
        )

    def _run(self, keep: Any, *arguments: Any) -> None:
        self._handle.call("cudnnConvolutionBiasActivationForward", *arguments)


def bias_behind(xp: Any, out: Array, bias: Array) -> Callable[[], Any]:
    """A call that adds the bias to out (sample, channel, ...): the second step where cuDNN does not add it."""
    # The same object as input and output: CuPy adds in place.
    return partial(xp.add, out, bias.reshape(-1, *(1,) * (out.ndim - 2)), out=out)


def biased(problem: ConvolutionProblem) -> BiasedConvolution | None:
    """The one call for a problem on the current device; None where the bias is added behind it."""
    return None if current_handle() is None else _biased(device(), problem)


@lru_cache(maxsize=_PROBLEMS)
def _biased(place: int, problem: ConvolutionProblem) -> BiasedConvolution | None:
    handle, behind = current_handle(), planned(problem)
    assert handle is not None
    algorithms = [] if behind is None else [one for one in behind.usable if one.number == IMPLICIT_PRECOMP_GEMM]
    if behind is None or not algorithms:
        return None
    if not problem.measured and behind.algorithm != IMPLICIT_PRECOMP_GEMM:
        return None
    try:
        convolution = BiasedConvolution(handle, problem, algorithms[0])
        calls = _both_ways(handle.cupy, problem, convolution, behind)
        # Tried before it is measured: cuDNN refuses what it has no kernel for.
        calls[0]()
    except MXNetError:
        return None  # also where memory is short of the arrays to try it on
    if problem.measured:
        in_one, in_two = (_milliseconds(handle.cupy, call) for call in calls)
        if in_one > in_two:
            return None
    return convolution


def _both_ways(
    cupy: Any, problem: ConvolutionProblem, convolution: BiasedConvolution, behind: PlannedConvolution
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The one call and the two, on arrays of the problem's sizes."""
    dtype, out_shape = np.dtype(problem.dtype), problem.shapes[2]
    data, weight, bias = (cupy.empty(shape, dtype) for shape in (problem.shapes[0], problem.shapes[1], (out_shape[1],)))
    nbytes = max(convolution.workspace, behind.workspace)
    workspace = cupy.empty((nbytes + WORKSPACE_ALIGNMENT,), np.uint8) if nbytes else None
    if problem.last:
        physical_out = cupy.empty((out_shape[0], *out_shape[2:], out_shape[1]), dtype)
        out = physical_out.transpose(0, -1, *range(1, physical_out.ndim - 1))
    else:
        out = cupy.empty(out_shape, dtype)
    first, second = behind.bind(data, weight, out, workspace), bias_behind(cupy, out, bias)

    def in_two() -> None:
        first()
        second()

    return convolution.bind(data, weight, bias, out, workspace), in_two


def _milliseconds(cupy: Any, call: Callable[[], Any]) -> float:
    """The time of the device for some calls; a first one before them may compile a kernel."""
    call()
    times: list[float] = []
    for _ in range(_ROUNDS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(_CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(start, end)))
    return min(times)
