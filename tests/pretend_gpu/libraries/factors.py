"""cuSOLVER and cuFFT, by NumPy: CuPy's functions that end in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..device import note, refuse

__all__ = ["replace"]

_LINALG = ("cholesky", "inv", "det", "slogdet", "qr", "eigh", "svd", "solve")
_FFT = ("fft", "ifft")


def replace(cupy: Any) -> None:
    """Put them in the place of CuPy's."""
    for name in _LINALG:
        setattr(cupy.linalg, name, _on_host(cupy, "cusolver", getattr(np.linalg, name)))
    for name in _FFT:
        setattr(cupy.fft, name, _on_host(cupy, "cufft", _narrow(getattr(np.fft, name))))


def _on_host(cupy: Any, library: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        note(library, function.__name__)
        refuse(library)
        host = [cupy.asnumpy(arg) if isinstance(arg, cupy.ndarray) else arg for arg in args]
        result = function(*host, **options)
        if isinstance(result, tuple):
            return tuple(cupy.asarray(part) for part in result)
        return cupy.asarray(result)

    return call


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """cuFFT keeps single precision."""

    def call(array: Any, **options: Any) -> Any:
        single = array.dtype.itemsize * (1 if array.dtype.kind == "c" else 2) <= 8
        result = function(array, **options)
        return result.astype(np.complex64) if single else result

    return call
