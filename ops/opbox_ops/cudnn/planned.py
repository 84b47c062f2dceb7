"""A convolution with the algorithm that runs it, bound to arrays; and its bias, added by the same call or behind it.

    out = convolution(data, weight) + bias          cudnnConvolutionBiasActivationForward

That call ends in an activation. Only the identity is used, which cuDNN has for IMPLICIT_PRECOMP_GEMM alone: of ReLU it
takes no description but CUDNN_NOT_PROPAGATE_NAN, which turns NaN into 0, where MXNet's relu keeps it. It also adds a
multiple of a further array, which is 0 here: that array is not read. No function of cuDNN says whether it takes a
problem; a call that it does not take queues nothing and is `RefusedConvolution`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref
from functools import partial
from typing import Any, NamedTuple

from opbox_protocol.errors import MXNetError

from ..bound_calls import as_one
from ..compute import Array
from .algorithms import ConvolutionProblem, Descriptors, UsableAlgorithm, aligned
from .library import DATA_TYPES, DeviceHandle

__all__ = ["ConvolutionArrays", "PlannedConvolution", "RefusedConvolution", "bias_behind"]

_NOT_PROPAGATE_NAN, _IDENTITY = 0, 5
_INTERNAL_ERROR = 4000
"""cuDNN's first status of a call that went wrong; those before it are of calls that it does not take."""


class RefusedConvolution(MXNetError):
    """cuDNN does not add a bias to this problem: nothing was queued."""


class ConvolutionArrays(NamedTuple):
    """What a convolution is bound to; each array as it lies in memory.

    Attributes:
        workspace: bytes, WORKSPACE_ALIGNMENT more than the algorithm's; None where it needs none.
        bias: one number a channel of out; None where none is added.
    """

    data: Array
    weight: Array
    out: Array
    workspace: Array | None
    bias: Array | None = None


class PlannedConvolution:
    """A problem with an algorithm that runs it on a device."""

    def __init__(self, handle: DeviceHandle, problem: ConvolutionProblem, algorithm: UsableAlgorithm) -> None:
        self._handle, self._problem, self._algorithm = handle, problem, algorithm
        self._descriptors = descriptors = Descriptors(handle, problem)
        descriptors.multiply_in(algorithm.math)
        if algorithm.adds_bias:
            out = problem.shapes[2]
            self._bias = descriptors.tensor(DATA_TYPES[problem.dtype], (1, out[1], *(1,) * (len(out) - 2)), False)
            self._activation = descriptors.created("Activation", "", _IDENTITY, _NOT_PROPAGATE_NAN, 0.0)

    def bind(self, arrays: ConvolutionArrays) -> Callable[[], Any]:
        """A call that computes the direction's result from the others, in the current stream.

        The call raises RefusedConvolution where the algorithm `adds_bias` and cuDNN has no such kernel.
        """
        scalar = ctypes.c_double if self._problem.dtype == "float64" else ctypes.c_float
        one, zero = byref(scalar(1)), byref(scalar(0))
        needed = self._algorithm.workspace
        place = None if not needed or arrays.workspace is None else aligned(arrays.workspace.data.ptr)
        described = [
            (descriptor, array.data.ptr) for descriptor, array in zip(self._descriptors.arrays, arrays[:3], strict=True)
        ]
        first, second, result = (described[k] for k in self._problem.direction.operands)
        read = (one, *first, *second, self._descriptors.convolution, self._algorithm.number, place, needed, zero)
        if self._algorithm.adds_bias:
            assert arrays.bias is not None
            bias = (self._bias, arrays.bias.data.ptr)
            return partial(self._run_with_bias, arrays, *read, *result, *bias, self._activation, *result)
        call = partial(self._run, arrays, *read, *result)
        if arrays.bias is None:
            return call
        out = channels_second(arrays.out) if self._problem.last else arrays.out
        return as_one([call, bias_behind(self._handle.cupy, out, arrays.bias)])

    def _run(self, keep: Any, *arguments: Any) -> None:
        self._handle.call(f"cudnnConvolution{self._problem.direction.name}", *arguments)

    def _run_with_bias(self, keep: Any, *arguments: Any) -> None:
        name = "cudnnConvolutionBiasActivationForward"
        status = self._handle.status(name, *arguments)
        if 0 < status < _INTERNAL_ERROR:
            raise RefusedConvolution(f"cuDNN does not take a convolution with its bias: {name} answered {status}")
        self._handle.check(name, status)


def channels_second(array: Array) -> Array:
    """An array (sample, ..., channel) as a view (sample, channel, ...)."""
    return array.transpose(0, -1, *range(1, array.ndim - 1))


def bias_behind(xp: Any, out: Array, bias: Array) -> Callable[[], Any]:
    """A call that adds the bias to out (sample, channel, ...): the second step where cuDNN does not add it."""
    # The same object as input and output: CuPy adds in place.
    return partial(xp.add, out, bias.reshape(-1, *(1,) * (out.ndim - 2)), out=out)
