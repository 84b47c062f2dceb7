"""CUDA kernels from Python, in both of MXNet's forms. On a GPU they are compiled there; on a CPU they are emulated.

The form of MXNet 0.9: the body of a kernel, which sees `x_dims` and `x_ndim` of each array as constants.

    kernel = mx.rtc("double", [("x", x)], [("y", y)], "int i = threadIdx.x; y[i] = 2 * x[i];")
    kernel.push([x], [y], (1, 1, 1), (10, 1, 1))

The form of MXNet 1: whole kernels, with their signatures.

    module = mx.rtc.CudaModule(source)
    axpy = module.get_kernel("axpy", "const float *x, float *y, float alpha")
    axpy.launch([x, y, 3.0], mx.gpu(0), (1, 1, 1), (10, 1, 1))

Launches are commands like any other: they wait for nothing, and an error is raised where the program next waits. On a
CPU every access is checked; an index outside an array is an error with the kernel, the line, the thread and the index.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.commands import KernelArguments, KernelSource
from opbox_protocol.errors import MXNetError
from opbox_protocol.signal_shield import whole

from .base import is_number, value_text
from .freed import Freed
from .ndarray import NDArray

if TYPE_CHECKING:
    from .context import Context
    from .session import Session

__all__ = ["CudaKernel", "CudaModule", "Rtc"]

_TYPES = ("float", "double", "__half", "uint8_t", "int", "int32_t", "int8_t", "char", "int64_t")
_ARGUMENT = re.compile(r"\s*(?:const\s+)?(\w+)\s*(\*?)\s*(?:__restrict__\s+)?(\w*)\s*")


class _Number(Freed):
    """A kernel's number in a session, freed with it."""

    __slots__ = ("id",)

    def __init__(self, session: Session) -> None:
        self.id = session.new_id()
        self.__del__ = partial(session.free, self.id)


class _Compiled:
    """A kernel's numbers on the sessions that it has been compiled in; they are freed with it."""

    def __init__(self) -> None:
        self._numbers: dict[Session, _Number] = {}

    def launch(self, session: Session, source: KernelSource, arguments: KernelArguments) -> None:
        """Record a launch, after the command that compiles the kernel where the session lacks it."""
        number = self._numbers.get(session) or self.compile(session, source)
        session.record({"do": "launch", "kernel": number.id, **arguments})

    @whole
    def compile(self, session: Session, source: KernelSource) -> _Number:
        number = self._numbers[session] = _Number(session)
        session.record({"do": "compile", "id": number.id, **source})
        return number


class Rtc:
    """A kernel in the form of MXNet 0.9.

    Args:
        name: of the kernel.
        inputs, outputs: (name, array) for each. The body sees an input `x` of float32 as `const float *x`, an output as
            `float *y`, and their dimensions as `x_ndim` and `x_dims[]`.
        kernel: the body: what stands between the braces. Its first line is line 1 of errors.

    Raises:
        MXNetError: arrays on different devices. What the compiler says is raised at the next wait.

    Example:
        >>> kernel = mx.rtc("double", [("x", x)], [("y", y)], "y[threadIdx.x] = 2 * x[threadIdx.x];")
        >>> kernel.push([x], [y], (1, 1, 1), (10, 1, 1))
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[tuple[str, NDArray]],
        outputs: Sequence[tuple[str, NDArray]],
        kernel: str,
    ) -> None:
        self.name = name
        self._body = kernel
        self._inputs = [input_name for input_name, _ in inputs]
        self._outputs = [input_name for input_name, _ in outputs]
        names = [*self._inputs, *self._outputs]
        if len(set(names)) != len(names):
            raise MXNetError(f"kernel {name!r}: expected array names that differ, got {', '.join(names)}")
        self._compiled = _Compiled()
        ins, outs = [array for _, array in inputs], [array for _, array in outputs]
        self._compiled.compile(_session(name, [*ins, *outs]), self._source(ins, outs))

    def push(
        self, ins: Sequence[NDArray], outs: Sequence[NDArray], grid_dims: Sequence[int], block_dims: Sequence[int]
    ) -> None:
        """Run the kernel over `grid_dims` blocks of `block_dims` threads.

        Args:
            ins, outs: arrays in the order of the constructor's. For other shapes or types than before, the kernel is
                compiled again, with their dimensions.
            grid_dims, block_dims: three sizes each.

        Raises:
            MXNetError: another number of arrays, or arrays on different devices.
            ValueError: grid or block are not three sizes.
        """
        for what, arrays, names in (("inputs", ins, self._inputs), ("outputs", outs, self._outputs)):
            if len(arrays) != len(names):
                listed = ", ".join(names) or "none"
                raise MXNetError(
                    f"kernel {self.name!r}: {what}: expected {len(names)} arrays ({listed}), got {len(arrays)}"
                )
        session = _session(self.name, [*ins, *outs])
        args = [{"array": array._id} for array in (*ins, *outs)]
        self._compiled.launch(session, self._source(ins, outs), _arguments(self.name, args, grid_dims, block_dims))

    def _source(self, ins: Sequence[NDArray], outs: Sequence[NDArray]) -> KernelSource:
        return {
            "kernel": self.name,
            "body": self._body,
            "inputs": {name: array._id for name, array in zip(self._inputs, ins, strict=True)},
            "outputs": {name: array._id for name, array in zip(self._outputs, outs, strict=True)},
        }


class CudaModule:
    """CUDA source with kernels.

    Args:
        source: CUDA C++. A kernel is found by its name when it is declared extern "C", or as an instance of a template.
        options: compiler options such as "-DN=3" and "--use_fast_math".
        exports: names of kernels and template instances; what `get_kernel` asks for need not be among them.
    """

    def __init__(self, source: str, options: Sequence[str] | str = (), exports: Sequence[str] | str = ()) -> None:
        self.source = source
        self.options = [options] if isinstance(options, str) else list(options)
        self.exports = [exports] if isinstance(exports, str) else list(exports)

    def get_kernel(self, name: str, signature: str) -> CudaKernel:
        """A kernel of the source.

        Args:
            name: "axpy", or "axpy<float>" for an instance of a template.
            signature: its parameters: "const float *x, float *y, float alpha"; names may be left out.

        Raises:
            ValueError: a parameter that is not of the form `[const] type [*] [name]`.
            TypeError: a type that kernels cannot take.
        """
        return CudaKernel(self, name, signature)


class CudaKernel:
    """A kernel; made by `CudaModule.get_kernel`."""

    def __init__(self, module: CudaModule, name: str, signature: str) -> None:
        self.name = name
        self._pointers = _pointers(signature)
        self._source: KernelSource = {
            "kernel": name,
            "source": module.source,
            "options": module.options,
            "exports": module.exports,
            "signature": signature,
        }
        self._compiled = _Compiled()

    def launch(
        self,
        args: Sequence[Any],
        ctx: Context,
        grid_dims: Sequence[int],
        block_dims: Sequence[int],
        shared_mem: int = 0,
    ) -> None:
        """Run the kernel over `grid_dims` blocks of `block_dims` threads.

        Args:
            args: an NDArray for each pointer of the signature, a number for each scalar.
            ctx: the device of the arrays; a CPU emulates.
            grid_dims, block_dims: three sizes each.
            shared_mem: bytes of dynamic shared memory.

        Raises:
            MXNetError: another number of arguments, an array where a number is due or the other way about, or an array
                that is not on `ctx`.
            ValueError: grid or block are not three sizes.
        """
        if len(args) != len(self._pointers):
            count = len(self._pointers)
            raise MXNetError(
                f"kernel {self.name!r}: expected {count} argument{'' if count == 1 else 's'}, got {len(args)}"
            )
        passed: list[dict[str, Any]] = []
        for position, (value, pointer) in enumerate(zip(args, self._pointers, strict=True)):
            subject = f"kernel {self.name!r}: argument {position}"
            if pointer and not isinstance(value, NDArray):
                raise MXNetError(f"{subject}: expected an NDArray, got {value_text(value)}")
            if not pointer and not is_number(value):
                raise MXNetError(f"{subject}: expected a number, got {type(value).__name__}")
            passed.append({"array": value._id} if pointer else {"value": np.asarray(value).item()})
        arrays = [array for array in args if isinstance(array, NDArray)]
        for array in arrays:
            if array.context != ctx:
                raise MXNetError(
                    f"kernel {self.name!r}: expected arrays on {ctx}, got one on {array.context}: move it there with "
                    "as_in_context"
                )
        session = _session(self.name, arrays) if arrays else ctx.session
        arguments = _arguments(self.name, passed, grid_dims, block_dims)
        self._compiled.launch(session, self._source, {**arguments, "shared": int(shared_mem)})


def _session(name: str, arrays: Sequence[NDArray]) -> Session:
    for array in arrays:
        if not isinstance(array, NDArray):
            raise MXNetError(f"kernel {name!r}: expected arrays, got {type(array).__name__}")
        if array._session is not arrays[0]._session:
            devices = f"{arrays[0].context} and {array.context}"
            raise MXNetError(
                f"kernel {name!r}: expected arrays on one device, got {devices}: move one with as_in_context"
            )
    if not arrays:
        raise MXNetError(f"kernel {name!r}: expected at least one array, got none")
    return arrays[0]._session


def _arguments(
    name: str, args: Sequence[Mapping[str, Any]], grid: Sequence[int], block: Sequence[int]
) -> KernelArguments:
    for what, sizes in (("grid", grid), ("block", block)):
        if len(sizes) != 3 or any(int(size) != size or size < 1 for size in sizes):
            raise ValueError(f"kernel {name!r}: {what}: expected three sizes of 1 or more, got {tuple(sizes)}")
    return {"args": args, "grid": [int(size) for size in grid], "block": [int(size) for size in block]}


def _pointers(signature: str) -> list[bool]:
    """For each parameter, whether it is a pointer."""
    pointers = []
    for text in signature.split(",") if signature.strip() else ():
        match = _ARGUMENT.fullmatch(text)
        if match is None or match[1] == "const":
            raise ValueError(f"signature: expected '[const] type [*] [name]', got {text.strip()!r}")
        if match[1] not in _TYPES:
            raise TypeError(f"signature: {text.strip()!r}: expected one of the types {', '.join(_TYPES)}")
        pointers.append(bool(match[2]))
    return pointers


class _Callable(types.ModuleType):
    """This module: `mx.rtc(...)` makes an Rtc, as in MXNet 0.9; `mx.rtc.CudaModule` is found in it, as in MXNet 1."""

    def __call__(
        self,
        name: str,
        inputs: Sequence[tuple[str, NDArray]],
        outputs: Sequence[tuple[str, NDArray]],
        kernel: str,
    ) -> Rtc:
        """See `Rtc`."""
        return Rtc(name, inputs, outputs, kernel)


sys.modules[__name__].__class__ = _Callable
