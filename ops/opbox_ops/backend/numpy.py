"""The CPU: numpy arrays in host memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse
import scipy.special

from opbox_protocol.errors import UnsupportedError

from .base import ALIGNMENT

__all__ = ["NumpyBackend", "NumpyRandom"]

ALIGNED_FROM = 4096
"""Bytes from which arrays are aligned: below, it costs 2 us, four times the array itself, and saves nothing."""


class NumpyRandom:
    """Philox on the host."""

    def __init__(self, seed: int) -> None:
        self._draws = 0
        self.seed(seed)

    def seed(self, seed: int) -> None:
        # Created when it is first drawn from: most calls that seed draw nothing, and it costs as much as a small call.
        self._seed = seed
        self._generator: np.random.Generator | None = None

    def state(self) -> int:
        """How often it was drawn from: to ask NumPy's generator where it is allocates memory."""
        return self._draws

    def restore(self, state: int) -> None:
        if state != self._draws:
            raise UnsupportedError("random numbers cannot be drawn again: run forward and backward in turn")

    @property
    def generator(self) -> np.random.Generator:
        self._draws += 1
        if self._generator is None:
            self._generator = np.random.Generator(np.random.Philox(self._seed))
        return self._generator

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            self.generator.random(out=out, dtype=out.dtype.type)
            if not (isinstance(low, float) and low == 0.0 and isinstance(high, float) and high == 1.0):
                np.multiply(out, np.subtract(high, low), out=out, casting="same_kind")
                np.add(out, low, out=out, casting="same_kind")
        else:
            out[...] = self.generator.uniform(low, high, out.shape)

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            self.generator.standard_normal(out=out, dtype=out.dtype.type)
            if not (isinstance(loc, float) and loc == 0.0 and isinstance(scale, float) and scale == 1.0):
                np.multiply(out, scale, out=out, casting="same_kind")
                np.add(out, loc, out=out, casting="same_kind")
        else:
            out[...] = self.generator.normal(loc, scale, out.shape)


class NumpyBackend:
    """See Backend."""

    device_type = "cpu"
    xp: Any = np
    special: Any = scipy.special
    sparse: Any = scipy.sparse

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < ALIGNED_FROM:
            return np.empty(shape, dtype)
        raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return self.view(raw, start, shape, dtype)

    def view(self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        return np.ndarray(shape, dtype, arena, offset)

    def put(self, host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array = self.empty(host.shape, host.dtype)
        array[...] = host
        return array

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        np.copyto(target, host, casting="unsafe")

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(array) if array.ndim else array

    def random(self, seed: int) -> NumpyRandom:
        return NumpyRandom(seed)

    def synchronize(self) -> None:
        """Nothing is queued on the CPU."""
