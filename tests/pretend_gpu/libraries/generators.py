"""CuPy's random Generator by NumPy's, with the same signatures and the same use of `size` and `out` as in CuPy 14.2."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..device import note

__all__ = ["replace"]

_STATE_BYTES = 64 * 8 * 256 * 132
"""What CuPy allocates for a generator's states on a device of 132 multiprocessors."""


def replace(cupy: Any) -> None:
    """Put the generators in the place of CuPy's."""

    class Philox:
        def __init__(self, seed: Any = None, *, size: int = -1) -> None:
            number = np.random.SeedSequence(seed).generate_state(1, np.uint32)[0]
            self.numbers = np.random.Generator(np.random.Philox(number))
            self._state = cupy.zeros(_STATE_BYTES if size < 0 else size, dtype=np.int8)
            note("generator")

    class Generator:
        def __init__(self, bit_generator: Any) -> None:
            self.bit_generator = bit_generator
            self._numbers = bit_generator.numbers

        def _check(self, dtype: Any, size: Any, out: Any) -> None:
            dtype = np.dtype(dtype)
            if out.dtype.char != dtype.char:
                raise TypeError(f"the output array has type {out.dtype.name}, expected {dtype.name}")
            if not (out.flags.c_contiguous or out.flags.f_contiguous):
                raise ValueError("the output array is not contiguous")
            if size is not None and tuple(size) != out.shape:
                raise ValueError("size must match out.shape when used together")

        def _fill(self, y: Any, values: Any) -> Any:
            note("draw")
            if y.size:
                y.set(np.ascontiguousarray(values, dtype=y.dtype).reshape(y.shape))
            return y

        def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
            if out is not None:
                self._check(dtype, size, out)
            # Without a size one number is drawn, and copied everywhere.
            size = () if size is None else size
            kind = np.dtype(dtype)
            y = cupy.ndarray(size, kind if kind.char == "d" else np.float32)
            self._fill(y, self._numbers.random(y.shape, dtype=y.dtype.type))
            if out is not None:
                out[...] = y
                y = out
            return y.astype(dtype, copy=False)

        def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
            if out is not None:
                self._check(dtype, size, out)
                y = out
            else:
                y = cupy.ndarray(() if size is None else size, dtype)
            if y.dtype.char not in "fd":
                raise TypeError(f"Unsupported dtype {y.dtype.name} for standard_normal")
            return self._fill(y, self._numbers.standard_normal(y.shape))

        def standard_exponential(
            self, size: Any = None, dtype: Any = np.float64, method: str = "inv", out: Any = None
        ) -> Any:
            y = cupy.ndarray(() if size is None else size, dtype)
            return self._fill(y, self._numbers.standard_exponential(y.shape))

        def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
            if size is None and isinstance(scale, cupy.ndarray):
                size = scale.shape
            x = self.standard_exponential(size)
            x *= scale
            return x

        def standard_gamma(self, shape: Any, size: Any = None) -> Any:
            shape = self._parameter(shape, size)
            return self._fill(cupy.ndarray(shape.shape, "d"), self._numbers.standard_gamma(cupy.asnumpy(shape)))

        def gamma(self, shape: Any, scale: Any = 1.0, size: Any = None) -> Any:
            y = self.standard_gamma(shape, size)
            y *= scale
            return y

        def poisson(self, lam: Any = 1.0, size: Any = None) -> Any:
            lam = self._parameter(lam, size)
            return self._fill(cupy.ndarray(lam.shape, np.int64), self._numbers.poisson(cupy.asnumpy(lam)))

        def _parameter(self, value: Any, size: Any) -> Any:
            if not isinstance(value, cupy.ndarray):
                if type(value) not in (float, int):
                    raise ValueError("expected a cupy.ndarray or a scalar")
                value = cupy.asarray(value, "d")
            value = value.astype("d", copy=False)
            return value if size is None else cupy.broadcast_to(value, size)

        def integers(
            self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: bool = False
        ) -> Any:
            first, last = (0, int(low)) if high is None else (int(low), int(high))
            span = last - (not endpoint) - first
            y = cupy.ndarray(size, np.uint32 if span < 1 << 32 else np.uint64)
            self._fill(y, self._numbers.integers(0, span, size, endpoint=True, dtype=y.dtype))
            return cupy.add(first, y, dtype=dtype)

    cupy.random.Generator, cupy.random.Philox4x3210 = Generator, Philox
