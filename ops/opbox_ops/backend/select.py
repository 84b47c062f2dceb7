"""Choosing a backend by device name."""

from __future__ import annotations

from functools import cache

from opbox_protocol.errors import UnsupportedError

from .base import Backend
from .numpy import NumpyBackend

__all__ = ["backend_for"]


@cache
def backend_for(device: str) -> Backend:
    """The backend of "cpu", "gpu" or "gpu:1"; UnsupportedError when this machine has no such device."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return NumpyBackend()
    if kind != "gpu":
        raise UnsupportedError(f"device {device!r} is not known: use 'cpu' or 'gpu'")
    try:
        from .cupy import CupyBackend
    except ImportError as error:
        raise UnsupportedError(
            f"device {device!r} is not available: CuPy is not installed (pip install 'opbox-service[cuda13]')"
        ) from error
    try:
        return CupyBackend(int(number or 0))
    except Exception as error:  # CuPy raises its own runtime errors when no driver or device is there
        raise UnsupportedError(f"device {device!r} is not available: {error}") from error
