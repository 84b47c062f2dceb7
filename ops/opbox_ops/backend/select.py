"""Choosing a backend by device name."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from functools import cache

from opbox_protocol.errors import UnsupportedError

from .base import Backend
from .failure import REMEDY, first_line, missing_library
from .numpy import NumpyBackend

__all__ = ["NO_DRIVER", "backend_for", "before_first_use", "device_name", "fault", "too_old", "version_text"]


def device_name(device: str) -> str:
    """Return the canonical name of a device: "cpu" for cpu, cpu:0 and cpu:1, "gpu" for gpu and gpu:0.

    Raises:
        UnsupportedError: no device is called that.

    Example:
        >>> device_name("cpu:1"), device_name("gpu")
        ('cpu', 'gpu:0')
    """
    match = re.fullmatch("(cpu|gpu)(?::([0-9]{1,9}))?", device)
    if match is None:
        raise UnsupportedError(f"device {device[:40]!r}: expected 'cpu', 'gpu' or one with a number as 'gpu:1'")
    return "cpu" if match[1] == "cpu" else f"gpu:{int(match[2] or 0)}"


def backend_for(device: str) -> Backend:
    """The backend of "cpu", "gpu" or "gpu:1"; UnsupportedError when this machine has no such device."""
    return _backend(device_name(device))


@cache
def _backend(device: str) -> Backend:
    if device == "cpu":
        return NumpyBackend()
    # CUB allocates workspaces while plans run; and without it, what is tested without a GPU is what runs on one.
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    try:
        from .cupy import CupyBackend

        backend = CupyBackend(int(device.removeprefix("gpu:")))
    except Exception as error:  # CuPy raises its own runtime errors when no driver or device is there
        status = getattr(error, "status", None)
        if status in _GPU_FAULTS:
            remedy = f"until then use mx.cpu() (the machine that computes is {platform.node()!r})"
        else:
            remedy = (
                f"an NVIDIA GPU is needed in the machine that computes, which is {platform.node()!r}: use mx.cpu(), or "
                "a server on a machine that has one"
            )
        raise UnsupportedError(f"device {device!r} is not available: {_reason(error)}; {remedy}") from error
    if _first_use is not None:
        _first_use(device, backend)
    return backend


def before_first_use(work: Callable[[str, Backend], None] | None) -> None:
    """Call `work` with a GPU's name and backend before this process first computes on it; None: call nothing."""
    global _first_use
    _first_use = work


_first_use: Callable[[str, Backend], None] | None = None

NO_DRIVER = (
    "there is no NVIDIA driver here (libcuda.so.1): install one from 580 on, or start the container with the host's "
    "GPUs (docker run --gpus all, by the NVIDIA container toolkit)"
)
_INSUFFICIENT_DRIVER = 35
_MPS = "the MPS server (CUDA_MPS_PIPE_DIRECTORY)"
_NO_GPU = {
    100: "this machine has no GPU that CUDA may use: look at nvidia-smi and CUDA_VISIBLE_DEVICES",
    101: "this machine has fewer GPUs: name one that nvidia-smi lists, counted from 0",
}
_GPU_FAULTS = {
    2: "the GPU has too little free memory for another process: end one of those that nvidia-smi lists",
    3: "the NVIDIA driver does not start: look at nvidia-smi and at the kernel's messages (dmesg)",
    46: "another process has the GPU for itself, or its compute mode forbids work: nvidia-smi -c DEFAULT",
    304: "the operating system refuses the NVIDIA driver a call: look at the permissions of /dev/nvidia*",
    802: "the GPUs are not ready: start nvidia-fabricmanager, of the driver's version (machines with NVSwitch need it)",
    803: "the NVIDIA driver in the kernel and its library (libcuda.so.1) have different versions: restart the "
    "machine, or install both from one release",
    804: "CUDA's compatibility package (cuda-compat) does not take this GPU: remove it, and install a newer driver",
    805: f"{_MPS} does not answer: start nvidia-cuda-mps-control -d",
    807: f"{_MPS} recovers from a failure: try again",
    808: f"{_MPS} has as many processes as it takes: end one",
    809: f"{_MPS} has as many connections as the GPU takes: end a process",
}
"""Why there is no such device, and what to do, by CUDA's numbers: none there, or one that does not work."""


def _reason(error: Exception) -> str:
    """Why there is no such device, and what to do: nothing installed, too little of it, the driver, the device."""
    status = getattr(error, "status", None)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("cupy", "cupyx"):
        return f"CuPy is not installed ({REMEDY})"
    if (sentence := missing_library(error)) is not None:
        return sentence
    if isinstance(error, ImportError):
        return f"CuPy cannot be imported ({first_line(error.__cause__ or error)}): install it anew ({REMEDY})"
    if status == _INSUFFICIENT_DRIVER:
        version = _driver_version()
        return NO_DRIVER if version is None else too_old(version)
    return (None if status is None else fault(status)) or first_line(error)


def fault(status: int) -> str | None:
    """Why there is no such device, and what to do, by CUDA's number of an error; None for one that says it itself."""
    return _NO_GPU.get(status) or _GPU_FAULTS.get(status)


def too_old(version: str) -> str:
    """What to do where the driver takes CUDA up to a version such as "12.4" that CuPy is too new for."""
    return (
        f"the driver is too old for CuPy (it takes CUDA up to {version}): install one from 580 on for CUDA 13, or "
        "'opbox-service[cuda12]'"
    )


def _driver_version() -> str | None:
    """The newest CUDA that the driver takes, such as "12.4"; None where its library does not load.

    CUDA's error is the same for an old driver and for none.
    """
    try:
        driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        driver.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version_text(version.value)


def version_text(version: int) -> str:
    """A version of CUDA as people write it: 12040 as "12.4"."""
    return f"{version // 1000}.{version % 1000 // 10}"
