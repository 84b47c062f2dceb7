"""Reductions and orders."""

from __future__ import annotations

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports

REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceProd": "prod", "ReduceMax": "max", "ReduceMin": "min"}
NORMS = {"ReduceL1": 1, "ReduceL2": 2}


def _reduced(call: ImportCall, op: str, data: Symbol) -> Symbol:
    axes, nothing = call.ints(1, "axes"), bool(call.attr("noop_with_empty_axes"))
    if not axes and nothing:
        return call.make("_copy", data)
    keepdims = bool(call.attr("keepdims"))
    return call.make(op, data, axis=tuple(axes) if axes else None, keepdims=keepdims)


@imports(*REDUCTIONS)
def _(call: ImportCall) -> Symbol:
    if call.dtype(0) == np.bool_:  # of no truths at all the greatest is False
        return call.make("clip", _reduced(call, REDUCTIONS[call.op_type], call.symbol(0)), a_min=0, a_max=1)
    return _reduced(call, REDUCTIONS[call.op_type], call.symbol(0))


@imports(*NORMS)
def _(call: ImportCall) -> Symbol:
    if call.op_type == "ReduceL1":
        return _reduced(call, "sum", call.step("abs", call.symbol(0)))
    return call.make("sqrt", _reduced(call, "sum", call.step("square", call.symbol(0))))


@imports("ReduceSumSquare")
def _(call: ImportCall) -> Symbol:
    return _reduced(call, "sum", call.step("square", call.symbol(0)))


@imports("ReduceLogSum")
def _(call: ImportCall) -> Symbol:
    return call.make("log", _reduced(call, "sum", call.symbol(0)))


@imports("ArgMax", "ArgMin")
def _(call: ImportCall) -> Symbol:
    if call.attr("select_last_index"):
        raise call.refuse("select_last_index: expected 0, got 1")
    place = call.step(call.op_type.lower(), call.symbol(0), axis=call.axis(), keepdims=bool(call.attr("keepdims")))
    return call.make("Cast", place, dtype="int64")


@imports("TopK")
def _(call: ImportCall) -> Symbol:
    (count,), axis = call.ints(1, "k") or [0], call.axis()
    size = call.shape(0)[axis]
    if count < 1 or (size is not None and count > size):
        raise call.refuse(f"k: expected 1 to {size if size is not None else 'the size of the axis'}, got {count}")
    call.without_effect("sorted")  # without an order that is asked for, any is right
    ascending = not call.attr("largest", 1)
    data = call.symbol(0)
    return call.make("topk", data, k=count, axis=axis, ret_typ="both", is_ascend=ascending, dtype="int64")
