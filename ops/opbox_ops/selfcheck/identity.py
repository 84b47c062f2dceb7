"""What a self-check's verdict holds for: a device, its driver and libraries, and the kernels of this opbox."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["identity_of"]

_FOLDERS = ("cuda", "cudnn", "selfcheck")
"""Folders of this package: kernels' texts and launches, cuDNN's calls, and what the check itself asks."""
_VARIABLES = ("ALLOW_NONDETERMINISTIC", "ALLOW_TF32", "COMPUTE_LEVEL", "CUDNN", "CUDNN_TUNE", "CUBINS", "DISABLE")
"""After OPBOX_: what changes which kernels run, or how."""
_LIBRARIES = ("nvidia_", "cuda_", "cupy")
_DRIVER = Path("/proc/driver/nvidia/version")


def identity_of(backend: Any) -> dict[str, str]:
    """Describe a GPU and what computes on it; a verdict for another description says nothing about this one.

    Args:
        backend: the GPU's.
    """
    runtime = backend.xp.cuda.runtime
    chosen = {name: _absolute(name, os.environ.get(f"OPBOX_{name}", "")) for name in _VARIABLES}
    properties = runtime.getDeviceProperties(backend.device.id)
    return {
        "device": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "driver": _driver(),
        "cuda": f"{runtime.driverGetVersion()} {runtime.runtimeGetVersion()} {backend.xp.cuda.nvrtc.getVersion()}",
        "libraries": _libraries(),
        "kernels": _kernels(),
        "settings": " ".join(f"{name}={value}" for name, value in chosen.items() if value),
    }


def _absolute(name: str, value: str) -> str:
    """A variable's path as every process of a server has it, whatever folder it works in; other values as they are."""
    is_path = os.sep in value or (name == "CUBINS" and value)
    return os.path.abspath(value) if is_path else value


def _driver() -> str:
    """The driver's own line, which is more exact than the version of CUDA that it knows."""
    try:
        return _DRIVER.read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""


@cache
def _libraries() -> str:
    """The installed packages of CUDA's libraries, by the names of their folders."""
    folders = {Path(place) for place in sys.path if place}
    names = {
        path.name.removesuffix(".dist-info")
        for folder in folders
        for path in folder.glob("*.dist-info")
        if path.name.startswith(_LIBRARIES)
    }
    return " ".join(sorted(names))


@cache
def _kernels() -> str:
    """A hash of the files that contain and launch kernels."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (package / folder).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
