"""A kernel of our own: its text for an element type, compiled by CuPy when a plan is bound, and calls of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext
from .cubins import prebuilt
from .exact import EXACT

__all__ = [
    "KERNELS",
    "MAX_ELEMENTS",
    "TYPES",
    "WHOLE",
    "WITH_BFLOAT16",
    "KernelTemplate",
    "Moved",
    "by_thread",
    "compiled",
    "computed_type",
    "contiguous",
    "fits",
    "of_one_type",
    "scalar",
    "threads_for",
    "threads_of",
]

TYPES = {"float16": "__half", "float32": "float", "float64": "double"}
"""Element types that every kernel takes, and their names in CUDA."""
WITH_BFLOAT16 = {**TYPES, "bfloat16": "__nv_bfloat16"}
"""Those of kernels that say so."""
WHOLE = {"int8": "signed char", "uint8": "unsigned char", "int32": "int", "int64": "long long", "bool": "bool"}
"""Types of whole numbers, which kernels that say so compute in 64 bits."""
MAX_ELEMENTS = 2**31 - 1025
"""Maximum number of elements of an array: kernels count in int, up to the last thread of the last block."""
_PROCESSORS = 132
"""Of an H100."""
_PRELUDE = """#include <cuda_fp16.h>
typedef {T} T;
typedef {A} A;
__device__ A block_sum(A value, A *scratch) {{
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {{
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }}
  const A total = scratch[0];
  __syncthreads();
  return total;
}}
"""
"""Before each text. block_sum: the sum over a block of 2^k threads, in one order, for all; scratch is as long."""


@dataclass(frozen=True)
class Moved:
    """Bytes of device memory that a call reads and writes, and the least that any kernel could."""

    bytes: int
    least: int


@dataclass(frozen=True)
class KernelTemplate:
    """A kernel.

    Attributes:
        name: in the text.
        parameters: as the text declares them.
        body: what it does.
        example: for the report: what it is, and what it moves for arrays of a size that networks have.
        declares: what stands before it: types of its parameters.
        types: the element types that it takes, by name.
        contracts: whether a product and a sum may become one instruction: where arithmetic takes the time (`exact`).
    """

    name: str
    parameters: str
    body: str
    example: tuple[str, Callable[[], Moved]]
    declares: str = ""
    types: tuple[str, ...] = tuple(TYPES)
    contracts: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options for its texts."""
        return () if self.contracts else EXACT

    def source(self, dtype: Any) -> str:
        """The CUDA text for elements of a type of `types`."""
        element = {**WITH_BFLOAT16, **WHOLE}[np.dtype(dtype).name]
        prelude = _PRELUDE.format(T=element, A={**TYPES, **WHOLE}[computed_type(dtype).name])
        if element == WITH_BFLOAT16["bfloat16"]:
            prelude = f"#include <cuda_bf16.h>\n{prelude}"
        return f'{prelude}{self.declares}extern "C" __global__ void {self.name}({self.parameters}) {{\n{self.body}}}\n'

    def call(
        self, ctx: OpContext, dtype: Any, grid: int, block: int, arguments: Sequence[Any], shared_bytes: int = 0
    ) -> Callable[[], Any]:
        """A call that launches it on these arrays and numbers."""
        return self.launch(ctx.xp, dtype, grid, block, arguments, shared_bytes)

    def launch(
        self, xp: Any, dtype: Any, grid: int, block: int, arguments: Sequence[Any], shared_bytes: int = 0
    ) -> Callable[[], Any]:
        """The same for a compute that knows only its array module."""
        function = compiled(xp, self, np.dtype(dtype).name)
        return partial(function, (grid,), (block,), tuple(arguments), shared_mem=shared_bytes)

    def over(self, ctx: OpContext, dtype: Any, elements: int, arguments: Sequence[Any]) -> Callable[[], Any]:
        """A call that launches it with a thread for each of so many elements."""
        block = threads_of(elements)
        return self.call(ctx, dtype, -(-elements // block), block, arguments)


KERNELS: list[KernelTemplate] = []
"""All kernels, for the tests and for `make kernels`; a family's file adds its own."""


def compiled(xp: Any, kernel: KernelTemplate, dtype: str) -> Callable[..., Any]:
    """A kernel for elements of a type on the current device, called with grid, block and arguments.

    It was compiled beforehand, or is by CuPy when it is first called.
    """
    return _compiled(xp, kernel, dtype, xp.cuda.runtime.getDevice() if hasattr(xp, "cuda") else None)


@cache
def _compiled(xp: Any, kernel: KernelTemplate, dtype: str, device: int | None) -> Callable[..., Any]:
    source = kernel.source(dtype)
    function: Callable[..., Any] | None = None
    if device is not None:
        function = prebuilt(xp, source, kernel.options, kernel.name)
    if function is None:
        function = xp.RawKernel(source, kernel.name, kernel.options)
    return function


def fits(call: CallSpec, *arrays: ArraySpec, types: Collection[str] = TYPES) -> bool:
    """Return whether kernels take a call whose `arrays` are of one element type: plain, not empty, not too large."""
    return call.plain and of_one_type(*arrays, types=types)


def of_one_type(*arrays: ArraySpec, types: Collection[str] = TYPES) -> bool:
    """Return whether arrays are of one element type that kernels take, not empty and not too large."""
    return arrays[0].dtype.name in types and all(
        array.dtype == arrays[0].dtype and 0 < _size(array) <= MAX_ELEMENTS for array in arrays
    )


def _size(array: ArraySpec) -> int:
    size = 1
    for dimension in array.shape:
        size *= dimension
    return size


def computed_type(dtype: Any) -> np.dtype[Any]:
    """The type that kernels compute elements of `dtype` in: `A`."""
    return np.dtype(np.int64) if np.dtype(dtype).kind in "iub" else accumulation_type(dtype)


def scalar(value: float, dtype: Any) -> Any:
    """A number in the type that elements of `dtype` are computed in, as a kernel's argument."""
    return computed_type(dtype).type(value)


def threads_for(elements: int, most: int = 256) -> int:
    """The power of two that has a thread for each of so many elements, from a warp to `most`."""
    return min(most, max(32, 1 << (elements - 1).bit_length()))


def threads_of(elements: int) -> int:
    """Threads of a block where each element has one: few elements are shared out among all processors."""
    return max(32, min(256, 1 << (elements // _PROCESSORS).bit_length() >> 1))


def by_thread(
    ctx: OpContext, kernel: KernelTemplate, dtype: Any, elements: int, arguments: Sequence[Any]
) -> Callable[[], Any]:
    """A call that launches a thread for each of `elements`."""
    return kernel.over(ctx, dtype, elements, arguments)


def contiguous(ctx: OpContext, arrays: Arrays, alignment: int = 1) -> tuple[list[Array], list[Callable[[], Any]]]:
    """The arrays as kernels want them, and the copies that are to run before.

    Copied are arrays that are not contiguous, and those whose addresses are no multiples of `alignment` bytes.
    """
    copies: list[Callable[[], Any]] = []
    plain = []
    for array in arrays:
        if not array.flags.c_contiguous or (alignment > 1 and array.data.ptr % alignment):
            target = ctx.backend.empty(array.shape, array.dtype)
            copies.append(partial(ctx.xp.copyto, target, array))
            array = target
        plain.append(array)
    return plain, copies
