"""CTCLoss: the negative logarithm of the probability that a network's outputs spell a label, over all alignments.

data (time, batch, classes) holds what softmax makes probabilities of, label (batch, length) class numbers, out
(batch,) the losses. One class is the blank: the first, with labels from 1 and 0 for padding, or with blank_label "last"
the last, with labels from 0 and -1 for padding. A label ends at its first padding, or with use_label_lengths after
label_lengths (batch,) of its numbers; with use_data_lengths the first data_lengths (batch,) steps of data count.
A label that does not fit into its steps, or has a number that is no class, has no alignment: its loss and gradient are
0, as in MXNet.

With the label written as l = blank, l1, blank, l2, …, blank, and y the probabilities:

    alpha[t, s] = y[t, l[s]] (alpha[t-1, s] + alpha[t-1, s-1] + alpha[t-1, s-2] where l[s] is new and no blank)
    out = -log(alpha[last t, last s] + alpha[last t, last s - 1])
    gdata[t, k] = gout (y[t, k] - sum of alpha[t, s] beta[t, s] over the s with l[s] = k, divided by exp(-out))

beta is alpha from the end, without y[t]. All is computed in logarithms, for all samples at once. The hidden output
output1 is gdata for a gout of 1; label and lengths have gradients of 0. Graves et al., "Connectionist Temporal
Classification" (2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.positions import between, take_rows, whole
from ..infer import ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Params
from ..registry import Slot, register, register_backward, when


class CTCLossParams(Params):
    use_data_lengths: Bool = Field(False, description="Take the input data_lengths.")
    use_label_lengths: Bool = Field(False, description="Take the input label_lengths.")
    blank_label: Literal["first", "last"] = Field("first", description="Which class is the blank.")


_INPUTS = (
    "data",
    "label",
    Slot("data_lengths", when("use_data_lengths"), doc="How many steps of data count."),
    Slot("label_lengths", when("use_label_lengths"), doc="How many numbers of label count."),
)

op = register(
    "CTCLoss",
    CTCLossParams,
    inputs=_INPUTS,
    outputs=("output0", Slot("output1", visible=False, doc="data's gradient, for a gout of 1")),
    aliases=("ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss"),
)
op.set_attr("TSkipsUnread", True)
backward = register_backward("_backward_ctc_loss", CTCLossParams, outputs=_INPUTS)


@op.infer_shape
def _(p: CTCLossParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.rank(0, 3) or (-1, -1, -1)
    label = ins.rank(1, 2) or (-1, -1)
    if 0 <= data[0] < label[1]:
        message = f"expected at most as many numbers as data has steps, {data[0]}, got {show_shape(label)}"
        raise ShapeError(message, side="input", index=1)
    batch = data[1]
    for _ in range(2):
        batch = (ins.merge(0, (data[0], batch, data[2])) or data)[1]
        batch = (ins.merge(1, (batch, label[1])) or label)[0]
        for k in range(2, len(ins)):
            batch = (ins.merge(k, (batch,)) or (batch,))[0]
        batch = (outs.merge(0, (batch,)) or (batch,))[0]
        data = ins.merge(0, outs.merge(1, ins.merge(0, (-1, batch, -1)))) or data


@op.infer_type
def _(p: CTCLossParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.only(0, "float16", "float32", "float64", "bfloat16")
    for slots, k in ((outs, 0), (outs, 1), (ins, 0), (outs, 0), (outs, 1)):
        dtype = slots.merge(k, dtype)
    for k in range(1, len(ins)):
        if ins[k] is None:
            ins.merge(k, dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_ctc_loss", node, [ograds[0], Entry(node, 1)])


def _temps(p: CTCLossParams, call: CallSpec) -> dict[str, Temp]:
    """The temporaries by name.

    The recursion goes along the samples, and where the gradient is wanted along each once more from its end to its
    beginning: `ways` of them. A label with blanks has `positions`.
    """
    (time, batch, classes), length = call.inputs[0].shape, call.inputs[1].shape[1]
    wide, positions = accumulation_type(call.inputs[0].dtype), 2 * length + 1
    back = batch if call.wants(1) else 0
    ways = batch + back
    return {
        **{name: Temp((time, batch, classes), wide) for name in ("data", "powers")},
        "greatest": Temp((time, batch, 1), wide),
        **{name: Temp((batch, length), "int64") for name in ("label", "paddings")},
        **{name: Temp((batch, length), "bool") for name in ("inside", "strange", "flag")},
        **{name: Temp((batch,), "int64") for name in ("steps", "counts", "repeats", "last")},
        **{name: Temp((batch,), "bool") for name in ("fits", "misfits", "some")},
        **{name: Temp((batch,), wide) for name in ("total", "blank", "symbol")},
        "written": Temp((batch, positions), "int64"),
        "step": Temp((time,), "int64"),
        "position": Temp((positions,), "int64"),
        **{name: Temp((time, ways), "int64") for name in ("times", "rows")},
        **{name: Temp((ways,), "int64") for name in ("numbers", "ends")},
        **{name: Temp((ways, positions), "int64") for name in ("places", "cells", "classes")},
        "beyond": Temp((ways, positions), "bool"),
        "element": Temp((time, ways, positions), "int64"),
        **{name: Temp((time, ways, positions), wide) for name in ("emitted", "ways")},
        "before": Temp((ways, positions + 2), wide),
        **{name: Temp((ways, positions), wide) for name in ("jump", "barred")},
        "index": Temp((time, back, positions), "int64"),
        "shares": Temp((time, back, positions), wide),
        "past": Temp((time, back), "bool"),
    }


def _write_labels(p: CTCLossParams, xp: Any, inputs: Arrays, work: Mapping[str, Array]) -> None:
    """The labels with blanks, and how far they and the data count.

    Written are: written (batch, positions), classes as blank, label, blank, …, and blanks beyond the label; ends (of
    each way) the last position of each label, a blank; steps (batch,) how many steps count; fits (batch,) whether there
    is an alignment, and misfits the contrary.
    """
    (time, batch, classes), rest = inputs[0].shape, list(inputs[2:])
    names = ("label", "inside", "strange", "flag", "steps", "counts", "repeats", "fits", "written")
    label, inside, strange, flag, steps, counts, repeats, fits, written = (work[name] for name in names)
    blank, padding = (0, 0) if p.blank_label == "first" else (classes - 1, -1)
    whole(xp, inputs[1], label)
    if p.use_data_lengths:
        between(xp, whole(xp, rest.pop(0), steps), 0, time)
    else:
        steps.fill(time)
    if p.use_label_lengths:
        whole(xp, rest.pop(0), counts)
        xp.less(count_up(xp, work["position"])[: label.shape[1]], counts[:, None], out=inside)
    else:
        xp.equal(label, padding, out=work["paddings"])
        xp.cumsum(work["paddings"], axis=1, out=work["paddings"])
        xp.equal(work["paddings"], 0, out=inside)
    xp.sum(inside, axis=1, dtype=counts.dtype, out=counts)
    xp.less(label, 0, out=flag)
    xp.greater_equal(label, classes, out=strange)
    xp.logical_or(flag, strange, out=strange)
    xp.logical_and(inside, strange, out=strange)
    xp.logical_xor(inside, strange, out=flag)
    written.fill(blank)
    xp.copyto(written[:, 1::2], label, where=flag)
    again = flag[:, 1:]
    xp.equal(label[:, 1:], label[:, :-1], out=again)
    xp.logical_and(again, inside[:, 1:], out=again)
    xp.sum(again, axis=1, dtype=repeats.dtype, out=repeats)
    xp.add(counts, repeats, out=repeats)
    xp.less_equal(repeats, steps, out=fits)
    xp.greater(steps, 0, out=work["some"])
    xp.logical_and(fits, work["some"], out=fits)
    xp.any(strange, axis=1, out=work["some"])
    xp.greater(fits, work["some"], out=fits)
    xp.logical_not(fits, out=work["misfits"])
    for start in range(0, len(work["ends"]), batch):
        xp.multiply(counts, 2, out=work["ends"][start : start + batch])


def _both_ways(xp: Any, work: Mapping[str, Array]) -> None:
    """Write the indices that the CTC recursion follows, forward and backward in time.

    Written are the numbers of steps, `times` (time, ways), of samples, `numbers` (ways,), of positions, `places` (ways,
    positions), the classes at these, and where each emission is in data: `element` (time, ways, positions). What lies
    beyond a sample's end comes after its beginning.
    """
    names = ("written", "times", "rows", "numbers", "places", "cells", "classes", "steps", "ends", "data")
    written, times, rows, numbers, places, cells, classes, steps, ends, data = (work[name] for name in names)
    (batch, positions), time = written.shape, len(times)
    step, position = count_up(xp, work["step"]), count_up(xp, work["position"])
    times[:, :batch], places[:batch] = step[:, None], position
    count_up(xp, numbers[:batch])
    if len(numbers) > batch:
        numbers[batch:] = numbers[:batch]
        back, positions_back = times[:, batch:], places[batch:]
        xp.subtract(steps, step[:, None], out=back)
        xp.subtract(back, 1, out=back)
        xp.remainder(back, time, out=back)
        xp.subtract(ends[:batch, None], position, out=positions_back)
        xp.remainder(positions_back, positions, out=positions_back)
    xp.multiply(numbers[:, None], positions, out=cells[:, :1])
    xp.add(cells[:, :1], places, out=classes)
    cells[...] = classes
    take_rows(xp, written.reshape(-1), cells, classes)
    xp.multiply(times, batch, out=rows)
    xp.add(rows, numbers, out=rows)
    xp.multiply(rows, data.shape[2], out=rows)
    xp.add(rows[:, :, None], classes, out=work["element"])


def _ways_there(xp: Any, work: Mapping[str, Array]) -> None:
    """Write the logarithms of all ways to a position, without what it emits itself: `ways` (time, ways, positions)."""
    emitted, ways, written, jump, barred = (work[name] for name in ("emitted", "ways", "classes", "jump", "barred"))
    ways.fill(-np.inf)
    ways[0, :, :2] = 0
    # Two positions that no way goes through spare the first two an exception.
    before = work["before"]
    before.fill(-np.inf)
    stay, move, skip = before[:, 2:], before[:, 1:-1], before[:, :-2]
    barred.fill(0)
    # A position never follows the one before the blank before it where both are one class; blanks all are.
    alike = work["beyond"][:, 2:]
    xp.equal(written[:, 2:], written[:, :-2], out=alike)
    xp.copyto(barred[:, 2:], -np.inf, where=alike)
    for t in range(1, len(ways)):
        row = ways[t]
        xp.add(ways[t - 1], emitted[t - 1], out=stay)
        xp.logaddexp(stay, move, out=row)
        xp.add(skip, barred, out=jump)
        xp.logaddexp(row, jump, out=row)


def _totals(xp: Any, work: Mapping[str, Array]) -> Array:
    """The logarithm of each label's probability (batch,)."""
    names = ("last", "total", "blank", "symbol", "some", "emitted", "ways")
    last, total, blank, symbol, some, emitted, ways = (work[name] for name in names)
    batch, (_, count, positions) = len(last), ways.shape
    ends, numbers = work["ends"][:batch], work["numbers"][:batch]
    xp.subtract(work["steps"], 1, out=last)
    xp.maximum(last, 0, out=last)
    xp.multiply(last, count, out=last)
    xp.add(last, numbers, out=last)
    xp.multiply(last, positions, out=last)
    xp.add(last, ends, out=last)
    for value in (blank, symbol):
        take_rows(xp, ways.reshape(-1), last, value)
        take_rows(xp, emitted.reshape(-1), last, total)
        xp.add(value, total, out=value)
        xp.subtract(last, 1, out=last)
    xp.equal(ends, 0, out=some)
    xp.copyto(symbol, -np.inf, where=some)
    return xp.logaddexp(blank, symbol, out=total)


@op.compute(temps=lambda p, call: list(_temps(p, call).values()))
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, batch = ctx.xp, inputs[0].shape[1]
    if not inputs[0].size:
        for target in outputs:
            if target is not None:
                target[...] = 0
        return
    work = dict(zip(_temps(p, ctx.call), ctx.temp, strict=True))
    data, greatest, misfits, emitted = (work[name] for name in ("data", "greatest", "misfits", "emitted"))
    data[...] = inputs[0]
    xp.max(data, axis=2, keepdims=True, out=greatest)
    xp.subtract(data, greatest, out=data)
    xp.exp(data, out=work["powers"])
    xp.sum(work["powers"], axis=2, keepdims=True, out=greatest)
    xp.log(greatest, out=greatest)
    xp.subtract(data, greatest, out=data)
    _write_labels(p, xp, inputs, work)
    _both_ways(xp, work)
    take_rows(xp, data.reshape(-1), work["element"], emitted)
    xp.greater(work["places"], work["ends"][:, None], out=work["beyond"])
    xp.copyto(emitted, -np.inf, where=work["beyond"])
    _ways_there(xp, work)
    total = _totals(xp, work)
    if outputs[0] is not None:
        xp.negative(total, out=work["blank"])
        xp.copyto(work["blank"], 0, where=misfits)
        outputs[0][...] = work["blank"]
    if outputs[1] is None:
        return
    # Ways from the beginning and ways from the end meet at a position, which emits once.
    index, shares, ways, past = (work[name] for name in ("index", "shares", "ways", "past"))
    rows = work["rows"][:, batch:]
    xp.multiply(work["times"][:, batch:], ways.shape[1], out=rows)
    xp.add(rows, work["numbers"][batch:], out=rows)
    xp.add(rows, batch, out=rows)
    xp.multiply(rows, ways.shape[2], out=rows)
    xp.add(rows[:, :, None], work["places"][batch:], out=index)
    take_rows(xp, ways.reshape(-1), index, shares)
    xp.add(shares, ways[:, :batch], out=shares)
    xp.add(shares, emitted[:, :batch], out=shares)
    xp.copyto(total, 0, where=misfits)
    xp.subtract(shares, total[:, None], out=shares)
    xp.exp(shares, out=shares)
    xp.negative(shares, out=shares)
    xp.exp(data, out=data)
    index[...] = work["element"][:, :batch]
    xp.add.at(data.reshape(-1), index.reshape(-1), shares.reshape(-1))
    xp.greater_equal(work["times"][:, :batch], work["steps"], out=past)
    xp.logical_or(past, misfits, out=past)
    xp.copyto(data, 0, where=past[:, :, None])
    outputs[1][...] = data


@backward.compute()
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, grad = inputs
    if outputs[0] is not None:
        ctx.xp.multiply(grad, gout[:, None], out=outputs[0])
    for target in outputs[1:]:
        if target is not None:
            target[...] = 0
