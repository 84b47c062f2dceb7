"""The GPU: CuPy arrays. The only file that imports CuPy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import cupy
import cupyx
import cupyx.scipy.special
import numpy as np

from .device_memory import DeviceMemory
from .kernel_cache import read_shared_kernels
from .random import RandomSource

__all__ = ["CupyBackend", "CupyStream"]

_MEMORY = DeviceMemory(cupy)
read_shared_kernels(cupy.cuda.compiler)


class CupyStream:
    """Philox on the device: CuPy's generators have neither key nor counter, so a place is a seed."""

    def __init__(self) -> None:
        self._seed: int | tuple[int, ...] = 0
        self._generator: Any = None

    def seed(self, seed: int) -> None:
        # Made when it is first drawn from: it has a state for each thread of the device.
        self._seed = seed
        self._generator = None

    def place(self, key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
        self._seed = (*key, *counter)
        self._generator = None

    @property
    def generator(self) -> Any:
        if self._generator is None:
            self._generator = cupy.random.Generator(cupy.random.Philox4x3210(self._seed))
        return self._generator

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            # Without a size, CuPy draws one number for all of `out`.
            self.generator.random(out.shape, dtype=out.dtype, out=out)
            if not (isinstance(low, float) and low == 0.0 and isinstance(high, float) and high == 1.0):
                out *= cupy.subtract(high, low, dtype=out.dtype)
                out += low
        else:
            drawn = self.generator.random(size=out.shape)
            out[...] = drawn * (high - low) + low

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            self.generator.standard_normal(out.shape, dtype=out.dtype, out=out)
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

    def __init__(self, device: int = 0) -> None:
        self.device = cupy.cuda.Device(device)
        self.device.use()
        # Every kernel needs it, and a machine without it is to say so now.
        cupy.cuda.nvrtc.getVersion()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return cupy.empty(shape, dtype)

    def view(self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return arena[offset : offset + nbytes].view(dtype).reshape(shape)

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        return cupy.asarray(np.asarray(host, order="C"))

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        if target.flags.c_contiguous and host.dtype == target.dtype:
            target.set(np.asarray(host, order="C"))
        else:
            target[...] = cupy.asarray(np.asarray(host, order="C"))

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = cupy.asnumpy(array)
        return host

    def random(self, seed: int) -> RandomSource:
        return RandomSource(CupyStream, seed)

    def memory(self) -> tuple[int, int]:
        free, whole = self.device.mem_info
        return int(whole - free), int(whole)

    def synchronize(self) -> None:
        cupy.cuda.Stream.null.synchronize()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        before = cupy.cuda.runtime.getDevice()
        cupy.cuda.runtime.setDevice(self.device.id)
        try:
            yield
        finally:
            # After a failure of the device this call fails as every other: the error that matters is under way.
            with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError):
                cupy.cuda.runtime.setDevice(before)

    def give_back(self) -> None:
        with self.scope():
            _MEMORY.give_back()
