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

from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
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


class _Alignments:
    """The labels written with blanks, and how far they and the data count.

    Attributes:
        written: (batch, positions) classes, blank, label, blank, …; blanks beyond the label.
        ends: (batch,) the last position of each label, a blank.
        steps: (batch,) how many steps count.
        fits: (batch,) whether there is an alignment.
    """

    def __init__(self, p: CTCLossParams, xp: Any, inputs: Arrays) -> None:
        time, batch, classes = inputs[0].shape
        label, rest = inputs[1].astype(int), list(inputs[2:])
        blank, padding = (0, 0) if p.blank_label == "first" else (classes - 1, -1)
        self.steps = xp.clip(rest.pop(0).astype(int), 0, time) if p.use_data_lengths else xp.full((batch,), time)
        if p.use_label_lengths:
            inside = xp.arange(label.shape[1]) < rest.pop(0).astype(int)[:, None]
        else:
            inside = xp.cumsum(label == padding, axis=1) == 0
        counts = inside.sum(axis=1)
        self.ends = 2 * counts
        strange = inside & ((label < 0) | (label >= classes))
        self.written = xp.full((batch, 2 * label.shape[1] + 1), blank)
        xp.copyto(self.written[:, 1::2], label, where=inside ^ strange)
        repeats = ((label[:, 1:] == label[:, :-1]) & inside[:, 1:]).sum(axis=1)
        self.fits = (counts + repeats <= self.steps) & (self.steps > 0) & ~strange.any(axis=1)

    def both_ways(self, xp: Any, time: int) -> tuple[Array, Array, Array, Array]:
        """What the recursion goes along: the samples, and behind them each once more from its end to its beginning.

        Returns:
            Numbers of steps (time, 2 * batch), of samples (2 * batch,), of positions (2 * batch, positions), and the
            classes at these (2 * batch, positions). What lies beyond a sample's end comes after its beginning.
        """
        batch, positions = self.written.shape
        step, position = xp.arange(time)[:, None], xp.arange(positions)
        steps, places = xp.empty((time, 2 * batch), int), xp.empty((2 * batch, positions), int)
        steps[:, :batch], places[:batch] = step, position
        xp.remainder(self.steps - 1 - step, time, out=steps[:, batch:])
        xp.remainder(self.ends[:, None] - position, positions, out=places[batch:])
        samples = xp.arange(2 * batch) % batch
        return steps, samples, places, self.written[samples[:, None], places]


def _ways_there(xp: Any, emitted: Array, written: Array) -> Array:
    """The logarithms (time, samples, positions) of all ways to a position, without what it emits itself."""
    ways = xp.full(emitted.shape, -np.inf, emitted.dtype)
    ways[0, :, :2] = 0
    # Two positions that no way goes through spare the first two an exception.
    before = xp.full((*written.shape[:1], written.shape[1] + 2), -np.inf, emitted.dtype)
    stay, move, skip, jump = before[:, 2:], before[:, 1:-1], before[:, :-2], xp.empty_like(emitted[0])
    barred = xp.zeros_like(jump)
    # A position never follows the one before the blank before it where both are one class; blanks all are.
    xp.copyto(barred[:, 2:], -np.inf, where=written[:, 2:] == written[:, :-2])
    for t in range(1, len(ways)):
        row = ways[t]
        xp.add(ways[t - 1], emitted[t - 1], out=stay)
        xp.logaddexp(stay, move, out=row)
        xp.add(skip, barred, out=jump)
        xp.logaddexp(row, jump, out=row)
    return ways


@op.compute(allocates="the recursions' logarithms, for all steps and positions")
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data = ctx.xp, inputs[0].astype(accumulation_type(inputs[0].dtype), order="C")
    time, batch, classes = data.shape
    if not data.size:
        for target in outputs:
            if target is not None:
                target[...] = 0
        return
    samples = _Alignments(p, xp, inputs)
    fits, ends = samples.fits, samples.ends
    data -= data.max(axis=2, keepdims=True)
    data -= xp.log(xp.exp(data).sum(axis=2, keepdims=True))
    steps, numbers, places, written = samples.both_ways(xp, time)
    if outputs[1] is None:
        steps, numbers, places, written = steps[:, :batch], numbers[:batch], places[:batch], written[:batch]
    element = ((steps * batch + numbers) * classes)[..., None] + written
    emitted = data.reshape(-1)[element]
    xp.copyto(emitted, -np.inf, where=places > ends[numbers][:, None])
    ways = _ways_there(xp, emitted, written)
    rows = numbers[:batch]
    last = xp.maximum(samples.steps - 1, 0)
    blank = ways[last, rows, ends] + emitted[last, rows, ends]
    symbol = ways[last, rows, ends - 1] + emitted[last, rows, ends - 1]
    total = xp.logaddexp(blank, xp.where(ends > 0, symbol, -np.inf).astype(data.dtype, copy=False))
    if outputs[0] is not None:
        outputs[0][...] = xp.where(fits, -total, 0)
    if outputs[1] is None:
        return
    # Ways from the beginning and ways from the end meet at a position, which emits once.
    shares = ways[steps[:, batch:, None], numbers[batch:, None] + batch, places[batch:]]
    shares += ways[:, :batch]
    shares += emitted[:, :batch]
    shares -= xp.where(fits, total, 0)[:, None]
    xp.exp(shares, out=shares)
    grad = xp.exp(data, out=data)
    xp.add.at(grad.reshape(-1), element[:, :batch].ravel(), xp.negative(shares, out=shares).ravel())
    outputs[1][...] = xp.where(((steps[:, :batch] < samples.steps) & fits)[:, :, None], grad, 0)


@backward.compute()
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, grad = inputs
    if outputs[0] is not None:
        ctx.xp.multiply(grad, gout[:, None], out=outputs[0])
    for target in outputs[1:]:
        if target is not None:
            target[...] = 0
