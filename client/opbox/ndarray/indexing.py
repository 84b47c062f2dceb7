"""Reading and writing parts of arrays.

Parts that lie in one piece of memory are views, as in MXNet: writing to them writes to the array. Other basic parts are
cut by `slice`; everything else (lists, arrays, masks, negative steps) becomes positions in the flattened array.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from opbox_protocol.errors import ShapeError, ValueShapeError
from opbox_protocol.reshape import reshape_target
from opbox_protocol.shapes import known, size_of

from ..base import is_number
from ..foreign import host_numbers
from ..numpy_mode import is_np_shape
from .handle import Handle

if TYPE_CHECKING:
    from .array import NDArray

__all__ = ["fill", "get", "put", "reshaped"]

Bounds = list[tuple[int, int]]


def _host(key: Any) -> Any:
    """The key with arrays of the engine fetched."""
    if isinstance(key, tuple):
        return tuple(_host(part) for part in key)
    if hasattr(key, "asnumpy"):
        values = key.asnumpy()
        return values if values.dtype.kind in "iub" else values.astype(np.int64)
    if isinstance(key, list):
        return np.asarray(key, dtype=None if key else np.int64)
    return key


def _bounds(shape: tuple[int, ...], key: Any) -> tuple[Bounds, tuple[int, ...]] | None:
    """(begin, end) on every axis and the part's shape, for integers and slices of step 1; None for other keys."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if parts.count(Ellipsis) == 1 and all(p is not None for p in parts):
        at = parts.index(Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if not all(isinstance(p, int | np.integer | slice) and not isinstance(p, bool) for p in parts):
        return None
    if len(parts) > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, got {len(parts)}")
    parts += [slice(None)] * (len(shape) - len(parts))
    bounds: Bounds = []
    part_shape: list[int] = []
    for axis, (part, size) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            begin, end, step = part.indices(size)
            if step != 1:
                return None
            bounds.append((begin, max(end, begin)))
            part_shape.append(bounds[-1][1] - begin)
        else:
            position = int(part)
            if not -size <= position < size:
                raise IndexError(f"index {position}: expected {-size} to {size - 1} on axis {axis}")
            bounds.append((position % size, position % size + 1))
    return bounds, tuple(part_shape)


def _contiguous(shape: tuple[int, ...], bounds: Bounds) -> bool:
    """Return whether the part is one piece: single elements, then one range, then whole axes."""
    ranged = False
    for (begin, end), size in zip(bounds, shape, strict=True):
        if ranged and (begin, end) != (0, size):
            return False
        ranged = ranged or end - begin != 1
    return True


def get(x: NDArray, key: Any) -> NDArray:
    """The part of `x` at `key`."""
    if isinstance(key, list | np.ndarray) or _advanced(key):
        return _gather(x, key)
    part_bounds = _bounds(x.shape, key)
    if part_bounds is None:
        return _gather(x, key)
    bounds, part_shape = part_bounds
    if not bounds or not _contiguous(x.shape, bounds):
        begin, end = zip(*bounds, strict=True) if bounds else ((), ())
        if not bounds:
            return x
        if 0 in part_shape:
            return _gather(x, key)
        part: NDArray = x._imperative("slice", [x], {"begin": begin, "end": end})
        part._shape, part._dtype = tuple(b - a for a, b in bounds), x._dtype
        return _formed(part, part_shape or _element_shape())
    return _formed(_piece(x, bounds), part_shape or _element_shape())


def _element_shape() -> tuple[int, ...]:
    """The shape of a single element: () in numpy mode, otherwise (1,)."""
    return () if is_np_shape() else (1,)


def _advanced(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return any(isinstance(p, list | np.ndarray | bool) or p is None or hasattr(p, "asnumpy") for p in parts)


def _piece(x: NDArray, bounds: Bounds) -> NDArray:
    """A view of a contiguous part, in some shape."""
    if not bounds or all((a, b) == (0, n) for (a, b), n in zip(bounds, x.shape, strict=True)):
        return x
    first, rest = bounds[0], bounds[1:]
    if all((a, b) == (0, n) for (a, b), n in zip(rest, x.shape[1:], strict=True)):
        return x._slice(*first) if first[1] - first[0] != 1 else x._at(first[0])
    strides = [math.prod(x.shape[axis + 1 :]) for axis in range(len(x.shape))]
    start = sum(a * stride for (a, _), stride in zip(bounds, strides, strict=True))
    count = math.prod(b - a for a, b in bounds)
    return x.reshape((-1,))._slice(start, start + count)


def _formed(x: NDArray, shape: tuple[int, ...]) -> NDArray:
    return x if x.shape == shape else x._view(shape, shape=list(shape))


def _positions(x: NDArray, key: Any) -> np.ndarray[Any, Any]:
    """Return the positions of the part's elements in the flattened array."""
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, str | float):
            raise IndexError(
                f"index {part!r}: expected integers, slices, None, or lists and arrays of integers or booleans"
            )
    positions: np.ndarray[Any, Any] = np.arange(x.size, dtype=np.int64).reshape(x.shape)[_host(key)]
    return positions


def _gather(x: NDArray, key: Any) -> NDArray:
    positions = np.atleast_1d(_positions(x, key))
    if positions.size == 0:
        return x._new(np.empty(positions.shape, x._numpy_dtype))
    flat = x._view((x.size,), shape=[x.size])
    part: NDArray = x._imperative("take", [flat, x._new(positions)], {"axis": 0, "mode": "clip"})
    part._shape, part._dtype = positions.shape, x._dtype
    return part


def put(x: NDArray, key: Any, value: Any) -> None:
    """Write `value` to the part of `x` at `key`."""
    if isinstance(key, slice) and key == slice(None):
        _assign(x, value)
        return
    part_bounds = None if isinstance(key, list | np.ndarray) or _advanced(key) else _bounds(x.shape, key)
    if part_bounds is None:
        _scatter(x, key, value)
        return
    bounds, part_shape = part_bounds
    if 0 in part_shape:
        return
    if _contiguous(x.shape, bounds):
        _assign(_formed(_piece(x, bounds), part_shape or (1,)), value)
        return
    begin, end = zip(*bounds, strict=True)
    if is_number(value):
        x._imperative("_slice_assign_scalar", [x], {"scalar": float(value), "begin": begin, "end": end}, out=x)
        return
    part = _formed(_valued(x, value, part_shape), tuple(b - a for a, b in bounds))
    x._imperative("_slice_assign", [x, part], {"begin": begin, "end": end}, out=x)


def _is_on_session(value: Any, x: NDArray) -> TypeGuard[NDArray]:
    return isinstance(value, Handle) and value._session == x._session


def _brought(value: Any, x: NDArray) -> Any:
    """`value`, or its copy on `x`'s device where it is an array on another one of the same session."""
    elsewhere = isinstance(value, Handle) and not _is_on_session(value, x)
    return value.as_in_context(x.context) if elsewhere and value._session.shares_batches(x._session) else value


def _valued(x: NDArray, value: Any, shape: tuple[int, ...]) -> NDArray:
    """`value` as an array of `shape` on `x`'s device, in its type."""
    value = _brought(value, x)
    if not _is_on_session(value, x):
        return x._new(_broadcast(host_numbers(value, "assignment"), shape, x._numpy_dtype))
    array = value if value._dtype == x._dtype and x._dtype is not None else value.astype(x._numpy_dtype)
    if array.shape == shape:
        return array
    aligned = _formed(array, _aligned(array.shape, shape))
    return aligned if aligned.shape == shape else aligned.broadcast_to(shape)


def _aligned(got: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a value with as many axes as `shape`, to which it broadcasts as numpy's assignment does.

    Args:
        got: the value's shape: of too many axes the first may be 1.
        shape: what is assigned to.

    Raises:
        ValueShapeError: it does not broadcast.
    """
    aligned = got
    while len(aligned) > len(shape) and aligned[0] == 1:
        aligned = aligned[1:]
    aligned = (1,) * (len(shape) - len(aligned)) + aligned
    if len(aligned) != len(shape) or any(a not in (1, b) for a, b in zip(aligned, shape, strict=True)):
        raise ValueShapeError(f"assignment: expected a value of shape {shape} or one that broadcasts to it, got {got}")
    return aligned


def _broadcast(host: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A copy of host values, in a shape and type."""
    values = host.reshape(_aligned(host.shape, shape))
    array = np.empty(shape, dtype)
    array[...] = values
    return array


def fill(x: NDArray, value: Any, subject: str) -> None:
    """Write an array of the same shape to the whole of `x`: nothing is repeated.

    Args:
        x: what is written to.
        value: an array of any kind, or nested lists.
        subject: what `x` is to the user, for the error.

    Raises:
        ValueShapeError: another shape.
    """
    array = value if hasattr(value, "shape") else host_numbers(value, subject)
    if tuple(array.shape) != x.shape:
        raise ValueShapeError(f"{subject}: expected a value of shape {x.shape}, got {tuple(array.shape)}")
    _assign(x, array)


def _assign(x: NDArray, value: Any) -> None:
    """Write to the whole of `x`."""
    if value is x:
        return
    if is_number(value):
        x._imperative("_full", [], {"shape": x.shape, "value": float(value), "dtype": x._numpy_dtype.name}, out=x)
    elif _is_on_session(value := _brought(value, x), x):
        if value.shape != x.shape:
            value = _valued(x, value, x.shape)
        x._session.record({"do": "copy", "from": value._id, "to": x._id})
    else:
        host = host_numbers(value, "assignment")
        x._write(_broadcast(host, x.shape, x._numpy_dtype))


def _scatter(x: NDArray, key: Any, value: Any) -> None:
    positions = _positions(x, key)
    if positions.size == 0:
        return
    if is_number(value):
        values = x._new(np.full(positions.size, value, x._numpy_dtype))
    else:
        values = _valued(x, value, positions.shape)
        values = values._view((positions.size,), shape=[positions.size])
    where = x._new(positions.reshape(1, -1))
    flat = x._view((x.size,), shape=[x.size])
    x._imperative("_scatter_set_nd", [flat, values, where], {"shape": (x.size,)}, out=flat)


def reshaped(shape: tuple[int, ...], wanted: tuple[int, ...], reverse: bool = False) -> tuple[int, ...]:
    """The shape that Reshape's codes ask for (see opbox_protocol.reshape).

    Raises:
        ShapeError: the number of elements differs, or the codes do not fit.
    """
    target = reshape_target(shape, wanted, reverse)[0]
    if size_of(target) != size_of(shape) or not known(target):
        raise ShapeError(f"reshape: expected a shape of {size_of(shape)} elements like {shape}, got {wanted}")
    return target
