"""Small operators for executor tests: each has one property that the planner cares about. Not in the registry."""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_ops.compute import OpReq, Temp
from opbox_ops.infer import all_same_shape
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_ops.registry import Op

__all__ = [
    "ADD",
    "BROKEN",
    "DOUBLE",
    "FLAT",
    "HOLD",
    "MUL",
    "NEG",
    "SCRATCH",
    "SPLIT",
    "TANH",
    "STATEFUL",
    "SUM",
    "call",
    "var",
]


def var(name: str, **attrs: str) -> Entry:
    """A variable."""
    return Entry(Node(None, name, attrs))


def call(op: Op, name: str, *inputs: Entry) -> Entry:
    """The first output of `op` on `inputs`."""
    return Entry(Node(op, name, {}, NoParams(), tuple(inputs), source="toy.py:1"))


def _op(name: str, inputs: Any = ("data",), outputs: Any = ("output",), backward: bool = False) -> Op:
    op = Op(name, NoParams, inputs, outputs, (), "")
    if backward:
        op.set_attr("TIsBackward", True)
    elif name.removeprefix("_toy_") not in ("split", "double", "flat", "sum"):
        op.infer_shape(all_same_shape)
    return op


def _grad(op: Op, node: Node, *inputs: Entry) -> list[Entry | None]:
    backward = Node(op, f"{node.name}_backward", {}, NoParams(), tuple(inputs), forward=node, source=node.source)
    return [Entry(backward, i) for i in range(len(node.inputs))]


NEG = _op("_toy_neg").inplace((0, 0))
MUL = _op("_toy_mul", ("a", "b")).inplace((0, 0), (1, 0))
_MUL_BACK = _op("_toy_mul_back", ("g", "a", "b"), ("ga", "gb"), True).inplace((0, 0), (0, 1))
ADD = _op("_toy_add", ("a", "b")).inplace((0, 0), (1, 0))
TANH = _op("_toy_tanh").inplace((0, 0))
_TANH_BACK = _op("_toy_tanh_back", ("g", "out"), backward=True).inplace((0, 0))
SCRATCH = _op("_toy_scratch")
FLAT = _op("_toy_flat").set_attr("TIsView", True).inplace((0, 0))
SPLIT = _op("_toy_split", outputs=("left", "right"))
_SPLIT_BACK = _op("_toy_split_back", ("gl", "gr"), backward=True)
DOUBLE = _op("_toy_double")
_DOUBLE_BACK = _op("_toy_double_back", ("g",), backward=True)
STATEFUL = _op("_toy_stateful")
_STATEFUL_BACK = _op("_toy_stateful_back", ("g",), backward=True)
BROKEN = _op("_toy_broken")
SUM = _op("_toy_sum")
_SUM_BACK = _op("_toy_sum_back", ("g",), backward=True)
HOLD = _op("_toy_hold")


@NEG.compute()
def _(p, ctx, inputs, outputs):
    assert outputs[0].flags.c_contiguous, "a compute is promised that its outputs are"
    outputs[0][...] = -inputs[0]


@HOLD.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0]


HOLD.gradient(lambda node, ograds: [call(HOLD, f"{node.name}_grad", ograds[0])])


NEG.gradient(lambda node, ograds: [call(NEG, f"{node.name}_grad", ograds[0])])


@MUL.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0] * inputs[1]


@_MUL_BACK.compute()
def _(p, ctx, inputs, outputs):
    g, a, b = inputs
    values = [g * b, g * a]
    for out, value in zip(outputs, values, strict=True):
        if out is not None:
            out[...] = value


MUL.gradient(lambda node, ograds: _grad(_MUL_BACK, node, ograds[0], *node.inputs))


@ADD.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0] + inputs[1]


ADD.gradient(lambda node, ograds: [ograds[0], ograds[0]])


@TANH.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = np.tanh(inputs[0])


@_TANH_BACK.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0] * (1 - inputs[1] * inputs[1])


TANH.gradient(lambda node, ograds: _grad(_TANH_BACK, node, ograds[0], node.entries()[0]))


@SCRATCH.compute(temps=lambda p, call: [Temp(call.inputs[0].shape, call.inputs[0].dtype), Temp((7,), np.int32)])
def _(p, ctx, inputs, outputs):
    wide, few = ctx.temp
    wide[...] = inputs[0] * 3
    few[...] = 2
    outputs[0][...] = wide * few[0]
    wide[...] = np.nan


SCRATCH.gradient(lambda node, ograds: [call(SCRATCH, f"{node.name}_grad", ograds[0])])


@FLAT.infer_shape
def _(p, ins, outs):
    if ins[0] is not None:
        outs.merge(0, (int(np.prod(ins[0])),))


@FLAT.compute()
def _flat(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0].reshape(outputs[0].shape)


_FLAT_BACK = _op("_toy_flat_back", ("g",), backward=True).set_attr("TIsView", True)
_FLAT_BACK.compute()(_flat)
FLAT.gradient(lambda node, ograds: _grad(_FLAT_BACK, node, ograds[0]))


@SPLIT.infer_shape
def _(p, ins, outs):
    if ins[0] is not None:
        for i in (0, 1):
            outs.merge(i, (ins[0][0] // 2, *ins[0][1:]))


@SPLIT.compute()
def _(p, ctx, inputs, outputs):
    half = outputs[0].shape[0]
    outputs[0][...] = inputs[0][:half]
    outputs[1][...] = inputs[0][half : 2 * half]


@_SPLIT_BACK.compute()
def _(p, ctx, inputs, outputs):
    value = np.zeros_like(outputs[0])
    half = inputs[0].shape[0]
    value[:half], value[half : 2 * half] = inputs
    outputs[0][...] = value


SPLIT.gradient(lambda node, ograds: _grad(_SPLIT_BACK, node, *ograds))


@DOUBLE.infer_shape
def _(p, ins, outs):
    if ins[0] is not None:
        outs.merge(0, (ins[0][0] * 2, *ins[0][1:]))


@DOUBLE.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = np.concatenate([inputs[0], inputs[0]])


@_DOUBLE_BACK.compute()
def _(p, ctx, inputs, outputs):
    half = outputs[0].shape[0]
    outputs[0][...] = inputs[0][:half] + inputs[0][half:]


DOUBLE.gradient(lambda node, ograds: _grad(_DOUBLE_BACK, node, ograds[0]))

STATEFUL.set_attr("FCreateOpState", lambda p, ctx, shapes, types: {"shape": shapes[0], "runs": 0})


@STATEFUL.compute()
def _(p, ctx, inputs, outputs):
    ctx.state["runs"] += 1
    outputs[0][...] = inputs[0] * ctx.state["runs"]


@_STATEFUL_BACK.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0] * ctx.state["runs"]


STATEFUL.gradient(lambda node, ograds: _grad(_STATEFUL_BACK, node, ograds[0]))


@SUM.infer_shape
def _(p, ins, outs):
    outs.merge(0, (1,))


@SUM.compute()
def _(p, ctx, inputs, outputs):
    outputs[0][...] = inputs[0].sum()


@_SUM_BACK.compute(accumulates=True)
def _(p, ctx, inputs, outputs):
    assert outputs[0].flags.c_contiguous, "a compute is promised that its outputs are"
    if ctx.req[0] == OpReq.ADD:
        outputs[0][...] += inputs[0]
    else:
        outputs[0][...] = inputs[0]


SUM.gradient(lambda node, ograds: _grad(_SUM_BACK, node, ograds[0]))


@BROKEN.compute()
def _(p, ctx, inputs, outputs):
    raise ValueError("no such luck")
