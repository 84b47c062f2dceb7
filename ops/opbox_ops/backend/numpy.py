"""The CPU: numpy arrays in host memory."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .base import ALIGNMENT, Admit, admit_all
from .host_memory import machine_memory, memory_in_use
from .random import RandomSource

__all__ = ["NumpyBackend", "NumpyStream", "load_scipy"]

ALIGNED_FROM = 4096
"""Bytes from which arrays are aligned: below, it costs 2 us, four times the array itself, and saves nothing."""


_ANYWHERE = nullcontext()
_BEGINNING = {"bit_generator": "Philox", "buffer": (0, 0, 0, 0), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}
"""The state of a generator, but for its place, that has no numbers left in its buffer."""


SCIPY = ("scipy.special", "scipy.linalg", "scipy.fft")
"""Modules that few operators want: each takes up to a second to load."""


def load_scipy() -> None:
    """Import SCIPY ahead, in a process that will serve many: else the first call that wants one waits for it."""
    for module in SCIPY:
        importlib.import_module(module)


class _SpecialFunctions:
    """scipy.special, imported when the first of its functions is wanted.

    Few operators want one, and it takes longer to load than NumPy and 25 MB: the API process runs no operator, and
    every session with code has a process of its own.
    """

    def __getattr__(self, name: str) -> Any:
        import scipy.special

        function = getattr(scipy.special, name)
        setattr(self, name, function)
        return function


_SPECIAL = _SpecialFunctions()


class NumpyStream:
    """Philox on the host."""

    def __init__(self) -> None:
        self._seed = 0
        self._generator: np.random.Generator | None = None

    def seed(self, seed: int) -> None:
        # Created when it is first drawn from: most calls that seed draw nothing, and it costs as much as a small call.
        self._seed = seed
        self._generator = None

    def place(self, key: tuple[int, int], counter: tuple[int, int, int, int]) -> None:
        # Going to another place costs 1.5 us with tuples, 3.3 us with arrays, and another generator 21 us.
        if self._generator is None:
            self._generator = np.random.Generator(np.random.Philox(key=0))
        place = {"counter": counter, "key": key}
        self._generator.bit_generator.state = {**_BEGINNING, "state": place}

    def state(self) -> dict[str, Any]:
        if self._generator is None:
            return {"seed": self._seed}
        philox: Any = self._generator.bit_generator.state
        words = {name: philox["state"][name].tolist() for name in ("counter", "key")}
        plain = {name: int(philox[name]) for name in ("buffer_pos", "has_uint32", "uinteger")}
        return {"seed": self._seed, "philox": {**plain, "buffer": philox["buffer"].tolist(), "state": words}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.seed(state["seed"])
        if "philox" in state:
            philox = {**state["philox"], "bit_generator": "Philox"}
            philox["buffer"] = np.array(philox["buffer"], np.uint64)
            philox["state"] = {name: np.array(words, np.uint64) for name, words in philox["state"].items()}
            self.generator.bit_generator.state = philox

    @property
    def generator(self) -> np.random.Generator:
        if self._generator is None:
            self._generator = np.random.Generator(np.random.Philox(self._seed))
        return self._generator

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
            self.generator.random(out=out, dtype=out.dtype.type)
            if not (isinstance(low, float) and low == 0.0 and isinstance(high, float) and high == 1.0):
                np.multiply(out, high - low, out=out, casting="same_kind")
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

    def exponential(self, out: Any, scale: Any) -> None:
        if np.fmin.reduce(scale, axis=None, initial=0) < 0:
            raise ValueError("scale: expected at least 0")
        self.generator.standard_exponential(out=out)
        np.multiply(out, scale, out=out)

    def gamma(self, out: Any, shape: Any, scale: Any) -> None:
        if np.fmin.reduce(scale, axis=None, initial=0) < 0:
            raise ValueError("scale: expected at least 0")
        self.generator.standard_gamma(shape, out=out)
        np.multiply(out, scale, out=out)


class NumpyBackend:
    """See Backend."""

    device_type = "cpu"
    xp: Any = np
    special: Any = _SPECIAL

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        return self._aligned(np.empty, shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
        # By calloc, which writes nothing to pages that are fresh from the system: all blocks of 32 MiB and more.
        return self._aligned(np.zeros, shape, dtype)

    def _aligned(
        self, make: Callable[..., np.ndarray[Any, Any]], shape: tuple[int, ...], dtype: Any
    ) -> np.ndarray[Any, Any]:
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < ALIGNED_FROM:
            return make(shape, dtype)
        raw = make(nbytes + ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return self.view(raw, start, shape, dtype)

    def view(
        self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> np.ndarray[Any, Any]:
        return np.ndarray(shape, dtype, arena, offset, strides)

    def put(self, host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array = self.empty(host.shape, host.dtype)
        array[...] = host
        return array

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        np.copyto(target, host, casting="unsafe")

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(array) if array.ndim else array

    def random(self, seed: int) -> RandomSource:
        return RandomSource(NumpyStream, seed)

    def memory(self) -> tuple[int, int]:
        return memory_in_use(), machine_memory()

    def synchronize(self) -> None:
        """Nothing is queued on the CPU."""

    def scope(self) -> AbstractContextManager[None]:
        return _ANYWHERE

    def capture(self, calls: Sequence[Callable[[], Any]]) -> None:
        """Nothing is queued, so nothing is recorded."""

    def give_back(self) -> None:
        """Nothing is kept on the CPU."""

    def for_session(self, admit: Admit = admit_all) -> NumpyBackend:
        """There is one CPU, and no queue."""
        return self

    def close(self) -> None:
        """Nothing is queued on the CPU."""
