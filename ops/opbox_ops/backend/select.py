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

__all__ = ["backend_for", "before_first_use", "device_name"]


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
        raise UnsupportedError(
            f"device {device!r} is not available: {_reason(error)}; an NVIDIA GPU is needed in the machine that "
            f"computes, which is {platform.node()!r}: use mx.cpu(), or a server on a machine that has one"
        ) from error
    if _first_use is not None:
        _first_use(device, backend)
    return backend


def before_first_use(work: Callable[[str, Backend], None] | None) -> None:
    """Call `work` with a GPU's name and backend before this process first computes on it; None: call nothing."""
    global _first_use
    _first_use = work


_first_use: Callable[[str, Backend], None] | None = None

_INSUFFICIENT_DRIVER, _INVALID_DEVICE, _NO_DEVICE = 35, 101, 100
"""CUDA's numbers of these errors."""


def _reason(error: Exception) -> str:
    """Why there is no such device, and what to do: nothing installed, too little of it, the driver, the device."""
    status = getattr(error, "status", None)
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in ("cupy", "cupyx"):
        return f"CuPy is not installed ({REMEDY})"
    if (sentence := missing_library(error)) is not None:
        return sentence
    if isinstance(error, ImportError):
        return f"CuPy cannot be imported ({first_line(error.__cause__ or error)}): install it anew ({REMEDY})"
    if status == _INSUFFICIENT_DRIVER and not _driver_installed():
        return (
            "there is no NVIDIA driver here (libcuda.so.1): install one from 580 on, or start the container"
            " with the host's GPUs (docker run --gpus all, by the NVIDIA container toolkit)"
        )
    if status == _INSUFFICIENT_DRIVER:
        return "the driver is too old for CuPy: install one from 580 on for CUDA 13, or 'opbox-service[cuda12]'"
    if status == _NO_DEVICE:
        return "this machine has no GPU that CUDA may use: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    if status == _INVALID_DEVICE:
        return "this machine has fewer GPUs: name one that nvidia-smi lists, counted from 0"
    return first_line(error)


def _driver_installed() -> bool:
    """Return whether the driver's library loads: CUDA's error is the same for an old driver and for none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
