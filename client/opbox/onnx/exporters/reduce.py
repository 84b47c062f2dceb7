"""Reductions and orders: sums, means, norms, argmax, topk."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..exporting import ExportCall, exports, refuse

REDUCTIONS = {"mean": "ReduceMean", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


def _name(call: ExportCall) -> str:
    return call.node.op.name if call.node.op is not None else ""


def _axes(call: ExportCall) -> list[int]:
    """The axes that are reduced."""
    axis = call.attr("axis")
    axes = [int(a) % call.rank for a in (axis if isinstance(axis, tuple) else () if axis is None else (axis,))]
    if not axes:
        return list(range(call.rank))
    return [a for a in range(call.rank) if a not in axes] if call.attr("exclude") else sorted(axes)


def _reduced(call: ExportCall, op_type: str, data: str) -> str:
    axes, keepdims = _axes(call), int(bool(call.attr("keepdims")))
    if not axes:
        return call.emit("Identity", data)
    if op_type == "ReduceSum":
        out = call.emit(op_type, data, call.ints(axes), keepdims=keepdims)
    else:
        out = call.emit(op_type, data, axes=axes, keepdims=keepdims)
    whole = len(axes) == call.rank and not keepdims
    return call.emit("Reshape", out, call.ints([1])) if whole else out  # MXNet has no arrays without dimensions


@exports(*REDUCTIONS)
def _(call: ExportCall) -> str:
    return _reduced(call, REDUCTIONS[_name(call)], call.inputs[0])


@exports("sum")
def _(call: ExportCall) -> str:
    return _reduced(call, "ReduceSum", call.as_type(call.inputs[0], call.dtypes[0], call.out_dtypes[0]))


@exports("nansum", "nanprod")
def _(call: ExportCall) -> str:
    total = _name(call) == "nansum"
    if call.dtypes[0].kind != "f":
        return _reduced(call, "ReduceSum" if total else "ReduceProd", call.inputs[0])
    neutral = call.constant(0 if total else 1)
    data = call.emit("Where", call.emit("IsNaN", call.inputs[0]), neutral, call.inputs[0])
    return _reduced(call, "ReduceSum" if total else "ReduceProd", data)


@exports("norm")
def _(call: ExportCall) -> str:
    order = call.attr("ord")
    if order not in (1, 2):
        raise refuse(call, f"ord: expected 1 or 2, got {order}")
    data = call.as_type(call.inputs[0], call.dtypes[0], call.out_dtypes[0])
    return _reduced(call, f"ReduceL{order}", data)


@exports("argmax", "argmin", "argmax_channel")
def _(call: ExportCall) -> str:
    data, axis, keepdims = call.inputs[0], call.attr("axis"), int(bool(call.attr("keepdims")))
    if _name(call) == "argmax_channel":
        axis, keepdims = 1, 0
    op_type = "ArgMin" if _name(call) == "argmin" else "ArgMax"
    if axis is None:
        flat = call.emit("Reshape", data, call.ints([-1]))
        place = call.emit(op_type, flat, axis=0, keepdims=1)
        place = call.reshape(place, (1,), call.out_shapes[0])
    else:
        place = call.emit(op_type, data, axis=int(axis) % call.rank, keepdims=keepdims)
        if call.rank == 1 and not keepdims:
            place = call.emit("Reshape", place, call.ints([1]))
    return call.cast(place, call.out_dtypes[0])


def _ordered(call: ExportCall, count: int | None, ascending: Any) -> tuple[str, str]:
    """Values and places along the axis of the call, sorted."""
    data, axis = call.inputs[0], call.attr("axis")
    if axis is None:
        data = call.emit("Reshape", data, call.ints([-1]))
        whole = int(np.prod(call.static(call.shapes[0])))
        axis = 0
    else:
        axis = int(axis) % call.rank
        whole = call.size(0, axis)
    number = call.ints([count if count else whole])
    values, places = call.emit_all("TopK", data, number, outputs=2, axis=axis, largest=int(not ascending), sorted=1)
    return values, places


@exports("topk")
def _(call: ExportCall) -> str | list[str]:
    kind = call.attr("ret_typ")
    if kind == "mask":
        raise refuse(call, "ret_typ: expected indices, value or both, got mask")
    values, places = _ordered(call, int(call.attr("k")), call.attr("is_ascend"))
    if kind == "value":
        return values
    if kind == "indices":
        return call.cast(places, call.out_dtypes[0])
    return [values, call.cast(places, call.out_dtypes[1])]


@exports("sort", "argsort")
def _(call: ExportCall) -> str:
    values, places = _ordered(call, None, call.attr("is_ascend"))
    return values if _name(call) == "sort" else call.cast(places, call.out_dtypes[0])
