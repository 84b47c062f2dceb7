"""softmax, log_softmax, softmin and SoftmaxActivation: out = exp(x) / sum exp(x) along an axis, and their gradients.

    softmax      z = exp(data / temperature), out = z / sum z       gdata = out (gout - sum(gout out)) / temperature
    softmin      softmax(-data)                                     the negative of that
    log_softmax  log(softmax(data))                                 gdata = (gout - exp(out) sum gout) / temperature

softmax with use_length takes length, data's shape without the axis: elements from there on are left out, and out is 0.
SoftmaxActivation is softmax over all axes but the first ("instance") or over axis 1 ("channel").
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis, show_shape
from ..node import Entry, Node
from ..params import Field, Int, OptBool, OptFloat, Params
from ..registry import Op, Slot, register, register_backward, when

__all__ = ["softmax_into"]

OutType = Annotated[
    Literal["float16", "float32", "float64"] | None, BeforeValidator(lambda v: None if v == "None" else v)
]


class SoftmaxParams(Params):
    axis: Int = Field(-1, description="The axis along which out sums to one.")
    temperature: OptFloat = Field(None, description="What data is divided by; 1 by default.")
    dtype: OutType = Field(None, description="Element type of out; by default data's.")
    use_length: OptBool = Field(False, description="Whether softmax takes the input length.")


class SoftmaxActivationParams(Params):
    mode: Literal["channel", "instance"] = Field("instance", description="Over axis 1, or over all but the first.")


def _wide(*arrays: Array) -> Any:
    """The type to compute in: half precision in single."""
    widest = max((array.dtype for array in arrays), key=lambda dtype: dtype.itemsize)
    return np.dtype("f") if widest.itemsize < 4 else widest


def softmax_into(xp: Any, out: Array, req: OpReq, data: Array, axis: int) -> None:
    """Write softmax(data) along `axis` into `out` as `req` says; out may be data."""
    if req:
        _write(xp, out, req, data, axis, 1.0, None, log=False)


def _write(
    xp: Any, out: Array, req: OpReq, data: Array, axis: int, factor: float, left_out: Array | None, log: bool
) -> None:
    """softmax, or its logarithm, of factor * data without the elements that `left_out` marks."""
    if not data.size:
        return
    wide = _wide(data, out)
    held = out if req != OpReq.ADD and out.dtype == wide else xp.empty(out.shape, wide)
    if factor == 1 and left_out is None and data.dtype == wide:
        source = data
    else:
        source = xp.multiply(data, factor, dtype=wide)
        if left_out is not None:
            source[left_out] = -np.inf
    top = source.max(axis=axis, keepdims=True)
    xp.subtract(source, top, out=held)
    if log:
        xp.subtract(held, xp.log(xp.exp(held).sum(axis=axis, keepdims=True)), out=held)
    else:
        xp.exp(held, out=held)
        xp.divide(held, held.sum(axis=axis, keepdims=True), out=held)
        if left_out is not None:
            # Also where nothing is left: MXNet has zeros there, not the 0 / 0 that this gives.
            held[left_out] = 0
    if held is not out:
        assign(out, req, held)


def _register(name: str, sign: float, log: bool, inputs: tuple[str | Slot, ...]) -> Op:
    op = register(name, SoftmaxParams, inputs=inputs).inplace((0, 0))
    backward = register_backward(f"_backward_{name}", SoftmaxParams, outputs=("data",)).inplace((0, 0))

    @op.infer_shape
    def _(p: SoftmaxParams, ins: ShapeList, outs: ShapeList) -> None:
        shape = ins.merge(0, outs.merge(0, ins[0]))
        if shape is None:
            return
        axis = canonical_axis(p.axis, len(shape))
        if len(ins) > 1:
            ins.merge(1, shape[:axis] + shape[axis + 1 :])

    @op.infer_type
    def _(p: SoftmaxParams, ins: TypeList, outs: TypeList) -> None:
        if p.dtype is not None:
            outs.merge(0, p.dtype)
        else:
            ins.merge(0, outs.merge(0, ins[0]))
        if len(ins) > 1:
            ins.only(1, "int32", "int64", "int8", "uint8", "float32", "float64", "float16")
            if ins[1] is None:
                ins.merge(1, "int32")

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(f"_backward_{name}", node, [ograds[0], Entry(node)], outputs=1)

    @op.compute()
    def _(p: SoftmaxParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        if not req[0]:
            return
        data, left_out = inputs[0], None
        axis = p.axis % data.ndim
        if len(inputs) > 1:
            places = ctx.xp.arange(data.shape[axis]).reshape([-1 if a == axis else 1 for a in range(data.ndim)])
            left_out = places >= ctx.xp.expand_dims(inputs[1], axis)
        _write(ctx.xp, outputs[0], req[0], data, axis, sign / (p.temperature or 1.0), left_out, log)

    @backward.compute()
    def _(p: SoftmaxParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        if not req[0]:
            return
        xp, wide = ctx.xp, _wide(*inputs)
        g, y = inputs[0].astype(wide, copy=False), inputs[1].astype(wide, copy=False)
        if log:
            value = g - xp.exp(y) * g.sum(axis=p.axis, keepdims=True)
        else:
            value = _through(xp, g, y, p.axis)
        factor = sign / (p.temperature or 1.0)
        assign(outputs[0], req[0], value if factor == 1 else value * factor)

    return op


def _through(xp: Any, g: Array, y: Array, axis: int) -> Array:
    """The gradient of softmax, from gout and out."""
    value = g * y
    total = value.sum(axis=axis, keepdims=True)
    value -= y * total
    return value


_register("softmax", 1.0, False, ("data", Slot("length", when("use_length"), doc="How many elements count.")))
_register("softmin", -1.0, False, ("data",))
_register("log_softmax", 1.0, True, ("data",))

activation = register("SoftmaxActivation", SoftmaxActivationParams).inplace((0, 0))


@activation.infer_shape
def _(p: SoftmaxActivationParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if p.mode == "channel" and shape is not None and len(shape) < 3:
        told = f"expected at least 3 dimensions with mode 'channel', got {show_shape(shape)}"
        raise ShapeError(told, side="input", index=0)


activation_backward = register_backward(
    "_backward_SoftmaxActivation", SoftmaxActivationParams, outputs=("data",)
).inplace((0, 0))


@activation.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_SoftmaxActivation", node, [ograds[0], *node.entries()])


def _rows(p: SoftmaxActivationParams, array: Array) -> Array:
    return array if p.mode == "channel" else array.reshape(array.shape[0], math.prod(array.shape[1:]))


@activation.compute()
def _(p: SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    data, out = _rows(p, inputs[0]), outputs[0]
    if p.mode == "channel" or out.flags.c_contiguous:
        softmax_into(ctx.xp, _rows(p, out), req[0], data, 1)
    elif req[0]:
        value = ctx.xp.empty(data.shape, out.dtype)
        softmax_into(ctx.xp, value, OpReq.WRITE, data, 1)
        assign(out, req[0], value.reshape(out.shape))


@activation_backward.compute()
def _(p: SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0]:
        value = _through(ctx.xp, _rows(p, inputs[0]), _rows(p, inputs[1]), 1)
        assign(outputs[0], req[0], value.reshape(outputs[0].shape))
