"""Kernels by content: the same source, name, signature and options are compiled once a process and device kind."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

from cachetools import LRUCache

from .options import checked_options
from .signature import Argument

__all__ = ["UserKernel", "compile_kernel"]

CACHED_KERNELS = 256
"""Compiled kernels that are kept when nobody uses them; the longest unused goes first."""


class UserKernel(Protocol):
    """A compiled kernel of either device."""

    name: str
    arguments: tuple[Argument, ...]

    def launch(self, args: Sequence[Any], grid: Sequence[int], block: Sequence[int], shared_bytes: int = 0) -> None:
        """Run it over `grid` blocks of `block` threads; see EmulatedKernel.launch."""


_kernels: LRUCache[str, UserKernel] = LRUCache(CACHED_KERNELS)
_lock = Lock()


def compile_kernel(
    device_type: str,
    source: str,
    name: str,
    arguments: Sequence[Argument],
    options: Sequence[str] = (),
    exports: Sequence[str] = (),
) -> UserKernel:
    """The kernel, compiled for "cpu" or "gpu".

    Args:
        source: CUDA C++.
        name: of the kernel; "axpy<float>" for an instance of a template.
        arguments: what `parse_signature` or `decorate` gave.
        options: see `checked_options`.
        exports: instances of templates that can be asked for by name; `name` need not be among them.

    Raises:
        BadRequestError: the source does not compile (detail["log"] has the compiler's messages by the user's lines) or
            has no such kernel, or an option is not known.
        UnsupportedError: a CPU without a C++ compiler.
    """
    options = checked_options(name, options)
    identity = [device_type, source, name, [str(argument) for argument in arguments], options, sorted(exports)]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    with _lock:
        kernel = _kernels.get(key)
    if kernel is not None:
        return kernel
    kernel = _compiled(device_type, source, name, tuple(arguments), options, exports)
    with _lock:
        # Another thread may have been faster: an emulated kernel must be one object, for it runs one launch at a time.
        return _kernels.setdefault(key, kernel)


def _compiled(
    device_type: str,
    source: str,
    name: str,
    arguments: tuple[Argument, ...],
    options: Sequence[str],
    exports: Sequence[str],
) -> UserKernel:
    if device_type == "cpu":
        from .emulator import EmulatedModule

        return EmulatedModule(source, options, exports=exports).kernel(name, arguments)
    from .cupy import CupyModule

    # A kernel that is not extern "C" has a name of the compiler's making; asked for, NVRTC tells it.
    plain = "<" not in name and re.search(r'\bextern\s*"C"', source)
    wanted = tuple(exports) if plain or name in exports else (*exports, name)
    kernel: UserKernel = CupyModule(source, options, wanted).kernel(name, arguments)
    return kernel
