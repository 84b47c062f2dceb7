"""Compiled kernels on disk: CuPy's own folder, and behind it folders that this process only reads.

A session with code has a folder of its own for what it compiles, and would compile every kernel anew.
CUPY_SHARED_CACHE_DIR names folders (with `:` between them) where it finds what others have compiled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from opbox_protocol.errors import FileError
from opbox_protocol.own_folders import check_own

from ..cpu.runtime import c_compiler

__all__ = ["SHARED", "kernel_folders", "name_own_folder", "read_shared_kernels"]

OWN = "CUPY_CACHE_DIR"
SHARED = "CUPY_SHARED_CACHE_DIR"


def kernel_folders() -> list[Path]:
    """Return the folders of compiled kernels: this process's own, to which it writes, then those that it only reads."""
    further = os.environ.get(SHARED, "").split(os.pathsep)
    names = (os.environ.get(OWN) or _usual(), *further)
    return [Path(os.path.expanduser(name)).absolute() for name in names if name]


def _usual() -> str:
    """CuPy's folder below the home folder; where that is not this user's to write to, one beside the kernels in C."""
    usual = os.path.expanduser("~/.cupy/kernel_cache")
    try:
        check_own(Path(usual).absolute())
    except FileError:
        kernels = c_compiler.cache_folder()
        if kernels is not None:
            return str(kernels.with_name("cupy"))
    return usual


def name_own_folder() -> None:
    """Have CuPy write to the first of `kernel_folders`."""
    os.environ.setdefault(OWN, str(kernel_folders()[0]))


def read_shared_kernels(compiler: Any) -> None:
    """Let CuPy's compiler look into the shared folders for what its own folder lacks.

    Args:
        compiler: `cupy.cuda.compiler`.
    """
    folders = kernel_folders()[1:]
    # CuPy before 14 has no such place.
    if not folders or not hasattr(compiler, "_set_kernel_cache_backend"):
        return

    class SharedKernels(compiler._DiskKernelCacheBackend):  # type: ignore[misc]  # CuPy has no types
        def load(self, name: str) -> bytes | None:
            own: bytes | None = super().load(name)
            if own is not None:
                return own
            for folder in folders:
                try:
                    kernel: bytes | None = self._decode_cubin((folder / name).read_bytes())
                except OSError:  # it is not there, or not ours to read
                    continue
                if kernel is not None:
                    return kernel
            return None

    compiler._set_kernel_cache_backend(SharedKernels())
