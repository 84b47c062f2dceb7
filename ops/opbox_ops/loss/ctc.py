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
        written: (batch, positions) classes, blank, label, blank, …; 0 beyond the label.
        ends: (batch,) the last position of each label, a blank.
        steps: (batch,) how many steps count.
        jumps: (batch, positions) where a position can follow the one before the blank before it.
    """

    def __init__(self, p: CTCLossParams, xp: Any, inputs: Arrays) -> None:
        time, batch, classes = inputs[0].shape
        label, rest = inputs[1].astype(int), list(inputs[2:])
        blank, padding = (0, 0) if p.blank_label == "first" else (classes - 1, -1)
        self.steps = xp.clip(rest.pop(0).astype(int), 0, time) if p.use_data_lengths else xp.full((batch,), time)
        inside = xp.cumsum(label == padding, axis=1) == 0
        if p.use_label_lengths:
            inside = xp.arange(label.shape[1]) < rest.pop(0).astype(int)[:, None]
        counts = inside.sum(axis=1)
        self.ends = 2 * counts
        self.written = xp.full((batch, 2 * label.shape[1] + 1), blank)
        self.written[:, 1::2] = xp.where(inside, xp.clip(label, 0, classes - 1), blank)
        odd = self.written[:, 1::2]
        self.jumps = xp.zeros(self.written.shape, bool)
        self.jumps[:, 3::2] = odd[:, 1:] != odd[:, :-1]
        repeats = ((odd[:, 1:] == odd[:, :-1]) & inside[:, 1:]).sum(axis=1)
        strange = (inside & ((label < 0) | (label >= classes))).any(axis=1)
        self.fits = (counts + repeats <= self.steps) & (self.steps > 0) & ~strange


def _forwards(xp: Any, emitted: Array, ways: _Alignments) -> Array:
    """log alpha (time, batch, positions), from the logarithms of what each position emits."""
    alpha = xp.full(emitted.shape, -np.inf, emitted.dtype)
    alpha[0, :, :2] = emitted[0, :, :2]
    for t in range(1, len(alpha)):
        row, before = alpha[t], alpha[t - 1]
        row[...] = before
        row[:, 1:] = xp.logaddexp(before[:, 1:], before[:, :-1])
        jumped = xp.where(ways.jumps[:, 2:], before[:, :-2], -np.inf)
        row[:, 2:] = xp.logaddexp(row[:, 2:], jumped)
        row += emitted[t]
    return alpha


def _backwards(xp: Any, emitted: Array, ways: _Alignments) -> Array:
    """log beta (time, batch, positions): what follows a position, without what it emits itself."""
    beta = xp.full(emitted.shape, -np.inf, emitted.dtype)
    positions = xp.arange(emitted.shape[2])
    final = xp.where((positions == ways.ends[:, None]) | (positions == ways.ends[:, None] - 1), 0.0, -np.inf)
    for t in range(len(beta) - 1, -1, -1):
        row = beta[t]
        if t + 1 < len(beta):
            after = beta[t + 1] + emitted[t + 1]
            row[...] = after
            row[:, :-1] = xp.logaddexp(after[:, :-1], after[:, 1:])
            jumped = xp.where(ways.jumps[:, 2:], after[:, 2:], -np.inf)
            row[:, :-2] = xp.logaddexp(row[:, :-2], jumped)
        xp.copyto(row, final.astype(row.dtype), where=(ways.steps == t + 1)[:, None])
    return beta


@op.compute(allocates="the recursions' logarithms, for all steps and positions")
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data = ctx.xp, inputs[0].astype(accumulation_type(inputs[0].dtype))
    time, batch, _ = data.shape
    for target in outputs:
        if target is not None:
            target[...] = 0
    if not data.size:
        return
    ways = _Alignments(p, xp, inputs)
    data -= data.max(axis=2, keepdims=True)
    data -= xp.log(xp.exp(data).sum(axis=2, keepdims=True))
    rows = xp.arange(batch)
    emitted = data[:, rows[:, None], ways.written]
    alpha = _forwards(xp, emitted, ways)
    last = alpha[xp.maximum(ways.steps - 1, 0), rows]
    before = xp.where(ways.ends > 0, last[rows, xp.maximum(ways.ends - 1, 0)], -np.inf)
    total = xp.logaddexp(last[rows, ways.ends], before.astype(last.dtype))
    if outputs[0] is not None:
        outputs[0][...] = xp.where(ways.fits, -total, 0)
    if outputs[1] is None:
        return
    alpha += _backwards(xp, emitted, ways)
    alpha -= xp.where(ways.fits, total, 0)[:, None]
    shares = xp.exp(alpha, out=alpha)
    grad = xp.exp(data, out=data)
    steps = xp.arange(time)[:, None]
    for position in range(ways.written.shape[1]):
        # One class a sample: no element is in it twice.
        grad[steps, rows, ways.written[:, position]] -= shares[:, :, position]
    outputs[1][...] = xp.where(((steps < ways.steps) & ways.fits)[:, :, None], grad, 0)


@backward.compute()
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, grad = inputs
    if outputs[0] is not None:
        ctx.xp.multiply(grad, gout[:, None], out=outputs[0])
    for target in outputs[1:]:
        if target is not None:
            target[...] = 0
