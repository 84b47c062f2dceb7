"""Compiled kernels on disk: CuPy's own folder, and behind it folders that this process only reads.

A session with code has a folder of its own for what it compiles, and would compile every kernel anew.
CUPY_SHARED_CACHE_DIR names folders (with `:` between them) where it finds what others have compiled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["SHARED", "kernel_folders", "read_shared_kernels"]

SHARED = "CUPY_SHARED_CACHE_DIR"


def kernel_folders() -> list[Path]:
    """Return the folders of compiled kernels: this process's own, to which it writes, then those that it only reads."""
    own = os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache"
    further = os.environ.get(SHARED, "").split(os.pathsep)
    return [Path(name).expanduser().absolute() for name in (own, *further) if name]


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
