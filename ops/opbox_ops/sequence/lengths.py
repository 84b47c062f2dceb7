"""SequenceLast, SequenceMask and SequenceReverse: what is done with the steps of sequences of different lengths.

data is (time, batch, …) with axis 0 and (batch, time, …) with axis 1 (SequenceReverse: axis 0 only). With
use_sequence_length, sequence_length (batch,) is how many steps of each sequence count, in any type; without, all do.

    SequenceLast      out[b] = data[length[b] - 1, b], data's shape without time
    SequenceMask      out[t, b] = data[t, b] for t < length[b], value beyond
    SequenceReverse   out[t, b] = data[length[b] - 1 - t, b] for t < length[b], data[t, b] beyond

data's gradient is gout where out is data, and 0 elsewhere; sequence_length's is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
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


def _lengths(xp: Any, inputs: Arrays, time: int, batch: int) -> Array:
    """How many steps of each sequence count: (batch,) integers from 0 to `time`."""
    if len(inputs) < 2:
        return xp.full((batch,), time)
    return xp.clip(inputs[1].astype(int), 0, time)


def _spread(values: Array, ndim: int) -> Array:
    """(time, batch) values, to broadcast with (time, batch, …)."""
    return values.reshape(*values.shape, *(1,) * (ndim - 2))


def _zero_lengths(outputs: Outputs) -> None:
    if len(outputs) > 1 and outputs[1] is not None:
        outputs[1][...] = 0


def _attach(op: Op, body: Callable[..., None], backward: Op, back: Callable[..., None]) -> None:
    why = "the positions of steps, one number a step"

    @op.compute(allocates=why)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        if outputs[0] is not None:
            body(p, ctx.xp, inputs, outputs[0])

    @backward.compute(allocates=why)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        _zero_lengths(outputs)
        if outputs[0] is not None:
            back(p, ctx.xp, inputs, outputs[0])


def _last(p: Any, xp: Any, inputs: Arrays, out: Array) -> None:
    data = _timed(p, inputs[0])
    time, batch = data.shape[:2]
    if data.size:
        out[...] = data[xp.maximum(_lengths(xp, inputs, time, batch) - 1, 0), xp.arange(batch)]


def _last_back(p: Any, xp: Any, inputs: Arrays, gdata: Array) -> None:
    gdata[...] = 0
    steps = _timed(p, gdata)
    time, batch = steps.shape[:2]
    if steps.size:
        steps[xp.maximum(_lengths(xp, inputs, time, batch) - 1, 0), xp.arange(batch)] = inputs[0]


def _keep(p: Any, xp: Any, inputs: Arrays, out: Array, value: float) -> None:
    out[...] = inputs[0]
    if len(inputs) > 1:
        steps = _timed(p, out)
        time, batch = steps.shape[:2]
        beyond = xp.arange(time)[:, None] >= _lengths(xp, inputs, time, batch)
        xp.copyto(steps, out.dtype.type(value), where=_spread(beyond, steps.ndim))


def _mask(p: SequenceMaskParams, xp: Any, inputs: Arrays, out: Array) -> None:
    _keep(p, xp, inputs, out, p.value)


def _mask_back(p: SequenceMaskParams, xp: Any, inputs: Arrays, gdata: Array) -> None:
    _keep(p, xp, inputs, gdata, 0.0)


def _turn(p: SequenceParams, xp: Any, inputs: Arrays, out: Array) -> None:
    time, batch = inputs[0].shape[:2]
    if len(inputs) < 2:
        out[...] = inputs[0][::-1]
        return
    steps, lengths = xp.arange(time)[:, None], _lengths(xp, inputs, time, batch)
    out[...] = inputs[0][xp.where(steps < lengths, lengths - 1 - steps, steps), xp.arange(batch)]


_attach(last, _last, last_backward, _last_back)
_attach(mask, _mask, mask_backward, _mask_back)
_attach(turn, _turn, turn_backward, _turn)
