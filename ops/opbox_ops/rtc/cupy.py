"""CUDA kernels on a GPU: compiled by NVRTC through CuPy, which keeps compiled kernels by content on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from ..errors import BadRequestError, DTypeError
from .signature import Argument

__all__ = ["CudaKernel", "CudaModule"]


class CudaModule:
    """CUDA source for the current device; see EmulatedModule for the same on a CPU."""

    def __init__(self, source: str, options: Sequence[str] = (), exports: Sequence[str] = ()) -> None:
        self._module = cupy.RawModule(
            code=source, options=tuple(options), backend="nvrtc", name_expressions=tuple(exports) or None
        )

    def kernel(self, name: str, arguments: Sequence[Argument]) -> CudaKernel:
        """The kernel `name`; BadRequestError with the compiler's log when the source does not compile."""
        try:
            return CudaKernel(name, tuple(arguments), self._module.get_function(name))
        except cupy.cuda.compiler.CompileException as error:
            log = error.get_message()
            first = next((line for line in log.splitlines() if "error" in line), "the compiler gave no message")
            raise BadRequestError(f"kernel {name!r} does not compile: {first}", detail={"log": log}) from None
        except cupy.cuda.driver.CUDADriverError:
            raise BadRequestError(f'kernel {name!r} is not in the source: export it or declare it extern "C"') from None


class CudaKernel:
    """A compiled kernel on the device."""

    def __init__(self, name: str, arguments: tuple[Argument, ...], function: Any) -> None:
        self.name = name
        self.arguments = arguments
        self._function = function

    def launch(self, args: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> None:
        """Queue the kernel; argument count and types are checked against the signature first."""
        if len(args) != len(self.arguments):
            told = ", ".join(map(str, self.arguments))
            raise BadRequestError(
                f"kernel {self.name!r}: expected {len(self.arguments)} arguments ({told}), got {len(args)}"
            )
        passed = []
        for argument, value in zip(self.arguments, args, strict=True):
            if not argument.is_pointer:
                passed.append(argument.dtype.type(value))
            elif not isinstance(value, cupy.ndarray):
                raise BadRequestError(
                    f"kernel {self.name!r}: argument {argument.name!r}: expected an array on the device, got {value!r}"
                )
            elif np.dtype(value.dtype) != argument.dtype:
                raise DTypeError(
                    f"kernel {self.name!r}: argument {argument.name!r}: expected {argument.dtype}, got {value.dtype}"
                )
            else:
                passed.append(value)
        self._function(tuple(grid), tuple(block), tuple(passed), shared_mem=shared_bytes)
