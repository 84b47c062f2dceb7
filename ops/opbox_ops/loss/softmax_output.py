"""SoftmaxOutput: out = softmax(data), with the gradient of the cross entropy with label.

data and out (batch, *dims). The classes are all axes but the first, taken together; axis 1 with multi_output; the
last axis with preserve_shape. label holds class numbers: data's shape without the last axis, or with multi_output
(batch, *dims[1:]) or (batch, prod(dims[1:])); or it holds probabilities, in data's shape. For each row of classes,

    gdata = (out - one_hot(label)) grad_scale / count        0 where use_ignore and label is ignore_label
    gdata = (out - label) grad_scale                         with probabilities

smooth_alpha takes that much from the one of one_hot and spreads it over the other classes (not with multi_output, as
in MXNet). count is 1 ("null"), the number of labels, the batch with multi_output ("batch"), or the number of labels
that are not ignore_label ("valid"); with multi_output "null" and "batch" also divide by the positions a sample has.
The gradient of out is a factor on gdata with out_grad, and is not read otherwise; label has no gradient.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import Shape, ShapeList, known, show_shape, size_of, unify
from ..nn.softmax import softmax_into
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params
from ..registry import register, register_backward


class SoftmaxOutputParams(Params):
    grad_scale: Float = Field(1.0, description="Factor on the gradient.")
    ignore_label: Float = Field(-1.0, description="The label that use_ignore ignores, and that is never valid.")
    multi_output: Bool = Field(False, description="The classes are axis 1, and every position has a label.")
    use_ignore: Bool = Field(False, description="Give rows whose label is ignore_label no gradient.")
    preserve_shape: Bool = Field(False, description="The classes are the last axis.")
    normalization: Literal["batch", "null", "valid"] = Field("null", description="What the gradient is divided by.")
    out_grad: Bool = Field(False, description="Multiply the gradient by the gradient of out.")
    smooth_alpha: Float = Field(0.0, description="Label smoothing.")


op = register("SoftmaxOutput", SoftmaxOutputParams, inputs=("data", "label"), aliases=("Softmax",)).inplace((0, 0))
backward = register_backward("_backward_SoftmaxOutput", SoftmaxOutputParams, outputs=("data",))


def _agrees(label: Shape, wanted: Shape) -> bool:
    try:
        unify(label, wanted)
    except ValueError:
        return False
    return True


@op.infer_shape
def _(p: SoftmaxOutputParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.merge(0, outs.merge(0, ins[0]))
    if data is None:
        return
    if p.multi_output and len(data) < 2:
        raise ShapeError(
            f"expected at least 2 dimensions with multi_output, got {show_shape(data)}", side="input", index=0
        )
    if p.multi_output:
        flat = (data[0], size_of(data[2:]) if known(data[2:]) else -1)
        wanted: list[Shape] = [flat, (data[0], *data[2:]), data]
        if len(data) == 2:
            wanted.insert(1, data[:1])
    else:
        wanted = [data[:-1], data]
    label = ins[1]
    if label is None:
        ins.merge(1, wanted[0])
        return
    fits = [shape for shape in wanted if _agrees(label, shape)]
    if not fits:
        told = " or ".join(show_shape(shape) for shape in dict.fromkeys(wanted))
        raise ShapeError(f"expected {told}, got {show_shape(label)}", side="input", index=1)
    if not known(label):
        ins.merge(1, fits[0])
    elif len(fits) == 1 and fits[0] != data:
        # Labels tell the data's batch and positions, where those are unknown.
        if not p.multi_output:
            outs.merge(0, ins.merge(0, (*label, data[-1])))
        elif len(label) == len(data) - 1:
            outs.merge(0, ins.merge(0, (label[0], data[1], *label[1:])))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    head = ograds[:1] if getattr(node.params, "out_grad", False) else []
    return backward_node("_backward_SoftmaxOutput", node, [node.inputs[1], Entry(node), *head], outputs=1)


def _rows(p: SoftmaxOutputParams, array: Array) -> Array:
    """data, or an array shaped like it, as (rows, classes, positions)."""
    shape = array.shape
    if p.multi_output:
        return array.reshape(shape[0], shape[1], math.prod(shape[2:]))
    if p.preserve_shape:
        return array.reshape(math.prod(shape[:-1]), shape[-1], 1)
    return array.reshape(shape[0], math.prod(shape[1:]), 1)


@op.compute()
def _(p: SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    data, out = _rows(p, inputs[0]), outputs[0]
    if out.flags.c_contiguous:
        softmax_into(ctx.xp, _rows(p, out), req[0], data, 1)
    else:
        value = ctx.xp.empty(data.shape, out.dtype)
        softmax_into(ctx.xp, value, OpReq.WRITE, data, 1)
        assign(out, req[0], value.reshape(out.shape))


@backward.compute()
def _(p: SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    label, out = inputs[:2]
    if label.shape == out.shape:
        value = (out - label) * p.grad_scale
    else:
        value = _of_classes(p, ctx.xp, label, _rows(p, out)).reshape(out.shape)
    if p.out_grad:
        value *= inputs[2]
    assign(outputs[0], req[0], value)


def _of_classes(p: SoftmaxOutputParams, xp: Any, label: Array, out: Array) -> Array:
    """The gradient for labels that are class numbers; out (rows, classes, positions)."""
    rows, classes, positions = out.shape
    labels = label.reshape(-1)
    # Without preserve_shape there may be more labels than rows: the first count, as in MXNet.
    mine = labels if p.multi_output else labels[:rows]
    mine = mine.reshape(rows, positions)
    numbers = mine.astype("i8")
    value = out.copy()
    if classes:
        chosen = xp.clip(numbers, 0, classes - 1)
        # A label that is no class leaves its row as it is.
        hit = (chosen == numbers).astype(out.dtype)
        if p.smooth_alpha and not p.multi_output:
            spread = p.smooth_alpha / max(1, classes - 1)
            value -= spread
            hit = hit * (1 - p.smooth_alpha - spread)
        value[xp.arange(rows)[:, None], chosen, xp.arange(positions)] -= hit
    if p.use_ignore:
        value = xp.where((numbers == int(p.ignore_label))[:, None, :], 0, value)
    scale: Any = p.grad_scale
    if p.multi_output and p.normalization != "valid":
        scale = scale / max(1, positions)
    if p.normalization == "batch":
        scale = scale / max(1, label.shape[0] if p.multi_output else labels.size)
    elif p.normalization == "valid":
        valid = (labels.astype("i8") != int(p.ignore_label)).sum()
        scale = (scale / xp.maximum(valid, 1)).astype(out.dtype)
    value *= scale
    return value
