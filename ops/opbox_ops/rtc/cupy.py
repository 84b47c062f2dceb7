"""CUDA kernels on a GPU: compiled by NVRTC through CuPy, which keeps compiled kernels by content on disk."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cupy

from opbox_protocol.errors import BadRequestError

from .launching import checked_arguments, checked_shared, checked_sizes
from .options import checked_options
from .signature import Argument
from .translate import for_nvrtc

__all__ = ["CupyKernel", "CupyModule"]

DEFAULT_SHARED = 48 << 10
"""Bytes of dynamic shared memory that a kernel has without asking for more."""
_MAX_SHARED_OF_BLOCK = 97
"""cudaDevAttrMaxSharedMemoryPerBlockOptin: the bytes of a block where a kernel asks for them."""
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


@dataclass(slots=True)
class _Limits:
    """The limits of a kernel's blocks on one device.

    Attributes:
        threads: of a block, as many as there are registers for.
        registers: of a thread.
        shared_bytes: of dynamic shared memory, where the kernel asks for it.
        asked_bytes: what it has asked for.
    """

    threads: int
    registers: int
    shared_bytes: int
    asked_bytes: int


class CupyKernel:
    """A compiled kernel on the device."""

    def __init__(self, name: str, arguments: tuple[Argument, ...], function: Any) -> None:
        self.name = name
        self.arguments = arguments
        self._function = function
        self._limits: dict[int, _Limits] = {}

    def launch(self, args: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> None:
        """Queue the kernel.

        Raises:
            BadRequestError: the arguments do not fit the signature, or this device would not start such a block.
        """
        grid_size, block_size = checked_sizes(self.name, grid, block)
        passed = checked_arguments(self.name, self.arguments, args, cupy.ndarray)
        limits = self._limits_here()
        if math.prod(block_size) > limits.threads:
            raise BadRequestError(
                f"kernel {self.name!r}: expected at most {limits.threads} threads a block on this GPU, as a thread "
                f"takes {limits.registers} registers, got {block_size}: use smaller blocks, or --maxrregcount"
            )
        nbytes = checked_shared(self.name, shared_bytes, limits.shared_bytes)
        if nbytes > limits.asked_bytes:
            self._function.max_dynamic_shared_size_bytes = nbytes
            limits.asked_bytes = nbytes
        self._function(grid_size, block_size, tuple(passed), shared_mem=nbytes)

    def _limits_here(self) -> _Limits:
        """The limits on this thread's device."""
        device = cupy.cuda.runtime.getDevice()
        limits = self._limits.get(device)
        if limits is None:
            function, of_block = self._function, cupy.cuda.runtime.deviceGetAttribute(_MAX_SHARED_OF_BLOCK, device)
            own = function.shared_size_bytes  # static: a block has both
            limits = self._limits[device] = _Limits(
                function.max_threads_per_block, function.num_regs, of_block - own, DEFAULT_SHARED - own
            )
        return limits
