"""Making arrays and shapes to test with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..ndarray import array
from .surroundings import default_context, default_dtype

__all__ = [
    "assign_each",
    "assign_each2",
    "collapse_sum_like",
    "create_2d_tensor",
    "create_vector",
    "np_reduce",
    "rand_coord_2d",
    "rand_ndarray",
    "rand_shape_2d",
    "rand_shape_3d",
    "rand_shape_nd",
    "random_arrays",
    "random_sample",
    "random_uniform_arrays",
]


def random_arrays(*shapes: tuple[int, ...]) -> Any:
    """Normal numbers in numpy arrays of these shapes: a list, or the array when there is one shape."""
    arrays = [np.asarray(np.random.standard_normal(shape), default_dtype()) for shape in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def random_uniform_arrays(*shapes: tuple[int, ...], **kwargs: Any) -> list[np.ndarray[Any, Any]]:
    """Uniform numbers from `low` (0) to `high` (1) in numpy arrays of these shapes, of type `dtype` (float32)."""
    low, high = kwargs.pop("low", 0.0), kwargs.pop("high", 1.0)
    dtype = kwargs.pop("dtype", default_dtype())
    if kwargs:
        raise TypeError(f"random_uniform_arrays: unknown arguments {', '.join(kwargs)}: it takes low, high, dtype")
    return [np.random.uniform(low, high, size=shape).astype(dtype) for shape in shapes]


def rand_ndarray(
    shape: Sequence[int],
    stype: str = "default",
    density: float | None = None,
    dtype: Any = None,
    modifier_func: Any = None,
    shuffle_csr_indices: bool = False,
    distribution: str | None = None,
    ctx: Any = None,
) -> Any:
    """An NDArray of normal numbers.

    Args:
        shape: its dimensions.
        stype: "default": all arrays are dense. `density`, `modifier_func`, `shuffle_csr_indices` and `distribution` are
            of sparse arrays, and taken and ignored.
        dtype: the element type; float32 when None.
        ctx: the device; `default_context()` when None.

    Raises:
        MXNetError: another storage type.
    """
    if stype != "default":
        raise MXNetError(f"rand_ndarray: stype: expected 'default', got {stype!r}: all arrays are dense")
    return array(random_arrays(tuple(shape)), ctx=ctx or default_context(), dtype=dtype)


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape of two dimensions, up to these."""
    return _shape((dim0, dim1), allow_zero_size)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape of three dimensions, up to these."""
    return _shape((dim0, dim1, dim2), allow_zero_size)


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape of `num_dim` dimensions, each up to `dim`."""
    return _shape((dim,) * num_dim, allow_zero_size)


def _shape(limits: Sequence[int], allow_zero_size: bool) -> tuple[int, ...]:
    return tuple(int(np.random.randint(0 if allow_zero_size else 1, limit + 1)) for limit in limits)


def rand_coord_2d(x_low: int, x_high: int, y_low: int, y_high: int) -> tuple[int, int]:
    """A random point, the upper bounds excluded."""
    return int(np.random.randint(x_low, x_high)), int(np.random.randint(y_low, y_high))


def random_sample(population: Sequence[Any], k: int) -> list[Any]:
    """`k` different elements of a sequence."""
    if not 0 <= k <= len(population):
        raise ValueError(f"random_sample: expected k from 0 to {len(population)}, got {k}")
    return [population[int(i)] for i in np.random.permutation(len(population))[:k]]


def create_2d_tensor(rows: int, columns: int, dtype: Any = np.int64) -> Any:
    """An NDArray whose row i has i everywhere."""
    return array(np.repeat(np.arange(rows), columns).reshape(rows, columns), dtype=dtype)


def create_vector(size: int, dtype: Any = np.int64) -> Any:
    """An NDArray of 0, 1, … size - 1."""
    return array(np.arange(size), dtype=dtype)


def np_reduce(dat: np.ndarray[Any, Any], axis: Any, keepdims: bool, numpy_reduce_func: Any) -> np.ndarray[Any, Any]:
    """`dat` reduced by a numpy function along one axis, several, or all (None)."""
    axes = range(dat.ndim) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    places = sorted((axis % dat.ndim for axis in axes), reverse=True)
    reduced = dat
    for place in places:
        reduced = numpy_reduce_func(reduced, axis=place)
    return np.expand_dims(reduced, tuple(sorted(places))) if keepdims else reduced


def collapse_sum_like(a: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Sum `a` over the axes along which an array of `shape` would be broadcast to it."""
    wanted = (1,) * (a.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i, (have, want) in enumerate(zip(a.shape, wanted, strict=True)) if have != want)
    return np.asarray(a.sum(axis=axes, keepdims=True).reshape(tuple(shape)))


def assign_each(the_input: np.ndarray[Any, Any], function: Any) -> np.ndarray[Any, Any]:
    """`function` of each element, as float64; a copy when it is None."""
    if function is None:
        return np.array(the_input)
    return np.array([function(element) for element in np.ravel(the_input)], dtype=np.float64).reshape(
        np.shape(the_input)
    )


def assign_each2(input1: np.ndarray[Any, Any], input2: np.ndarray[Any, Any], function: Any) -> np.ndarray[Any, Any]:
    """`function` of each pair of elements, as float64; a copy of the first when it is None."""
    if function is None:
        return np.array(input1)
    pairs = zip(np.ravel(input1), np.ravel(input2), strict=True)
    return np.array([function(*pair) for pair in pairs], dtype=np.float64).reshape(np.shape(input1))
