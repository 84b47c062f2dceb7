"""Making arrays: from host values, of constants, and from other arrays."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError
from opbox_protocol.mxnet import dtype_name

from .. import foreign
from .._schema.functions import KEYWORDS
from ..base import is_number, value_text
from ..context import Context, context_or_current
from .array import NDArray, array, from_host
from .invocation import imperative

__all__ = [
    "arange",
    "concatenate",
    "empty",
    "eye",
    "from_dlpack",
    "from_numpy",
    "full",
    "histogram",
    "linspace",
    "many_zeros",
    "moveaxis",
    "onehot_encode",
    "ones",
    "shape_of",
    "split_v2",
    "to_dlpack_for_read",
    "zeros",
]


def from_numpy(ndarray: np.ndarray[Any, Any], zero_copy: bool = True) -> NDArray:
    """An array of the values of a numpy array, in its type."""
    return array(ndarray, dtype=ndarray.dtype)


def from_dlpack(dlpack: Any) -> NDArray:
    """An array of the values of another library's, in its type: what has `__dlpack__`, or a capsule of it.

    Raises:
        TypeError: something else, or values that numpy cannot have.

    Example:
        >>> mx.nd.from_dlpack(torch.arange(3))
    """
    if hasattr(dlpack, "__dlpack__"):
        values = foreign.from_dlpack(dlpack)
    elif type(dlpack).__name__ == "PyCapsule":
        values = foreign.from_capsule(dlpack)
    else:
        raise TypeError(f"from_dlpack: expected an array with __dlpack__ or a capsule, got {type(dlpack).__name__}")
    return array(values, dtype=values.dtype)


def to_dlpack_for_read(data: NDArray) -> Any:
    """A DLPack capsule of a copy of an array's values."""
    return data.to_dlpack_for_read()


def shape_of(shape: Any) -> tuple[int, ...]:
    """A shape from an integer or a sequence of integers.

    Raises:
        TypeError: something else.
        ShapeError: a negative size.
    """
    sizes = (shape,) if is_number(shape) else shape
    try:
        if any(isinstance(size, bool) for size in sizes):
            raise TypeError
        dims = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise TypeError(f"shape: expected an integer or a tuple of integers, got {value_text(shape)}") from None
    if any(size < 0 for size in dims):
        raise ShapeError(f"shape: expected sizes of 0 or more, got {value_text(shape)}")
    return dims


def _constant(op: str, shape: Any, ctx: Context | None, dtype: Any, out: Any = None, **more: Any) -> NDArray:
    dims = shape_of(shape)
    kind = "float32" if dtype is None else dtype_name(dtype)
    if out is None and (not dims or 0 in dims):
        value = {"_zeros": 0, "_ones": 1}.get(op, more.get("value", 0))
        return from_host(np.full(dims, value, np.dtype(kind)), context_or_current(ctx).session)
    filled: NDArray = imperative(op, [], {"shape": dims, "dtype": kind, **more}, out=out, ctx=ctx)
    return filled


def _out(function: str, options: Mapping[str, Any]) -> Any:
    """The array to write to; ParamError for an option of another name, but those of symbols (`name`, `attr`)."""
    for name in options:
        if name not in KEYWORDS:
            raise ParamError(f"{function}: unknown parameter {name!r}; it takes shape, ctx, dtype, out")
    return options.get("out")


def zeros(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: Any = None, **kwargs: Any) -> NDArray:
    """Zeros."""
    return _constant("_zeros", shape, ctx, dtype, _out("zeros", kwargs))


def many_zeros(kinds: Sequence[tuple[tuple[int, ...], Any]], ctx: Context) -> list[NDArray]:
    """An array of zeros for each shape and type (as numpy's `dtype` takes it), in few commands for many arrays.

    Example:
        >>> weight, bias = many_zeros([((4, 3), np.float32), ((4,), np.float32)], mx.cpu())
    """
    session = ctx.session
    alike: dict[tuple[tuple[int, ...], Any], list[NDArray]] = {}
    arrays = []
    for shape, dtype in kinds:
        if not shape or 0 in shape:
            arrays.append(zeros(shape, ctx, dtype))
            continue
        array = NDArray(session, session.new_id(), shape, np.dtype(dtype))
        alike.setdefault((shape, dtype), []).append(array)
        arrays.append(array)
    for (shape, dtype), group in alike.items():
        session.record({"do": "zeros", "ids": [x._id for x in group], "shape": list(shape), "dtype": dtype_name(dtype)})
    return arrays


def ones(shape: Any, ctx: Context | None = None, dtype: Any = None, **kwargs: Any) -> NDArray:
    """Ones."""
    return _constant("_ones", shape, ctx, dtype, _out("ones", kwargs))


def full(shape: Any, val: float, ctx: Context | None = None, dtype: Any = None, out: Any = None) -> NDArray:
    """`val` everywhere: a number, or an array that broadcasts to the shape."""
    if is_number(val):
        return _constant("_full", shape, ctx, dtype, out, value=float(val))
    filled = zeros(shape, ctx, dtype, out=out)
    filled[:] = val
    return filled


def empty(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array to be written; it holds zeros until then."""
    return zeros(shape, ctx, dtype)


def eye(N: int, M: int = 0, k: int = 0, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An N by M matrix with ones on diagonal `k`."""
    kind = "float32" if dtype is None else dtype_name(dtype)
    matrix: NDArray = imperative("_eye", [], {"N": N, "M": M, "k": k, "dtype": kind}, ctx=ctx)
    return matrix


def arange(
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: bool | None = None,
    ctx: Context | None = None,
    dtype: Any = None,
) -> NDArray:
    """start, start + step, … below `stop` (0 to `start` when there is none), each `repeat` times."""
    kind = "float32" if dtype is None else dtype_name(dtype)
    params = {"start": start, "stop": stop, "step": step, "repeat": repeat, "dtype": kind}
    numbers: NDArray = imperative("_arange", [], params, ctx=ctx)
    return numbers


def linspace(
    start: float, stop: float, num: int, endpoint: bool = True, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """`num` evenly spaced values from `start` to `stop`."""
    values = np.linspace(start, stop, num, endpoint=endpoint)
    return array(values, ctx, np.float32 if dtype is None else dtype)


def concatenate(arrays: Sequence[NDArray], axis: int = 0, always_copy: bool = True) -> NDArray:
    """Arrays joined along an axis; a single one is returned as it is when `always_copy` is False.

    Raises:
        ValueError: there are none.
    """
    arrays = list(arrays)
    if not arrays:
        raise ValueError("concatenate: expected at least one array, got none")
    if len(arrays) == 1:
        return arrays[0].copy() if always_copy else arrays[0]
    joined: NDArray = imperative("Concat", arrays, {"num_args": len(arrays), "dim": axis})
    return joined


def moveaxis(tensor: NDArray, source: Any, destination: Any) -> NDArray:
    """With axes `source` at the places `destination`, the others in order."""
    sources = [int(a) % tensor.ndim for a in np.atleast_1d(source)]
    places = [int(a) % tensor.ndim for a in np.atleast_1d(destination)]
    if len(sources) != len(places):
        raise ValueError(f"moveaxis: expected as many destinations as sources, {len(sources)}, got {len(places)}")
    order = [axis for axis in range(tensor.ndim) if axis not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return tensor.transpose(tuple(order))


def onehot_encode(indices: NDArray, out: NDArray) -> NDArray:
    """Rows of zeros with a one at each index, written to `out` (n, depth)."""
    imperative("one_hot", [indices], {"depth": out.shape[1]}, out=out)
    return out


def split_v2(ary: NDArray, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
    """Parts of an array along `axis`: a number of equal ones, or those between given indices."""
    return ary.split_v2(indices_or_sections, axis, squeeze_axis)


def histogram(a: NDArray, bins: Any = 10, range: Any = None) -> Any:
    """Counts of `a`'s values in bins, and the bins' edges."""
    if isinstance(bins, NDArray):
        return imperative("_histogram", [a, bins])
    if range is None:
        range = (float(a.min().asscalar()), float(a.max().asscalar()))
    return imperative("_histogram", [a], {"bin_cnt": bins, "range": range})
