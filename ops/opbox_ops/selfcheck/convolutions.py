"""Compares each algorithm of cuDNN's that opbox may take, and each product, with a convolution by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..backend import Backend
from ..backend.failure import device_error, lost
from ..cudnn.algorithms import (
    DATA,
    FORWARD,
    WEIGHT,
    WORKSPACE_ALIGNMENT,
    ConvolutionPass,
    ConvolutionProblem,
    algorithm_name,
)
from ..cudnn.library import current_handle
from ..cudnn.planned import ConvolutionArrays, RefusedConvolution
from ..cudnn.products import planned, usable
from .comparison import difference
from .row import Input, draw

__all__ = ["compare_algorithms"]

Array = Any
MAX_WORKSPACE_BYTES = 256 << 20
"""Bytes of workspace that an algorithm may take."""


@dataclass(frozen=True)
class _Case:
    """Samples, channels, height and width of data; filters, their size, stride and padding."""

    data: tuple[int, int, int, int]
    filters: int
    size: int
    stride: int
    pad: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Of data, weight and out."""
        n, channels, *image = self.data
        places = [(length + 2 * self.pad - self.size) // self.stride + 1 for length in image]
        return self.data, (self.filters, channels, self.size, self.size), (n, self.filters, *places)

    def windows(self, data: Array) -> Array:
        """(sample, channel, row, column, row of the window, column of the window)."""
        padded = np.pad(data, ((0, 0), (0, 0), (self.pad,) * 2, (self.pad,) * 2))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self.size, self.size), (2, 3))
        return windows[:, :, :: self.stride, :: self.stride]

    def computed(self, direction: ConvolutionPass, data: Array, weight: Array, out: Array) -> Array:
        """What a direction computes of two of these."""
        if direction is FORWARD:
            return np.einsum("ncyxij,fcij->nfyx", self.windows(data), weight, optimize=True)
        if direction is WEIGHT:
            return np.einsum("ncyxij,nfyx->fcij", self.windows(data), out, optimize=True)
        n, channels, height, width = self.data
        wide = np.zeros((n, channels, height + 2 * self.pad, width + 2 * self.pad))
        rows, columns = (self.stride * length for length in out.shape[2:])
        for i in range(self.size):
            for j in range(self.size):
                product = np.einsum("nfyx,fc->ncyx", out, weight[:, :, i, j], optimize=True)
                wide[:, :, i : i + rows : self.stride, j : j + columns : self.stride] += product
        return wide[:, :, self.pad : self.pad + height, self.pad : self.pad + width]


_CASES = (
    _Case((2, 3, 7, 6), 4, 3, 1, 1),
    _Case((4, 16, 21, 19), 24, 3, 1, 1),
    _Case((3, 8, 17, 15), 12, 5, 2, 2),
    _Case((5, 20, 17, 15), 12, 1, 1, 0),
    _Case((3, 12, 39, 40), 8, 1, 2, 0),
    _Case((19, 5, 7, 6), 9, 1, 1, 0),
)


def compare_algorithms(
    device: Backend, dtype: str, running: Callable[[Sequence[tuple[str, str]]], None]
) -> dict[tuple[str, str], str]:
    """By algorithm and type: why it is wrong; empty where it is right. Nothing where there is no cuDNN.

    Args:
        device: the GPU's backend.
        dtype: the element type.
        running: called with what is about to run.
    """
    answers: dict[tuple[str, str], str] = {}
    with device.scope():
        handle = current_handle()
        if handle is None:
            return answers
        for case, problem in _problems(dtype):
            arrays = [draw(Input(shape), dtype, k) for k, shape in enumerate(case.shapes)]
            wide = [array.astype(np.float64) for array in arrays]
            *_, result = problem.direction.operands
            wanted = case.computed(problem.direction, *wide).astype(dtype)
            for algorithm in usable(handle, problem):
                key = (algorithm_name(problem, algorithm), dtype)
                running([key])
                operands = [device.put(_physical(array, problem.last)) for array in arrays]
                workspace = device.empty((algorithm.workspace + WORKSPACE_ALIGNMENT,), np.dtype("uint8"))
                results = []
                try:
                    bound = ConvolutionArrays(operands[0], operands[1], operands[2], workspace)
                    call = planned(handle, problem, algorithm).bind(bound)
                    for _ in range(2):
                        operands[result][...] = np.nan
                        call()
                        results.append(_logical(np.array(device.get(operands[result])), problem.last))
                except RefusedConvolution:
                    continue
                except Exception as error:
                    failure = device_error(error)
                    if lost() is not None:
                        raise
                    reason = failure.message if isinstance(failure, MXNetError) else f"{type(error).__name__}: {error}"
                    answers[key] = f"failed ({reason})"
                    continue
                one, other = results
                reason = difference(wanted, one, slack=10)
                if not reason and not algorithm.varies and one.tobytes() != other.tobytes():
                    reason = "gives other bits in a second run"
                answers[key] = answers.get(key) or reason
    return answers


def _problems(dtype: str) -> Iterator[tuple[_Case, ConvolutionProblem]]:
    """Each case in each direction, with the channels second and last."""
    for case in _CASES:
        window = ((case.stride,) * 2, (1, 1), (case.pad,) * 2)
        for last in (False, True):
            for direction in (FORWARD, DATA, WEIGHT):
                yield (
                    case,
                    ConvolutionProblem.of(direction, dtype, case.shapes, window, 1, last, False, MAX_WORKSPACE_BYTES),
                )


def _physical(array: Array, last: bool) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if last else array


def _logical(array: Array, last: bool) -> Array:
    return np.moveaxis(array, -1, 1) if last else array
