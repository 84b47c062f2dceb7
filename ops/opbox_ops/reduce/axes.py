"""The axes that an operator reduces, and the shape that is left: the rules of `axis`, `keepdims` and `exclude`.

No axis (None or empty) means all of them, `exclude` or not. A reduction of every axis leaves shape (1,), not ().
"""

from __future__ import annotations

from typing import Any, Literal

from opbox_protocol.errors import ShapeError, UnsupportedError

from ..infer import Shape, ShapeList, canonical_axis
from ..params import Bool, Field, OptFloat, OptShape, Params

__all__ = [
    "NumpyExtremeParams",
    "NumpyReduceParams",
    "ReduceParams",
    "axes_of",
    "kept_dims",
    "numpy_axes",
    "numpy_shapes",
    "reduced",
    "remaining_shapes",
    "shapes",
]


class ReduceParams(Params):
    axis: OptShape = Field(None, description="The axes to reduce; all when it is None or empty.")
    keepdims: Bool = Field(False, description="Keep the reduced axes, with length 1.")
    exclude: Bool = Field(False, description="Reduce the axes that are not in axis instead.")


class NumpyExtremeParams(Params):
    """The parameters of mx.np's reductions, which leave shape () of every axis, and reduce nothing with axis=()."""

    axis: OptShape = Field(None, description="The axes to reduce; all when it is None.")
    keepdims: Bool = Field(False, description="Keep the reduced axes, with length 1.")
    initial: OptFloat = Field(None, description="Where the reduction begins; None alone is known here.")


class NumpyReduceParams(NumpyExtremeParams):
    """The same with a type of the result."""

    positional = ("axis", "dtype")
    dtype: Literal["None", "bool", "float16", "float32", "float64", "int8", "int32", "int64"] | None = Field(
        None, description="The type of the result; by default data's."
    )


def axes_of(p: Any, ndim: int) -> tuple[int, ...]:
    """The axes that `p` reduces, of an array of `ndim` dimensions; ShapeError when axis does not fit it."""
    if p.axis is None or (not p.axis and not isinstance(p, NumpyExtremeParams)):
        return tuple(range(ndim))
    if not ndim and tuple(p.axis) in ((0,), (-1,)):  # as NumPy takes them of a number
        return ()
    named = numpy_axes(p.axis, ndim)
    return tuple(i for i in range(ndim) if i not in named) if getattr(p, "exclude", False) else named


def numpy_axes(axis: tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """The axes that mx.np's `axis` names: all when it is None, none when it is (); ShapeError when it does not fit."""
    if axis is None:
        return tuple(range(ndim))
    named = sorted(canonical_axis(one, ndim) for one in axis)
    if len(set(named)) != len(named):
        raise ShapeError(f"axis: expected each axis once, got {axis}")
    return tuple(named)


def kept_dims(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the length of `axes` 1: it broadcasts to `shape`."""
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape that is left of `shape`."""
    if keepdims:
        return kept_dims(shape, axes)
    return tuple(d for i, d in enumerate(shape) if i not in axes) or (1,)


def shapes(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """FInferShape: forwards, and backwards into the axes that are not reduced."""
    data = ins[0]
    if data is None:
        if p.keepdims and outs[0] is not None:
            ins.merge(0, _unknown_where_reduced(p, outs[0]))
        elif not p.axis and not p.keepdims:
            outs.merge(0, (1,))
        return
    axes = axes_of(p, len(data))
    out = outs.merge(0, reduced(data, axes, p.keepdims))
    if out is None or len(axes) == len(data):
        return
    lengths = iter(d for i, d in enumerate(out) if not p.keepdims or i not in axes)
    ins.merge(0, tuple(-1 if i in axes else next(lengths) for i in range(len(data))))


def numpy_shapes(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """FInferShape of mx.np's reductions."""
    if p.initial is not None:
        raise UnsupportedError(f"initial: expected None, the only value that opbox knows, got {p.initial}")
    remaining_shapes(p, ins, outs)


def remaining_shapes(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """FInferShape: what is left of data without the axes that mx.np's `axis` names, () of all of them."""
    data = ins[0]
    if data is not None:
        axes = numpy_axes(p.axis, len(data))
        outs.merge(0, kept_dims(data, axes) if p.keepdims else tuple(d for i, d in enumerate(data) if i not in axes))


def _unknown_where_reduced(p: Any, out: tuple[int, ...]) -> Shape:
    axes = axes_of(p, len(out))
    return tuple(-1 if i in axes else d for i, d in enumerate(out))
