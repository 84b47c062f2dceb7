"""Positions of extremes: argmax, argmin, argmax_channel. The first of several equal ones, or the first NaN.

The positions come in data's element type, as MXNet gives them: half precision is exact up to 2048 only. Without an
axis they count through the flattened array. argmax_channel takes axis 1 away.
out has data's shape without the axis, or with 1 in its place (keepdims); without an axis it is (1,).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_zero
from ..infer import ShapeList, TypeList, canonical_axis, numeric_types
from ..params import Bool, Field, NoParams, OptInt, Params
from ..registry import Op, register
from .axes import reduced

__all__ = ["ArgParams", "searched_axis"]


class ArgParams(Params):
    axis: OptInt = Field(None, description="The axis to search along; the flattened array when it is None.")
    keepdims: Bool = Field(False, description="Keep the axis, with length 1.")


class NumpyArgParams(ArgParams):
    """Those of mx.np's operators, whose positions are int64; without an axis their shape is ()."""


def _shapes(p: ArgParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    axes = tuple(range(len(data))) if p.axis is None else (canonical_axis(p.axis, len(data)),)
    no_axes = isinstance(p, NumpyArgParams) and not p.keepdims and len(axes) == len(data)
    outs.merge(0, () if no_axes else reduced(data, axes, p.keepdims))
    if any(data[i] == 0 for i in axes):
        place = "in all" if p.axis is None else f"along axis {p.axis}"
        raise ShapeError(f"expected at least one element {place}, got none", side=ins.side, index=0)


def _channel_shapes(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if len(data) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {len(data)}", side=ins.side, index=0)
    _shapes(ArgParams(axis=1, keepdims=False), ins, outs)


def searched_axis(p: Any, ndim: int) -> int | None:
    """The axis that is searched along, of an array of `ndim` dimensions; None: the flattened array."""
    axis = p.axis if isinstance(p, ArgParams) else 1
    return None if axis is None else axis % ndim


def _search_temps(p: Any, call: CallSpec) -> list[Temp]:
    """The positions as the library gives them; and data with the axis last, where it is not."""
    data = call.inputs[0]
    axis = searched_axis(p, len(data.shape))
    if axis is None:
        return [Temp((), np.intp)]
    rest = (*data.shape[:axis], *data.shape[axis + 1 :])
    return [
        Temp(rest, np.intp),
        *([] if axis == len(data.shape) - 1 else [Temp((*rest, data.shape[axis]), data.dtype)]),
    ]


def _search(name: str) -> Callable[..., None]:
    def compute(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        xp, (indices, *contiguous), (data,) = ctx.xp, ctx.temp, inputs
        if outputs[0].size == 0:
            return
        axis = searched_axis(p, data.ndim)
        if axis is None:
            data = data.reshape(-1)
        elif contiguous:
            xp.copyto(contiguous[0], xp.moveaxis(data, axis, -1))
            data = contiguous[0]
        getattr(xp, name)(data, axis=-1, out=indices)
        xp.copyto(outputs[0], indices.reshape(outputs[0].shape), casting="unsafe")

    return compute


def _int64(p: NumpyArgParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "int64")


def _register(name: str, params: type[Params], search: str, doc: str) -> Op:
    op = register(name, params, doc=doc)
    op.set_attr("FInferShape", _channel_shapes if params is NoParams else _shapes)
    op.set_attr("FInferType", _int64 if params is NumpyArgParams else numeric_types)
    if params is not NoParams:  # argmax_channel has none in MXNet either
        op.set_attr("FGradient", grad_zero)
    op.compute(temps=_search_temps)(_search(search))
    return op


_register("argmax", ArgParams, "argmax", "The position of the maximum along an axis.")
_register("argmin", ArgParams, "argmin", "The position of the minimum along an axis.")
_register("argmax_channel", NoParams, "argmax", "The position of the maximum along axis 1.")
_register("_npi_argmax", NumpyArgParams, "argmax", "The position of the maximum along an axis, as mx.np has it.")
_register("_npi_argmin", NumpyArgParams, "argmin", "The position of the minimum along an axis, as mx.np has it.")
