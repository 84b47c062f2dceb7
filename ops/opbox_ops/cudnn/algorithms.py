"""Convolutions as cuDNN describes them, and the algorithms that may run them in the order of cuDNN's heuristics.

An algorithm is usable that gives the same bits in each run, fits into the workspace, and multiplies in the type that is
asked for: single precision in TF32 only where OPBOX_ALLOW_TF32 is 1. Those that add by atomics are usable too where
OPBOX_ALLOW_NONDETERMINISTIC is 1.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from opbox_protocol.errors import MXNetError

from .. import trust
from ..cuda.determinism import allow_nondeterministic
from ..cuda.precision import allow_tf32
from .library import DATA_TYPES, DeviceHandle, Math, Performance

__all__ = [
    "DATA",
    "FORWARD",
    "IMPLICIT_PRECOMP_GEMM",
    "WEIGHT",
    "WORKSPACE_ALIGNMENT",
    "ConvolutionPass",
    "ConvolutionProblem",
    "Descriptors",
    "ProductForm",
    "UsableAlgorithm",
    "algorithm_name",
    "aligned",
    "usable_algorithms",
]

IMPLICIT_PRECOMP_GEMM = 1
"""The forward algorithm that cuDNN has a bias for."""
WORKSPACE_ALIGNMENT = 256
_CROSS_CORRELATION, _DETERMINISTIC = 1, 1
_RESULTS = 32
"""More than there are algorithms, each with each kind of arithmetic."""
_ITEMSIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class ConvolutionPass:
    """One product of a convolution: its name in cuDNN's functions, and its operands among data, weight and out."""

    name: str
    operands: tuple[int, int, int]


FORWARD = ConvolutionPass("Forward", (0, 1, 2))
DATA = ConvolutionPass("BackwardData", (1, 2, 0))
WEIGHT = ConvolutionPass("BackwardFilter", (0, 2, 1))


@dataclass(frozen=True)
class ConvolutionProblem:
    """A convolution, with two or three spatial dimensions; shapes have the channels second, however arrays lie.

    Attributes:
        direction: what is computed of data, weight and out.
        dtype: the arrays' type by name.
        shapes: of data, weight, out.
        window: stride, dilation, padding.
        groups: that channels and filters are split into.
        last: whether arrays lie with the channels last.
        measured: whether the algorithms are measured.
        most: bytes of workspace.
        math: the arithmetic that is asked for.
        biased: whether a bias is added to out; of direction FORWARD alone.
        varies: whether the result's last bits may change from run to run.
    """

    direction: ConvolutionPass
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    window: tuple[tuple[int, ...], ...]
    groups: int
    last: bool
    measured: bool
    most: int
    math: int
    biased: bool = False
    varies: bool = False

    @classmethod
    def of(
        cls,
        direction: ConvolutionPass,
        dtype: str,
        shapes: Sequence[tuple[int, ...]],
        window: Sequence[tuple[int, ...]],
        groups: int,
        last: bool,
        measured: bool,
        most: int,
        biased: bool = False,
    ) -> ConvolutionProblem:
        """With what the process says of TF32 and of bits that may change.

        With one spatial dimension, another of size 1 is put before it: cuDNN knows two and three.
        """
        if len(shapes[0]) == 3:
            shapes = [(*shape[:2], 1, shape[2]) for shape in shapes]
            window = [(fill, *numbers) for fill, numbers in zip((1, 1, 0), window, strict=True)]
        math_type = Math.TENSOR_OP if _ITEMSIZES[dtype] == 2 else Math.DEFAULT
        if dtype == "float32" and not allow_tf32():
            math_type = Math.FMA
        arrays = (dtype, tuple(shapes), tuple(window), groups, last)
        return cls(direction, *arrays, measured, most, math_type, biased, allow_nondeterministic())

    def allows(self, math_type: int) -> bool:
        """Return whether an algorithm's arithmetic is no less exact than what is asked for."""
        return math_type == Math.FMA if self.math == Math.FMA else math_type in (Math.DEFAULT, Math.TENSOR_OP, Math.FMA)

    def bytes_of(self, operand: int) -> int:
        """The bytes of data, weight or out."""
        return math.prod(self.shapes[operand]) * _ITEMSIZES[self.dtype]


class ProductForm(IntEnum):
    """Products of cuBLAS, by their numbers among a problem's algorithms; cuDNN's are smaller. See `products`."""

    BY_SAMPLE = 1000
    WHOLE = 1001


class UsableAlgorithm(NamedTuple):
    """One that may run a problem.

    Attributes:
        number: cuDNN's, for the problem's direction, or a product's.
        math: its arithmetic.
        workspace: bytes that it needs, aligned to WORKSPACE_ALIGNMENT.
        adds_bias: whether the call that runs it adds the problem's bias.
        varies: whether its result's last bits change from run to run.
        is_product: whether it is cuBLAS's.
    """

    number: int
    math: int
    workspace: int
    adds_bias: bool = False
    varies: bool = False

    @property
    def is_product(self) -> bool:
        return self.number >= min(ProductForm)


class Descriptors:
    """cuDNN's descriptions of data, weight, out and the convolution; destroyed with this object."""

    def __init__(self, handle: DeviceHandle, problem: ConvolutionProblem) -> None:
        self._handle = handle
        kind, (data, weight, out) = DATA_TYPES[problem.dtype], problem.shapes
        computed = DATA_TYPES["float64" if problem.dtype == "float64" else "float32"]
        self.arrays = (
            self.tensor(kind, data, problem.last),
            self.created("Filter", "Nd", kind, int(problem.last), len(weight), _numbers(weight)),
            self.tensor(kind, out, problem.last),
        )
        stride, dilate, pad = map(_numbers, problem.window)
        count = len(problem.window[0])
        self.convolution = self.created("Convolution", "Nd", count, pad, stride, dilate, _CROSS_CORRELATION, computed)
        handle.describe("cudnnSetConvolutionGroupCount", self.convolution, problem.groups)
        self.multiply_in(problem.math)

    def multiply_in(self, math_type: int) -> None:
        """Set the convolution's arithmetic."""
        self._handle.describe("cudnnSetConvolutionMathType", self.convolution, math_type)

    def tensor(self, kind: int, shape: tuple[int, ...], last: bool) -> c_void_p:
        """Describe an array of a shape with the channels second that lies so, or with its channels last."""
        return self.created("Tensor", "Nd", kind, len(shape), _numbers(shape), _numbers(_strides(shape, last)))

    def created(self, what: str, form: str, *arguments: Any) -> c_void_p:
        """Describe something by `cudnnSet{what}{form}Descriptor`."""
        descriptor = c_void_p()
        self._handle.describe(f"cudnnCreate{what}Descriptor", byref(descriptor))
        destroy = partial(self._handle.describe, f"cudnnDestroy{what}Descriptor", descriptor)
        # At the process's end the library may be gone.
        weakref.finalize(self, destroy).atexit = False
        self._handle.describe(f"cudnnSet{what}{form}Descriptor", descriptor, *arguments)
        return descriptor


def _numbers(values: Sequence[int]) -> Any:
    return (c_int * len(values))(*values)


def _strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """In elements, of an array whose channels, its second axis, lie there or last."""
    order = (1, *range(len(shape) - 1, 1, -1), 0) if last else tuple(range(len(shape) - 1, -1, -1))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def aligned(address: int) -> int:
    """The first place at an address or behind it that a workspace may begin at."""
    return -(-address // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


def usable_algorithms(handle: DeviceHandle, problem: ConvolutionProblem) -> list[UsableAlgorithm]:
    """The algorithms that may run a problem on the current device, as cuDNN's heuristics rank them; nothing runs."""
    try:
        descriptors = Descriptors(handle, problem)
    except MXNetError:
        return []  # sizes that cuDNN does not describe
    count, results = c_int(), (Performance * _RESULTS)()
    name = f"cudnnGetConvolution{problem.direction.name}Algorithm_v7"
    if handle.status(name, *_described(problem, descriptors), _RESULTS, byref(count), results):
        return []
    return list(_usable(handle, problem, descriptors, results[: count.value]))


def _usable(
    handle: DeviceHandle, problem: ConvolutionProblem, descriptors: Descriptors, results: Sequence[Performance]
) -> Iterator[UsableAlgorithm]:
    """Those in the arithmetic and the workspace that are asked for, which repeat their bits where that is asked for."""
    for result in results:
        varies = result.determinism != _DETERMINISTIC
        if result.status or (varies and not problem.varies) or not problem.allows(result.mathType):
            continue
        descriptors.multiply_in(result.mathType)
        size = _workspace(handle, problem, descriptors, result.algo)
        if size is None or size > problem.most:
            continue
        algorithm = UsableAlgorithm(int(result.algo), int(result.mathType), size, varies=varies)
        if not trust.is_trusted(algorithm_name(problem, algorithm), problem.dtype):
            continue
        if problem.biased and algorithm.number == IMPLICIT_PRECOMP_GEMM:
            yield algorithm._replace(adds_bias=True)
        yield algorithm


def algorithm_name(problem: ConvolutionProblem, algorithm: UsableAlgorithm) -> str:
    """What a GPU's self-check calls an algorithm."""
    if algorithm.is_product:
        return f"cuBLAS {problem.direction.name} product {ProductForm(algorithm.number).name}"
    return f"cuDNN {problem.direction.name} algorithm {algorithm.number}"


def _described(problem: ConvolutionProblem, descriptors: Descriptors) -> tuple[c_void_p, c_void_p, c_void_p, c_void_p]:
    """The descriptors in the order in which cuDNN's functions take them."""
    first, second, result = (descriptors.arrays[k] for k in problem.direction.operands)
    return first, second, descriptors.convolution, result


def _workspace(
    handle: DeviceHandle, problem: ConvolutionProblem, descriptors: Descriptors, algorithm: int
) -> int | None:
    """Bytes that an algorithm needs; None where it does not run this problem."""
    size = c_size_t()
    name = f"cudnnGetConvolution{problem.direction.name}WorkspaceSize"
    status = handle.status(name, *_described(problem, descriptors), algorithm, byref(size))
    return None if status else size.value
