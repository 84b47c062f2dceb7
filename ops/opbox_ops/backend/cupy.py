"""The GPU: CuPy arrays. The only file that imports CuPy."""

from __future__ import annotations

import math
from typing import Any

import cupy
import cupyx
import cupyx.scipy.sparse
import cupyx.scipy.special
import numpy as np

from opbox_protocol.errors import UnsupportedError

__all__ = ["CupyBackend", "CupyRandom"]


class CupyRandom:
    """Philox on the device."""

    def __init__(self, seed: int) -> None:
        self._draws = 0
        self.seed(seed)

    def seed(self, seed: int) -> None:
        self._generator = cupy.random.Generator(cupy.random.Philox4x3210(seed))
        self._draws += 1

    def state(self) -> int:
        """How often it was drawn from: CuPy's generators do not say where they are."""
        return self._draws

    def restore(self, state: int) -> None:
        if state != self._draws:
            raise UnsupportedError("random numbers cannot be drawn again: run forward and backward in turn")

    @property
    def generator(self) -> Any:
        self._draws += 1
        return self._generator

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            self.generator.random(out=out, dtype=out.dtype)
            if not (isinstance(low, float) and low == 0.0 and isinstance(high, float) and high == 1.0):
                out *= cupy.subtract(high, low, dtype=out.dtype)
                out += low
        else:
            drawn = self.generator.random(size=out.shape)
            out[...] = drawn * (high - low) + low

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            self.generator.standard_normal(out=out, dtype=out.dtype)
            if not (isinstance(loc, float) and loc == 0.0 and isinstance(scale, float) and scale == 1.0):
                out *= scale
                out += loc
        else:
            drawn = self.generator.standard_normal(size=out.shape)
            out[...] = drawn * scale + loc


class CupyBackend:
    """See Backend."""

    device_type = "gpu"
    xp: Any = cupy
    special: Any = cupyx.scipy.special
    sparse: Any = cupyx.scipy.sparse

    def __init__(self, device: int = 0) -> None:
        self.device = cupy.cuda.Device(device)
        self.device.use()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.empty(shape, dtype)

    def view(self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return arena[offset : offset + nbytes].view(dtype).reshape(shape)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        return cupy.asarray(np.ascontiguousarray(host))

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        if target.flags.c_contiguous and host.dtype == target.dtype:
            target.set(np.ascontiguousarray(host))
        else:
            target[...] = cupy.asarray(np.ascontiguousarray(host))

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = cupy.asnumpy(array)
        return host

    def random(self, seed: int) -> CupyRandom:
        return CupyRandom(seed)

    def synchronize(self) -> None:
        cupy.cuda.Stream.null.synchronize()
