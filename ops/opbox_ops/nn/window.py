"""Sliding windows: what Convolution and Pooling share of kernels, strides, padding and layouts.

Their code works on arrays with the channels second, (batch, channel, *spatial); arrays of a channels-last layout are
seen through a transposed view.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..compute import Array
from ..infer import Shape, ShapeList, show_shape

__all__ = [
    "ConvolutionLayout",
    "CudnnTune",
    "PoolingLayout",
    "SpatialLayout",
    "channels_first",
    "channels_last",
    "check_layout",
    "data_shape",
    "first",
    "is_last",
    "spatial",
    "under",
]


def _none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip() == "None" else value


ConvolutionLayout = Annotated[Literal["NCW", "NCHW", "NCDHW", "NHWC", "NDHWC"] | None, BeforeValidator(_none)]
PoolingLayout = Annotated[Literal["NCW", "NCHW", "NCDHW", "NWC", "NHWC", "NDHWC"] | None, BeforeValidator(_none)]
SpatialLayout = Annotated[Literal["NCHW", "NCDHW", "NHWC", "NDHWC"] | None, BeforeValidator(_none)]
CudnnTune = Annotated[Literal["fastest", "limited_workspace", "off"] | None, BeforeValidator(_none)]


def spatial(value: tuple[int, ...], ndim: int, default: int, what: str, least: int) -> tuple[int, ...]:
    """A stride, dilation or padding with one number a spatial dimension; `default` for all when none is given.

    Raises:
        ShapeError: another count of numbers, or one below `least`.
    """
    if not value:
        return (default,) * ndim
    if len(value) != ndim:
        raise ShapeError(f"{what}: expected {ndim} numbers, as many as kernel has, got {value}")
    if min(value) < least:
        raise ShapeError(f"{what}: expected numbers of at least {least}, got {value}")
    return value


def data_shape(ins: ShapeList, kernel: tuple[int, ...]) -> Shape:
    """The shape of data, the first input.

    Raises:
        ShapeError: it has not one spatial dimension for each number of `kernel`; it says which kernel would do.
    """
    data = ins[0]
    if data is None or len(data) == len(kernel) + 2:
        return data
    if len(data) in (3, 4, 5):
        fitting = (kernel[0] if kernel else 2,) * (len(data) - 2)
        remedy = f"write one number of kernel for each spatial dimension, such as kernel={fitting}"
    else:
        remedy = f"kernel {kernel} slides over (batch, channel{', …' * len(kernel)})"
    raise ShapeError(f"expected {len(kernel) + 2} dimensions, got {show_shape(data)}: {remedy}", side=ins.side, index=0)


def check_layout(layout: str | None, ndim: int) -> None:
    """ShapeError unless `layout` (None: channels second) is one for `ndim` spatial dimensions."""
    if layout is not None and len(layout) != ndim + 2:
        raise ShapeError(f"layout: expected one with {ndim} spatial dimensions, as kernel has, got {layout!r}")


def is_last(layout: str | None) -> bool:
    """Return whether the channels are the last axis."""
    return layout is not None and layout.endswith("C")


def channels_first(shape: Shape, layout: str | None) -> Shape:
    """A shape in `layout` as (batch, channel, *spatial)."""
    return (shape[0], shape[-1], *shape[1:-1]) if shape is not None and is_last(layout) else shape


def channels_last(shape: Shape, layout: str | None) -> Shape:
    """A shape (batch, channel, *spatial) as `layout` has it: the inverse of `channels_first`."""
    return (shape[0], *shape[2:], shape[1]) if shape is not None and is_last(layout) else shape


def first(array: Array, layout: str | None) -> Array:
    """The array as a view (batch, channel, *spatial)."""
    return array.transpose(0, -1, *range(1, array.ndim - 1)) if is_last(layout) else array


def under(start: int, count: int, stride: int, size: int) -> tuple[slice, slice]:
    """Return the positions where one tap of a window meets the data, along one dimension.

    The tap is over position `start + stride * o` of the data (of `size`) at output position `o` below `count`.

    Returns:
        The output positions at which that is inside the data, and the data's positions there.
    """
    low = min(count, max(0, -(start // stride)))
    high = max(low, min(count, (size - 1 - start) // stride + 1))
    begin = start + low * stride
    return slice(low, high), slice(begin, begin + max(0, high - low - 1) * stride + (high > low), stride)
