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
from functools import partial
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ShapeError

from ..bound_calls import Call
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cpu.algorithms.softmax_rows import row_kernels, switching
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.positions import put_rows, take_rows, whole
from ..infer import Shape, ShapeList, all_same_float, known, show_shape, size_of, unify
from ..nn.softmax import softmax_call, softmax_into, softmax_temps
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


_FARTHEST = 1 << 62
"""The largest label that is ignored by a kernel, which compares whole numbers of 64 bits."""

op = register("SoftmaxOutput", SoftmaxOutputParams, inputs=("data", "label"), aliases=("Softmax",)).inplace((0, 0))
op.infer_type(all_same_float)
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
        expected = " or ".join(show_shape(shape) for shape in dict.fromkeys(wanted))
        raise ShapeError(f"expected {expected}, got {show_shape(label)}", side="input", index=1)
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


def row_shape(p: SoftmaxOutputParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of data, or of an array shaped like it, as (rows, classes, positions)."""
    if p.multi_output:
        return shape[0], shape[1], math.prod(shape[2:])
    if p.preserve_shape:
        return math.prod(shape[:-1]), shape[-1], 1
    return shape[0], math.prod(shape[1:]), 1


def _forward_temps(p: SoftmaxOutputParams, call: CallSpec) -> list[Temp]:
    data = call.inputs[0]
    return softmax_temps(ArraySpec(row_shape(p, data.shape), data.dtype), call.outputs[0].dtype, 1)


@op.compute(temps=_forward_temps, prepares=True)
def _(p: SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    shape, data, out = row_shape(p, inputs[0].shape), inputs[0], outputs[0]
    if data.flags.c_contiguous:
        return softmax_call(ctx.xp, out.reshape(shape), data.reshape(shape), 1, ctx.temp)
    # Each time anew, as the reshaped array may be a copy.
    return lambda: softmax_into(ctx.xp, out.reshape(shape), data.reshape(shape), 1, ctx.temp)


def _backward_temps(p: SoftmaxOutputParams, call: CallSpec) -> list[Temp]:
    """For each label: its number, its class, its element's number, hit, the element; counts; which labels are valid."""
    label, out = call.inputs[:2]
    if label.shape == out.shape:
        return []
    rows, _, positions = row_shape(p, out.shape)
    numbers, ones, elements = (Temp((rows, positions), dtype) for dtype in ("int64", "bool", out.dtype))
    counts = [Temp((rows,), "int64"), Temp((positions,), "int64")]
    every = size_of(label.shape) if p.normalization == "valid" else 0
    valid = [Temp((every,), "int64"), Temp((every,), "bool"), Temp((), "float64"), Temp((), out.dtype)]
    return [*[numbers] * 3, ones, *[elements] * 2, *counts, *valid]


@backward.compute(temps=_backward_temps, prepares=True)
def _(p: SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    xp, (label, out, *gout), gdata = ctx.xp, inputs, outputs[0]
    by_calls = partial(_by_calls, p, ctx, inputs, outputs)
    if xp is not np or label.shape == out.shape:
        return by_calls
    return switching(by_calls, partial(_by_rows, p, label, out, gout[0] if p.out_grad else None, gdata))


def _by_calls(p: SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    """By calls of NumPy's or CuPy's."""
    xp, (label, out, *gout), gdata = ctx.xp, inputs, outputs[0]
    if label.shape == out.shape:
        xp.subtract(out, label, out=gdata)
        xp.multiply(gdata, p.grad_scale, out=gdata)
    else:
        xp.copyto(gdata, out)
        _of_classes(p, ctx, label, gdata.reshape(row_shape(p, out.shape)))
    if p.out_grad:
        xp.multiply(gdata, gout[0], out=gdata)


def _by_rows(p: SoftmaxOutputParams, label: Array, out: Array, gout: Array | None, gdata: Array) -> Call | None:
    """A kernel's call that writes the gradient for labels that are class numbers; None where there is none."""
    rows, classes, positions = row_shape(p, out.shape)
    if positions != 1 or abs(p.ignore_label) > _FARTHEST:
        return None
    kernels = row_kernels(np, label, out, gdata, *([] if gout is None else [gout]))
    if kernels is None:
        return None
    smooth = (0.0, 1.0)
    if p.smooth_alpha and not p.multi_output:
        spread = p.smooth_alpha / max(1, classes - 1)
        smooth = (spread, 1 - p.smooth_alpha - spread)
    never, valid = int(p.ignore_label), p.normalization == "valid"
    scale = divided_scale(p, label.shape, 1)
    return kernels.softmax_output(label, out, gout, gdata, (rows, classes), scale, smooth, p.use_ignore, valid, never)


def divided_scale(p: SoftmaxOutputParams, labels: tuple[int, ...], positions: int) -> float:
    """The factor on the gradient for labels of a shape; "valid" divides by their count besides."""
    scale = p.grad_scale
    if p.multi_output and p.normalization != "valid":
        scale /= max(1, positions)
    if p.normalization == "batch":
        scale /= max(1, labels[0] if p.multi_output else math.prod(labels))
    return scale


def _of_classes(p: SoftmaxOutputParams, ctx: OpContext, label: Array, value: Array) -> None:
    """Turn out (rows, classes, positions) into the gradient for labels that are class numbers."""
    xp, (numbers, chosen, cells, hit, hits, picked, each_row, each_position, *valid) = ctx.xp, ctx.temp
    rows, classes, positions = value.shape
    # Without preserve_shape there may be more labels than rows: the first count, as in MXNet.
    labels = label.reshape(-1)
    whole(xp, labels[: rows * positions].reshape(rows, positions), numbers)
    if classes:
        xp.clip(numbers, 0, classes - 1, out=chosen)
        # A label that is no class leaves its row as it is.
        xp.equal(chosen, numbers, out=hit)
        xp.copyto(hits, hit)
        if p.smooth_alpha and not p.multi_output:
            spread = p.smooth_alpha / max(1, classes - 1)
            xp.subtract(value, spread, out=value)
            xp.multiply(hits, 1 - p.smooth_alpha - spread, out=hits)
        xp.multiply(count_up(xp, each_row), classes * positions, out=each_row)
        xp.multiply(chosen, positions, out=cells)
        xp.add(cells, each_row[:, None], out=cells)
        xp.add(cells, count_up(xp, each_position), out=cells)
        elements, taken = value.reshape(-1, 1), picked.reshape(-1)
        take_rows(xp, elements.reshape(-1), cells.reshape(-1), taken)
        xp.subtract(picked, hits, out=picked)
        put_rows(xp, elements, cells.reshape(-1), taken.reshape(-1, 1))
    if p.use_ignore:
        xp.equal(numbers, int(p.ignore_label), out=hit)
        xp.copyto(value, 0, where=hit[:, None, :])
    scale: Any = divided_scale(p, label.shape, positions)
    if p.normalization == "valid":
        every, mask, count, factor = valid
        xp.not_equal(whole(xp, labels, every), int(p.ignore_label), out=mask)
        xp.sum(mask, dtype="float64", out=count)
        xp.maximum(count, 1, out=count)
        xp.divide(scale, count, out=count)
        xp.copyto(factor, count, casting="unsafe")
        scale = factor
    xp.multiply(value, scale, out=value)
