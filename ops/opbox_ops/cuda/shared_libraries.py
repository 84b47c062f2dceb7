"""Finds and loads NVIDIA's libraries: cuBLAS, cuBLASLt, cuDNN, cuFFT, NCCL, and the folder of NVRTC.

A library is looked for in this order:

1. by cuda-pathfinder, if that is installed: CuPy finds its libraries by it
2. by the system's loader, by the name that the library has for CUDA 13 or 12
3. in the folders of NVIDIA's wheels (`nvidia/cu13/lib`, `nvidia/cublas/lib`)
4. in CUDA's own folder: CUDA_PATH, CUDA_HOME, /usr/local/cuda
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["SONAMES", "LibraryNotFoundError", "include_folders", "library_folders", "load_library", "prefer"]

SONAMES = {
    "cublas": {13: "libcublas.so.13", 12: "libcublas.so.12"},
    "cublasLt": {13: "libcublasLt.so.13", 12: "libcublasLt.so.12"},
    "cudnn": {13: "libcudnn.so.9", 12: "libcudnn.so.9"},
    "cufft": {13: "libcufft.so.12", 12: "libcufft.so.11"},
    "nccl": {13: "libnccl.so.2", 12: "libnccl.so.2"},
}
"""The files of libraries by CUDA's major version, the newest first."""


class LibraryNotFoundError(OSError):
    """A library of NVIDIA's that is nowhere, or does not load; the message says which, and where it was looked for."""


class _Preferred:
    """CUDA's major version whose libraries come first."""

    major = 13


def prefer(major: int) -> None:
    """Look for the libraries of this major version of CUDA before those of others: the version that CuPy is for."""
    _Preferred.major = major


def load_library(name: str) -> ctypes.CDLL:
    """Load a library of SONAMES.

    Raises:
        LibraryNotFoundError: it is in none of the places, or the system cannot load it.

    Example:
        >>> load_library("cublas").cublasCreate_v2
    """
    try:
        pathfinder: Any = importlib.import_module("cuda.pathfinder")
        path = pathfinder.load_nvidia_dynamic_lib(name).abs_path
        if path:
            return ctypes.CDLL(path)
    except Exception:  # not installed, or the library was not found: pathfinder's own errors are no OSErrors
        pass
    files = _files(name)
    defect = None
    for file in files:
        for place in (file, *(str(folder / file) for folder in library_folders())):
            if place != file and not os.path.exists(place):
                continue
            try:
                return ctypes.CDLL(place)
            except OSError as error:
                if not str(error).startswith(f"{file}: cannot open"):  # it is there, and wants another that is not
                    defect = defect or str(error)
    reason = defect or "not found by cuda-pathfinder, the system's loader, in NVIDIA's wheels, or below CUDA_PATH"
    raise LibraryNotFoundError(f"{' or '.join(files)}: {reason}")


def _files(name: str) -> list[str]:
    """The names of a library's file, that of the preferred version of CUDA first."""
    by_major = SONAMES[name]
    majors = sorted(by_major, key=lambda major: (major != _Preferred.major, -major))
    return list(dict.fromkeys(by_major[major] for major in majors))


def library_folders() -> list[Path]:
    """Folders of libraries: those of NVIDIA's wheels, then CUDA's own."""
    toolkits = (root / folder for root in _toolkits() for folder in ("lib64", "lib"))
    return [*(package / "lib" for package in _packages()), *toolkits]


def include_folders() -> list[Path]:
    """Folders of headers that are there, in the same order."""
    return [root / "include" for root in (*_packages(), *_toolkits()) if (root / "include").is_dir()]


def _packages() -> list[Path]:
    """The folders of NVIDIA's wheels: one with everything for CUDA 13, one a library for CUDA 12."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations or () if spec is not None else ()
    return [folder for place in places for folder in sorted(Path(place).iterdir())]


def _toolkits() -> Iterator[Path]:
    """Folders where CUDA may be installed."""
    for variable in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")
