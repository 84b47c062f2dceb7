"""SequenceLast, SequenceMask and SequenceReverse: what is done with the steps of sequences of different lengths.

data is (time, batch, …) with axis 0 and (batch, time, …) with axis 1 (SequenceReverse: axis 0 only). With
use_sequence_length, sequence_length (batch,) is how many steps of each sequence count, in any type; without, all do.

    SequenceLast      out[b] = data[length[b] - 1, b], data's shape without time
    SequenceMask      out[t, b] = data[t, b] for t < length[b], value beyond
    SequenceReverse   out[t, b] = data[length[b] - 1 - t, b] for t < length[b], data[t, b] beyond

data's gradient is gout where out is data, and 0 elsewhere; sequence_length's is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.positions import between, put_rows, take_rows, whole
from ..infer import ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, Params
from ..registry import Op, Slot, register, register_backward, when


class SequenceParams(Params):
    use_sequence_length: Bool = Field(False, description="Take the input sequence_length.")
    axis: Int = Field(0, description="The axis of time: 0 or 1.")


class SequenceMaskParams(Params):
    use_sequence_length: Bool = Field(False, description="Take the input sequence_length.")
    value: Float = Field(0.0, description="What out is beyond a sequence's length.")
    axis: Int = Field(0, description="The axis of time: 0 or 1.")


_INPUTS = ("data", Slot("sequence_length", when("use_sequence_length"), doc="How many steps count."))


def _check_rank(ins: ShapeList) -> None:
    if ins[0] is not None and len(ins[0]) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(ins[0])}", side="input", index=0)


def _register(name: str, params: type[Params], axes: tuple[int, ...], doc: str) -> tuple[Op, Op]:
    op = register(name, params, inputs=_INPUTS, doc=doc)
    backward = register_backward(f"_backward_{name}", params, outputs=_INPUTS)

    @op.infer_shape
    def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
        if p.axis not in axes:
            expected = " or ".join(map(str, axes))
            raise ParamError(f"{name}: parameter 'axis': expected {expected}, got {p.axis}")
        if name == "SequenceLast":
            _check_rank(ins)
            data = ins[0]
            rest = None if data is None else (data[1 - p.axis], *data[2:])
            out = outs.merge(0, rest)
            if out is not None:
                time = -1 if data is None else data[p.axis]
                ins.merge(0, (time, *out) if p.axis == 0 else (out[0], time, *out[1:]))
        else:
            outs.merge(0, ins.merge(0, outs.merge(0, ins[0])))
        _check_rank(ins)
        data = ins[0]
        if p.use_sequence_length:
            lengths = ins.merge(1, (-1,) if data is None else (data[1 - p.axis],)) or (-1,)
            if data is not None:
                known = tuple(lengths[0] if a == 1 - p.axis else d for a, d in enumerate(data))
                data = ins.merge(0, known) or data
                outs.merge(0, (data[1 - p.axis], *data[2:]) if name == "SequenceLast" else data)

    @op.infer_type
    def _(p: Any, ins: TypeList, outs: TypeList) -> None:
        dtype = ins.merge(0, outs.merge(0, ins[0]))
        if p.use_sequence_length and ins[1] is None:
            ins.merge(1, dtype)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(f"_backward_{name}", node, [*ograds, *node.inputs[1:]])

    return op, backward


last, last_backward = _register("SequenceLast", SequenceParams, (0, 1), "The last step of each sequence.")
mask, mask_backward = _register(
    "SequenceMask", SequenceMaskParams, (0, 1), "Steps beyond a sequence's length replaced."
)
turn, turn_backward = _register("SequenceReverse", SequenceParams, (0,), "The steps of each sequence turned round.")


def _timed(p: Any, array: Array) -> Array:
    """The array with time first: a view (time, batch, …)."""
    return array if p.axis == 0 else array.swapaxes(0, 1)


def _lengths(xp: Any, inputs: Arrays, time: int, out: Array) -> Array:
    """Write how many steps of each sequence count, from 0 to `time`, into `out` (batch,) of integers."""
    return between(xp, whole(xp, inputs[1], out), 0, time)


def _zero_lengths(outputs: Outputs) -> None:
    if len(outputs) > 1 and outputs[1] is not None:
        outputs[1][...] = 0


def _sizes(p: Any, data: ArraySpec) -> tuple[int, int]:
    """Return the number of steps and the number of sequences."""
    return data.shape[p.axis], data.shape[1 - p.axis]


def _attach(
    op: Op, body: Callable[..., None], backward: Op, back: Callable[..., None], temps: Callable[..., Any]
) -> None:
    def rule(p: Any, call: CallSpec) -> Sequence[Temp]:
        return temps(*_sizes(p, call.inputs[0])) if p.use_sequence_length else ()

    def back_rule(p: Any, call: CallSpec) -> Sequence[Temp]:
        return temps(*_sizes(p, call.outputs[0])) if p.use_sequence_length else ()

    @op.compute(temps=rule)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        if outputs[0] is not None:
            body(p, ctx, inputs, outputs[0])

    @backward.compute(temps=back_rule)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        _zero_lengths(outputs)
        if outputs[0] is not None:
            back(p, ctx, inputs, outputs[0])


def _rows(array: Array) -> Array:
    """(a, b, …) as (a * b, …): a step of a sequence is a row."""
    return array.reshape(array.shape[0] * array.shape[1], -1)


def _last_temps(time: int, batch: int) -> list[Temp]:
    """The rows of the last steps, and the sequences' numbers."""
    return [Temp((batch,), "int64")] * 2


def _last_rows(p: Any, ctx: OpContext, inputs: Arrays, time: int) -> Array:
    """The rows of the last steps: the first step of a sequence that has none."""
    xp, (where, numbers) = ctx.xp, ctx.temp
    whole(xp, inputs[1], where)
    where -= 1
    between(xp, where, 0, time - 1)
    count_up(xp, numbers)
    if p.axis == 0:
        where *= len(where)
    else:
        numbers *= time
    where += numbers
    return where


def _last(p: Any, ctx: OpContext, inputs: Arrays, out: Array) -> None:
    data = inputs[0]
    if not data.size:
        return
    if len(inputs) < 2:
        out[...] = _timed(p, data)[-1]
    else:
        where = _last_rows(p, ctx, inputs, data.shape[p.axis])
        take_rows(ctx.xp, _rows(data), where, out.reshape(len(where), -1))


def _last_back(p: Any, ctx: OpContext, inputs: Arrays, gdata: Array) -> None:
    gdata[...] = 0
    if not gdata.size:
        return
    if len(inputs) < 2:
        _timed(p, gdata)[-1] = inputs[0]
    else:
        where = _last_rows(p, ctx, inputs, gdata.shape[p.axis])
        put_rows(ctx.xp, _rows(gdata), where, inputs[0].reshape(len(where), -1))


def _mask_temps(time: int, batch: int) -> list[Temp]:
    """The lengths, the steps' numbers, and which steps are beyond."""
    return [Temp((batch,), "int64"), Temp((time,), "int64"), Temp((time, batch), "bool")]


def _keep(p: Any, ctx: OpContext, inputs: Arrays, out: Array, value: float) -> None:
    xp = ctx.xp
    out[...] = inputs[0]
    if len(inputs) > 1:
        lengths, numbers, beyond = ctx.temp
        steps = _timed(p, out)
        xp.greater_equal(count_up(xp, numbers)[:, None], _lengths(xp, inputs, len(numbers), lengths), out=beyond)
        where = beyond.reshape(*beyond.shape, *(1,) * (steps.ndim - 2))
        # A value that is none of an integer type's becomes one as in C.
        xp.copyto(steps, np.float64(value).astype(out.dtype), where=where)


def _mask(p: SequenceMaskParams, ctx: OpContext, inputs: Arrays, out: Array) -> None:
    _keep(p, ctx, inputs, out, p.value)


def _mask_back(p: SequenceMaskParams, ctx: OpContext, inputs: Arrays, gdata: Array) -> None:
    _keep(p, ctx, inputs, gdata, 0.0)


def _turn_temps(time: int, batch: int) -> list[Temp]:
    """Temporaries of SequenceMask, the row of each step, and the sequences' numbers."""
    return [*_mask_temps(time, batch), Temp((time, batch), "int64"), Temp((batch,), "int64")]


def _turn(p: SequenceParams, ctx: OpContext, inputs: Arrays, out: Array) -> None:
    xp = ctx.xp
    if len(inputs) < 2:
        out[...] = inputs[0][::-1]
        return
    lengths, steps, beyond, where, numbers = ctx.temp
    count_up(xp, steps)
    _lengths(xp, inputs, len(steps), lengths)
    lengths -= 1
    xp.subtract(lengths, steps[:, None], out=where)
    xp.copyto(where, steps[:, None], where=xp.less(where, 0, out=beyond))
    where *= len(numbers)
    where += count_up(xp, numbers)
    if out.size:
        take_rows(xp, _rows(inputs[0]), where.reshape(-1), _rows(out))


_attach(last, _last, last_backward, _last_back, _last_temps)
_attach(mask, _mask, mask_backward, _mask_back, _mask_temps)
_attach(turn, _turn, turn_backward, _turn, _turn_temps)
