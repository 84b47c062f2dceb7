"""softmax, log_softmax, softmin and SoftmaxActivation: out = exp(x) / sum exp(x) along an axis, and their gradients.

    softmax      z = exp(data / temperature), out = z / sum z       gdata = out (gout - sum(gout out)) / temperature
    softmin      softmax(-data)                                     the negative of that
    log_softmax  log(softmax(data))                                 gdata = (gout - exp(out) sum gout) / temperature

softmax with use_length takes length, data's shape without the axis ((1,) of one dimension): elements from there on are
left out, and out is 0.
SoftmaxActivation is softmax over the last axis ("instance") or over axis 1 ("channel").
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..bound_calls import Call, nothing
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cpu.algorithms.softmax_rows import row_kernels, switching
from ..gradient import backward_node
from ..index.counting import count_up
from ..infer import FLOATS, ShapeList, TypeList, all_same_float, canonical_axis, show_shape, summary
from ..node import Entry, Node
from ..params import Field, Int, OptBool, OptFloat, Params
from ..registry import Op, Slot, register, register_backward, when

__all__ = ["softmax_call", "softmax_into", "softmax_temps"]

OutType = Annotated[
    Literal["float16", "float32", "float64"] | None, BeforeValidator(lambda v: None if v == "None" else v)
]


class SoftmaxParams(Params):
    axis: Int = Field(-1, description="The axis along which out sums to one.")
    temperature: OptFloat = Field(None, description="What data is divided by; 1 by default.")
    dtype: OutType = Field(None, description="Element type of out; by default data's.")
    use_length: OptBool = Field(False, description="Whether softmax takes the input length.")


class SoftmaxActivationParams(Params):
    mode: Literal["channel", "instance"] = Field("instance", description="Over axis 1, or over the last.")


def _wide(*dtypes: Any) -> Any:
    """The type to compute in: the widest real one, half precision in single."""
    return accumulation_type(max((dtype for dtype in dtypes if dtype.kind != "i"), key=lambda dtype: dtype.itemsize))


def softmax_temps(data: ArraySpec, out: Any, axis: int, log: bool = False) -> list[Temp]:
    """Temporaries of `softmax_into` for such data and an output of type `out`."""
    wide, rows = _wide(data.dtype, out), list(data.shape)
    rows[axis] = 1
    return [Temp(tuple(rows), wide), *[Temp(data.shape, wide)] * ((out != wide) + log)]


def softmax_into(
    xp: Any,
    out: Array,
    data: Array,
    axis: int,
    temps: Arrays,
    factor: float = 1.0,
    left_out: Array | None = None,
    log: bool = False,
) -> None:
    """Write softmax, or its logarithm, of factor * data along `axis` into `out`, which may be data.

    Args:
        temps: what `softmax_temps` asked for.
        left_out: True at the elements that do not count.
    """
    if not data.size:
        return
    by_kernel = None if left_out is not None else _softmax_kernel(xp, out, data, axis, temps, factor, log)
    if by_kernel is not None:
        by_kernel()
    else:
        _softmax_by_calls(xp, out, data, axis, temps, factor, left_out, log)


def softmax_call(
    xp: Any, out: Array, data: Array, axis: int, temps: Arrays, factor: float = 1.0, log: bool = False
) -> Call:
    """Return a call that runs `softmax_into` on these arrays, by a kernel as soon as one is compiled."""
    if not data.size:
        return nothing
    by_calls = partial(_softmax_by_calls, xp, out, data, axis, temps, factor, None, log)
    if xp is not np:
        return by_calls
    return switching(by_calls, partial(_softmax_kernel, xp, out, data, axis, temps, factor, log))


def _softmax_kernel(
    xp: Any, out: Array, data: Array, axis: int, temps: Arrays, factor: float, log: bool
) -> Call | None:
    """A kernel's call; None where there is none for these arrays, or not yet."""
    rows, *scratches = temps
    if math.prod(data.shape[axis % data.ndim + 1 :]) != 1:
        return None
    kernels = row_kernels(xp, data, out, rows)
    if kernels is None:
        return None
    return kernels.softmax(data, out, rows, scratches[0] if log else None, rows.size, data.shape[axis], factor)


def _softmax_by_calls(
    xp: Any, out: Array, data: Array, axis: int, temps: Arrays, factor: float, left_out: Array | None, log: bool
) -> None:
    """By calls of NumPy's or CuPy's."""
    rows, *scratches = temps
    wide = rows.dtype
    if xp is not np and data.dtype == out.dtype and data.shape == out.shape and data.data.ptr == out.data.ptr:
        data = out  # CuPy copies an input first that is the output's memory, unless it is the same object
    result = scratches.pop() if out.dtype != wide else out
    source = data
    if factor != 1 or left_out is not None or data.dtype != wide:
        source = result
        xp.multiply(data, factor, out=source, dtype=wide)
        if left_out is not None:
            xp.copyto(source, -np.inf, where=left_out)
    xp.max(source, axis=axis, keepdims=True, out=rows)
    xp.subtract(source, rows, out=result)
    powers = scratches.pop() if log else result
    xp.exp(result, out=powers)
    xp.sum(powers, axis=axis, keepdims=True, out=rows)
    if log:
        xp.log(rows, out=rows)
        xp.subtract(result, rows, out=result)
    else:
        xp.divide(result, rows, out=result)
        if left_out is not None:
            # Also where nothing is left: MXNet has zeros there, not the 0 / 0 that this gives.
            xp.copyto(result, 0, where=left_out)
    if result is not out:
        xp.copyto(out, result, casting="unsafe")


def row_of(array: Any) -> Any:
    """Return an array, or its description, that has no dimensions as a row of one number."""
    if array.shape:
        return array
    return ArraySpec((1,), array.dtype) if isinstance(array, ArraySpec) else array.reshape(1)


def _register(name: str, sign: float, log: bool, inputs: tuple[str | Slot, ...]) -> Op:
    op = register(name, SoftmaxParams, inputs=inputs).inplace((0, 0))
    backward = register_backward(f"_backward_{name}", SoftmaxParams, outputs=("data",)).inplace((0, 0))

    @op.infer_shape
    @summary("first")
    def _(p: SoftmaxParams, ins: ShapeList, outs: ShapeList) -> None:
        shape = ins.merge(0, outs.merge(0, ins[0]))
        if shape is None:
            return
        # A number without dimensions is a row of one.
        axis = canonical_axis(p.axis, max(1, len(shape)))
        if len(ins) > 1:
            ins.merge(1, shape[:axis] + shape[axis + 1 :] or (1,))

    @op.infer_type
    @summary("given or first")
    def _(p: SoftmaxParams, ins: TypeList, outs: TypeList) -> None:
        if p.dtype is not None:
            ins.only(0, *FLOATS, "int32", "int64")
            outs.merge(0, p.dtype)
        else:
            ins.only(0, *FLOATS)
            ins.merge(0, outs.merge(0, ins[0]))
        if len(ins) > 1:
            ins.only(1, "int32", "int64", "int8", "uint8", "float32", "float64", "float16")
            if ins[1] is None:
                ins.merge(1, "int32")

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(f"_backward_{name}", node, [ograds[0], Entry(node)], outputs=1)

    def temps(p: SoftmaxParams, call: CallSpec) -> list[Temp]:
        data = row_of(call.inputs[0])
        axis = p.axis % len(data.shape)
        asked = softmax_temps(data, call.outputs[0].dtype, axis, log)
        if len(call.inputs) > 1:
            asked += [Temp((data.shape[axis],), "int64"), Temp(data.shape, "bool")]
        return asked

    @op.compute(temps=temps, prepares=True)
    def _(p: SoftmaxParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        xp, data, out, space = ctx.xp, row_of(inputs[0]), row_of(outputs[0]), list(ctx.temp)
        axis, factor = p.axis % data.ndim, sign / (p.temperature or 1.0)
        if len(inputs) == 1:
            return softmax_call(xp, out, data, axis, space, factor, log)
        left_out, numbers = space.pop(), space.pop()
        lengths = xp.expand_dims(inputs[1], axis) if data.ndim > 1 else inputs[1]

        def run() -> None:
            places = count_up(xp, numbers).reshape([-1 if a == axis else 1 for a in range(data.ndim)])
            xp.greater_equal(places, lengths, out=left_out)
            softmax_into(xp, out, data, axis, space, factor, left_out, log)

        return run

    @backward.compute(temps=lambda p, call: _through_temps(call, call.inputs[0].shape or (1,), p.axis), prepares=True)
    def _(p: SoftmaxParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        g, y, out = map(row_of, (*inputs[:2], outputs[0]))
        return _through(ctx, g, y, out, p.axis, sign / (p.temperature or 1.0), log)

    return op


def _through_temps(call: CallSpec, shape: tuple[int, ...], axis: int) -> list[Temp]:
    wide, rows = _wide(*(array.dtype for array in call.inputs)), list(shape)
    rows[axis] = 1
    return [Temp(tuple(rows), wide), Temp(shape, wide)]


def _through(ctx: OpContext, g: Array, y: Array, out: Array, axis: int, factor: float = 1.0, log: bool = False) -> Call:
    """A call that writes the gradient of softmax, or of its logarithm, from gout and out; `out` may be g."""
    xp, (rows, scratch) = ctx.xp, ctx.temp
    by_calls = partial(_through_by_calls, xp, (rows, scratch), g, y, out, axis, factor, log)
    if xp is not np or math.prod(y.shape[axis % y.ndim + 1 :]) != 1:
        return by_calls

    def by_kernel() -> Call | None:
        kernels = row_kernels(xp, g, y, out, scratch)
        if kernels is None:
            return None
        return kernels.softmax_gradient(g, y, out, scratch, rows.size, y.shape[axis], factor, log)

    return switching(by_calls, by_kernel)


def _through_by_calls(
    xp: Any, temps: Arrays, g: Array, y: Array, out: Array, axis: int, factor: float, log: bool
) -> None:
    """By calls of NumPy's or CuPy's."""
    rows, scratch = temps
    result = out if out.dtype == scratch.dtype else scratch
    if log:
        xp.sum(g, axis=axis, keepdims=True, dtype=rows.dtype, out=rows)
        xp.exp(y, out=scratch, dtype=scratch.dtype)
        xp.multiply(scratch, rows, out=scratch)
        xp.subtract(g, scratch, out=result)
    else:
        xp.multiply(g, y, out=scratch, dtype=scratch.dtype)
        xp.sum(scratch, axis=axis, keepdims=True, out=rows)
        xp.subtract(g, rows, out=result)
        xp.multiply(result, y, out=result)
    if factor != 1:
        xp.multiply(result, factor, out=result)
    if result is not out:
        xp.copyto(out, result, casting="unsafe")


_register("softmax", 1.0, False, ("data", Slot("length", when("use_length"), doc="How many elements count.")))
_register("softmin", -1.0, False, ("data",))
_register("log_softmax", 1.0, True, ("data",))

activation = register("SoftmaxActivation", SoftmaxActivationParams).inplace((0, 0))
activation.set_attr("FInferType", all_same_float)


@activation.infer_shape
def _(p: SoftmaxActivationParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape == ():
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    if p.mode == "channel" and shape is not None and len(shape) < 3:
        message = f"expected at least 3 dimensions with mode 'channel', got {show_shape(shape)}"
        raise ShapeError(message, side="input", index=0)


activation_backward = register_backward(
    "_backward_SoftmaxActivation", SoftmaxActivationParams, outputs=("data",)
).inplace((0, 0))


@activation.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_SoftmaxActivation", node, [ograds[0], *node.entries()])


def _row_shape(p: SoftmaxActivationParams, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if p.mode == "channel" else (math.prod(shape[:-1]), shape[-1])


def _rows(p: SoftmaxActivationParams, array: Array) -> Array:
    return array.reshape(_row_shape(p, array.shape))


def _activation_temps(p: SoftmaxActivationParams, call: CallSpec) -> list[Temp]:
    data = call.inputs[0]
    return softmax_temps(ArraySpec(_row_shape(p, data.shape), data.dtype), call.outputs[0].dtype, 1)


@activation.compute(temps=_activation_temps, prepares=True)
def _(p: SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    if inputs[0].flags.c_contiguous:
        return softmax_call(ctx.xp, _rows(p, outputs[0]), _rows(p, inputs[0]), 1, ctx.temp)
    # Each time anew, as the reshaped array may be a copy.
    return lambda: softmax_into(ctx.xp, _rows(p, outputs[0]), _rows(p, inputs[0]), 1, ctx.temp)


@activation_backward.compute(
    temps=lambda p, call: _through_temps(call, _row_shape(p, call.inputs[0].shape), 1), prepares=True
)
def _(p: SoftmaxActivationParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    if all(array.flags.c_contiguous for array in inputs):
        return _through(ctx, _rows(p, inputs[0]), _rows(p, inputs[1]), _rows(p, outputs[0]), 1)
    return lambda: _through(ctx, _rows(p, inputs[0]), _rows(p, inputs[1]), _rows(p, outputs[0]), 1)()
