"""CUDA kernels on a GPU: compiled by NVRTC through CuPy, which keeps compiled kernels by content on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import cupy

from opbox_protocol.errors import BadRequestError

from .launching import checked_arguments, checked_shared, checked_sizes
from .options import checked_options
from .signature import Argument
from .translate import for_nvrtc

__all__ = ["CupyKernel", "CupyModule"]

_USERS = re.compile(r"^\w+\.cu\(\d+\):.*$", re.MULTILINE)


class CupyModule:
    """CUDA source for the current device; see EmulatedModule for the same on a CPU."""

    def __init__(self, source: str, options: Sequence[str] = (), exports: Sequence[str] = ()) -> None:
        self._module = cupy.RawModule(
            code=for_nvrtc(source),
            options=checked_options("module", options),
            backend="nvrtc",
            name_expressions=tuple(exports) or None,
        )

    def kernel(self, name: str, arguments: Sequence[Argument]) -> CupyKernel:
        """The kernel `name`; BadRequestError with the compiler's log when the source does not compile."""
        try:
            return CupyKernel(name, tuple(arguments), self._module.get_function(name))
        except cupy.cuda.compiler.CompileException as error:
            log = "\n".join(_USERS.findall(error.get_message()))
            first = next((line for line in log.splitlines() if "error" in line), "the compiler gave no message")
            raise BadRequestError(f"kernel {name!r} does not compile: {first}", detail={"log": log}) from None
        except cupy.cuda.driver.CUDADriverError:
            raise BadRequestError(f'kernel {name!r} is not in the source: export it or declare it extern "C"') from None


class CupyKernel:
    """A compiled kernel on the device."""

    def __init__(self, name: str, arguments: tuple[Argument, ...], function: Any) -> None:
        self.name = name
        self.arguments = arguments
        self._function = function

    def launch(self, args: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> None:
        """Queue the kernel; argument count and types are checked against the signature first."""
        grid_size, block_size = checked_sizes(self.name, grid, block)
        passed = checked_arguments(self.name, self.arguments, args, cupy.ndarray)
        self._function(grid_size, block_size, tuple(passed), shared_mem=checked_shared(self.name, shared_bytes))
