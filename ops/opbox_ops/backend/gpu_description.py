"""The GPUs of this machine in one line for people, or why they cannot be used and what to do.

NVIDIA H100 80GB HBM3 (driver for CUDA 13.0)
NVIDIA H100 80GB HBM3: not usable: the driver is too old for CuPy (it takes CUDA up to 12.4): install one …
"""

from __future__ import annotations

import glob
import importlib.metadata
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from . import driver_probe
from .failure import REMEDY
from .select import NO_DRIVER, fault, too_old, version_text

__all__ = ["GPUDescription", "gpu_description"]

PATIENCE_S = 20
"""Seconds that the driver has to answer: the first call after a start of the machine loads it, which takes some."""


class GPUDescription(NamedTuple):
    """One line, empty where the machine has no GPU, and whether it asks for something to be mended."""

    line: str
    incomplete: bool


@cache
def gpu_description() -> GPUDescription:
    """Describe the GPUs; the first call asks the driver, in a process of its own."""
    there = bool(glob.glob("/dev/nvidia[0-9]*"))
    answer = _asked()
    if answer is None:
        return GPUDescription("not usable: the NVIDIA driver does not answer: look at nvidia-smi and dmesg", True)
    if answer["status"] is None:
        return GPUDescription(f"not usable: {NO_DRIVER}" if there else "", there)
    reason = _why_not(answer)
    names = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in Counter(answer["names"]).items())
    if reason is None:
        return GPUDescription(f"{names} (driver for CUDA {version_text(answer['version'])})", False)
    return GPUDescription(f"{names}{': ' if names else ''}not usable: {reason}", there or bool(names))


def _why_not(answer: dict[str, Any]) -> str | None:
    """Why the GPUs that the driver names cannot be used; None where they can."""
    if answer["status"]:
        return fault(answer["status"]) or f"CUDA error {answer['status']}"
    major = _cupy_major()
    if major is None:
        return f"CuPy is not installed ({REMEDY})"
    if answer["version"] < 1000 * major:
        return too_old(version_text(answer["version"]))
    return None


def _asked(
    command: Sequence[str] = (sys.executable, "-I", "-S", driver_probe.__file__), patience_s: float = PATIENCE_S
) -> dict[str, Any] | None:
    """What `driver_probe` prints; None where it does not come to that."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=patience_s, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
    return answer


def _cupy_major() -> int | None:
    """The major version of CUDA that the installed CuPy is for; None without CuPy."""
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith("cupy-cuda"):
            return int(name.removeprefix("cupy-cuda").rstrip("x") or 0)
    return None
