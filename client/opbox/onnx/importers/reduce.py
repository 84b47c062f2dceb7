"""Reductions and orders."""

from __future__ import annotations

from ...symbol import Symbol
from ..importing import ImportCall, imports

REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceProd": "prod", "ReduceMax": "max", "ReduceMin": "min"}
NORMS = {"ReduceL1": 1, "ReduceL2": 2}


def _reduced(call: ImportCall, op: str, data: Symbol) -> Symbol:
    axes = call.ints(1, "axes")
    if not axes and call.attr("noop_with_empty_axes", 0):
        return call.make("_copy", data)
    keepdims = bool(call.attr("keepdims", 1))
    return call.make(op, data, axis=tuple(axes) if axes else None, keepdims=keepdims)


@imports(*REDUCTIONS)
def _(call: ImportCall) -> Symbol:
    return _reduced(call, REDUCTIONS[call.node.op_type], call.symbol(0))


@imports(*NORMS)
def _(call: ImportCall) -> Symbol:
    if call.node.op_type == "ReduceL1":
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
    if call.attr("select_last_index", 0):
        raise call.refuse("select_last_index: expected 0, got 1")
    op = call.node.op_type.lower()
    return call.make(op, call.symbol(0), axis=call.attr("axis", 0), keepdims=bool(call.attr("keepdims", 1)))


@imports("TopK")
def _(call: ImportCall) -> Symbol:
    count = call.ints(1, "k") or [1]
    return call.make(
        "topk",
        call.symbol(0),
        k=count[0],
        axis=call.attr("axis", -1),
        ret_typ="both",
        is_ascend=not call.attr("largest", 1),
    )
