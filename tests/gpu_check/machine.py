"""Which device, driver and packages a machine has, as far as it tells."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from importlib.metadata import distributions
from typing import Any

__all__ = ["description"]

_PACKAGES = ("cupy", "nvidia-", "cuda-", "torch", "triton", "numpy", "scipy", "opbox")


def description() -> dict[str, Any]:
    """What every file of `make gpu-check` begins with; what cannot be asked is the sentence that says why."""
    versions = {d.name.lower(): d.version for d in distributions() if d.name.lower().startswith(_PACKAGES)}
    return {
        "device": _asked(_device),
        "driver": _asked(_driver),
        "python": platform.python_version(),
        "versions": dict(sorted(versions.items())),
        "commit": _asked(lambda: _output("git", "rev-parse", "--short", "HEAD")),
    }


def _asked(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # a machine without a device has its stages fail, with this in their files
        return f"unknown: {type(error).__name__}: {error}"


def _device() -> dict[str, Any]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "name": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory_bytes": properties["totalGlobalMem"],
        "devices": cupy.cuda.runtime.getDeviceCount(),
    }


def _driver() -> dict[str, Any]:
    import cupy

    runtime = cupy.cuda.runtime
    return {"cuda": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion(), "nvidia": _nvidia()}


def _nvidia() -> str:
    return str(_asked(lambda: _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
