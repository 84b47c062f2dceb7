"""RNN: layers of recurrent cells over a sequence, in one operator.

data (time, batch, inputs), state (layers * directions, batch, outputs), lstm's state_cell (layers * directions, batch,
state_size), parameters one vector (see `layout.py`), out (time, batch, directions * outputs); outputs is
projection_size for an lstm that has it, otherwise state_size. With state_outputs the last states and cells are outputs
too, shaped as state and state_cell. With use_sequence_length, sequence_length (batch,) says how many steps of each
sequence count: beyond them out is 0, the state stays as it was, and the reverse direction begins at the last one.

A layer's input is the states of the one before, both directions side by side; in training each element of it is 0 at
probability p, and divided by 1 - p otherwise. lstm_state_clip_min and _max bound the cell state after every step; with
lstm_state_clip_nan NaN becomes a bound too. The cells are in `steps.py`.

The hidden output reserve is what the gradient needs of every step. Its gates' gradients summed over time:

    gi2h = ggates.T @ x        gx = ggates @ i2h        gh2h = ggates.T @ (state before)        gbias = sum of ggates

Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997); Cho et al., "Learning Phrase Representations using RNN
Encoder-Decoder" (2014), with the reset gate after the product as cuDNN has it.
"""

from __future__ import annotations

from typing import Any, Literal

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type, widened
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node
from ..index.counting import count_up
from ..infer import ShapeList, TypeList, known
from ..node import Entry, Node
from ..params import Bool, Count, Field, OptFloat, OptInt, Params, PositiveInt, Share
from ..pausing import pause
from ..registry import Slot, register, register_backward, when
from .gradients import back
from .layout import GATES, Activations, Sizes, activations, reserve_size, weights
from .scratch import Scratch, backward_temps, forward_temps, packed_sizes, scratch
from .steps import Direction, Kernels

__all__ = [
    "RNNOperatorParams",
    "backward",
    "backward_temps_of",
    "differentiate",
    "forward_temps_of",
    "op",
    "pack",
    "run",
]


class RNNOperatorParams(Params):
    state_size: PositiveInt = Field(description="Elements of a cell's state.")
    num_layers: Count = Field(description="How many layers there are.")
    bidirectional: Bool = Field(False, description="Run each layer backwards through the sequence, too.")
    mode: Literal["gru", "lstm", "rnn_relu", "rnn_tanh"] = Field(description="The cell.")
    p: Share = Field(0.0, description="Share of the elements dropped between layers.")
    state_outputs: Bool = Field(False, description="Show the last states.")
    projection_size: OptInt = Field(None, description="Elements that an lstm's state is projected to.")
    lstm_state_clip_min: OptFloat = Field(None, description="Least cell state; with lstm_state_clip_max.")
    lstm_state_clip_max: OptFloat = Field(None, description="Greatest cell state; with lstm_state_clip_min.")
    lstm_state_clip_nan: Bool = Field(False, description="Make NaN in the cell state a bound, too.")
    use_sequence_length: Bool = Field(False, description="Take the input sequence_length.")


_shown = when("state_outputs")
_INPUTS = (
    "data",
    "parameters",
    "state",
    Slot("state_cell", when("mode", "lstm")),
    Slot("sequence_length", when("use_sequence_length"), doc="How many steps of each sequence count."),
)

op = register(
    "RNN",
    RNNOperatorParams,
    inputs=_INPUTS,
    outputs=(
        "output",
        Slot("state_output", visible=_shown),
        Slot("statecell_output", when("mode", "lstm"), visible=_shown),
        Slot("reserve", visible=False),
    ),
)
op.set_attr("TRandom", True).set_attr("TSkipsUnread", True)
backward = register_backward("_backward_RNN", RNNOperatorParams, outputs=_INPUTS)


def sizes_of(
    p: RNNOperatorParams, data: tuple[int, ...], stored: int | None = None, stores_gates: bool = True
) -> Sizes:
    """The sizes of a call on data of this shape; `stored` steps' extras and gates are there, all by default."""
    directions = 2 if p.bidirectional else 1
    outputs = p.projection_size or p.state_size
    time, batch, inputs = data
    rows = time if stored is None else min(stored, time)
    stores = rows, rows if stores_gates else 0
    return Sizes(p.mode, p.num_layers, directions, p.state_size, outputs, time, batch, inputs, p.p > 0, *stores)


def _check(p: RNNOperatorParams) -> None:
    if p.projection_size is not None and (p.mode != "lstm" or p.projection_size < 1):
        size = f"{p.projection_size} with mode {p.mode!r}"
        raise ParamError(f"RNN: parameter 'projection_size': expected a positive number with mode 'lstm', got {size}")
    clip = (p.lstm_state_clip_min, p.lstm_state_clip_max)
    if (clip[0] is None) != (clip[1] is None):
        raise ParamError(f"RNN: parameter 'lstm_state_clip_min': expected both bounds or none, got {clip}")
    if clip != (None, None) and p.mode != "lstm":
        raise ParamError(f"RNN: parameter 'lstm_state_clip_min': expected mode 'lstm', got {p.mode!r}")


@op.infer_shape
def _(p: RNNOperatorParams, ins: ShapeList, outs: ShapeList) -> None:
    _check(p)
    sizes = sizes_of(p, (-1, -1, -1))
    count = sizes.layers * sizes.directions
    data = ins.rank(0, 3) or (-1, -1, -1)
    out = outs.merge(0, (data[0], data[1], sizes.directions * sizes.outputs)) or ()
    time, batch = out[0], out[1]
    wide = [(ins, 2, sizes.outputs), (outs, 1, sizes.outputs)]
    wide += [(ins, 3, sizes.hidden), (outs, 2, sizes.hidden)] if p.mode == "lstm" else []
    length = ins[len(ins) - 1] if p.use_sequence_length else None
    batch = length[0] if batch < 0 and length else batch
    for slots, k, size in wide * 2:
        shape = slots.merge(k, (count, batch, size)) or ()
        batch = shape[1]
    inputs = data[2]
    parameters = ins.rank(1, 1)
    if inputs < 0 and parameters is not None and parameters[0] >= 0:
        inputs = _inputs_of(p, parameters[0])
    data = ins.merge(0, (time, batch, inputs)) or ()
    outs.merge(0, (time, batch, -1))
    if p.use_sequence_length:
        ins.merge(len(ins) - 1, (batch,))
    if inputs >= 0:
        ins.merge(1, (sizes_of(p, (0, 0, inputs)).parameters,))
    reserve = reserve_size(sizes_of(p, data)) if known(data) else -1
    outs.merge(len(outs) - 1, (reserve,))


def _inputs_of(p: RNNOperatorParams, parameters: int) -> int:
    """data's last dimension, from the length of the parameters."""
    rest, per_input = sizes_of(p, (0, 0, 0)).parameters, (2 if p.bidirectional else 1) * GATES[p.mode] * p.state_size
    if parameters < rest or (parameters - rest) % per_input:
        message = f"expected {rest} elements and a multiple of {per_input}, got {parameters}"
        raise ShapeError(message, side="input", index=1)
    return (parameters - rest) // per_input


@op.infer_type
def _(p: RNNOperatorParams, ins: TypeList, outs: TypeList) -> None:
    count = len(ins) - (1 if p.use_sequence_length else 0)
    dtype = None
    for _ in range(2):
        for k in range(count):
            dtype = ins.merge(k, dtype)
        for k in range(len(outs) - 1):
            dtype = outs.merge(k, dtype)
    ins.only(0, "float16", "float32", "float64", "bfloat16")
    if dtype is not None:
        outs.merge(len(outs) - 1, accumulation_type(dtype))
        if p.use_sequence_length and ins[-1] is None:
            ins.merge(len(ins) - 1, dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    # The states' gradients are those of hidden outputs, of zeros, without state_outputs.
    return backward_node("_backward_RNN", node, [*ograds[:-1], *node.inputs, Entry(node, len(ograds) - 1)])


class _RNNCall:
    """The arrays of one call, forward or backward, in the type that is computed in."""

    def __init__(
        self, p: RNNOperatorParams, xp: Any, sizes: Sizes, inputs: Arrays, work: Scratch, kernels: Kernels
    ) -> None:
        self.p, self.xp, self.sizes, self.scratch, self.kernels = p, xp, sizes, work, kernels
        rest = iter(inputs)
        self.data, packed, self.state = (self.wide(next(rest), name) for name in ("data", "parameters", "state"))
        self.weights = weights(sizes, packed)
        self.cell = self.wide(next(rest), "cell") if p.mode == "lstm" else None
        self.valid = self.beyond = None
        if p.use_sequence_length:
            self.valid, self.beyond = work["valid"], work["beyond"]
            xp.less(count_up(xp, work["numbers"])[:, None, None], next(rest), out=self.valid)
            xp.logical_not(self.valid, out=self.beyond)
        self.layers: list[Activations] = []

    def wide(self, array: Array, name: str) -> Array:
        """An array of the call as a temporary that has its values, where the types differ."""
        temp = self.scratch[name]
        return array if array.dtype == temp.dtype else widened(array, temp.reshape(array.shape))

    def direction(self, layer: int, number: int) -> Direction:
        """The cells of direction `number` of a layer."""
        saved, k, n = self.layers[layer], layer * self.sizes.directions + number, self.sizes.outputs
        low, high = self.p.lstm_state_clip_min, self.p.lstm_state_clip_max
        return Direction(
            self.xp,
            self.p.mode,
            self.weights[k],
            number == 1,
            saved.gates[number],
            saved.extra[number] if saved.extra is not None else None,
            saved.states[..., number * n : (number + 1) * n],
            self.state[k],
            self.cell[k] if self.cell is not None else None,
            self.valid,
            self.beyond,
            None if low is None or high is None else (low, high, self.p.lstm_state_clip_nan),
            self.scratch,
            self.kernels,
            self._packed(layer, number),
        )

    def _packed(self, layer: int, number: int) -> tuple[Array, Array] | None:
        """Rooms of a direction's packed weights in forward: of its own where they stay from run to run."""
        if self.kernels.steps is None or "all_packed" not in self.scratch:
            return None
        sizes, own = packed_sizes(self.sizes), self.scratch["all_packed"]
        recurrent, inputs = sizes[layer]
        before = self.sizes.directions * sum(map(sum, sizes[:layer])) + number * (recurrent + inputs)
        memory = own[before:] if own.size else self.scratch["packed"]
        return memory[:recurrent], memory[recurrent : recurrent + inputs]

    def passed(self, saved: Activations) -> Array:
        """Return a layer's output, (time, batch, directions * outputs), as the input of the next layer."""
        return self._through(saved.states, saved.mask, self.scratch["passed"])

    def arriving(self, gout: Array, saved: Activations, memory: Array) -> Array:
        """Return the gradient of a layer's states, from that of the next layer's input; `memory` may be `gout`."""
        return self._through(gout, saved.mask, memory)

    def _through(self, array: Array, mask: Array | None, out: Array) -> Array:
        """An array with a layer's output's shape, times dropout's mask, and 0 beyond the lengths."""
        if self.valid is not None:
            array = self.xp.multiply(array, self.valid.transpose(0, 2, 1), out=out)
        return array if mask is None else self.xp.multiply(array, mask, out=out)


def _forward_sizes(p: RNNOperatorParams, data: tuple[int, ...], unwanted: bool, by_unit: bool) -> Sizes:
    """Those of a forward whose reserve is wanted or `unwanted`: by a matrix unit there are no gates then."""
    return sizes_of(p, data, stored=2 if unwanted else None, stores_gates=not (unwanted and by_unit))


def forward_temps_of(p: RNNOperatorParams, call: CallSpec, by_unit: bool = False) -> dict[str, Temp]:
    data = call.inputs[0]
    unwanted = not call.wants(len(call.outputs) - 1)
    sizes, wide = _forward_sizes(p, data.shape, unwanted, by_unit), accumulation_type(data.dtype)
    what = {"lengths": p.use_sequence_length, "narrow": wide != data.dtype, "reserve": unwanted}
    return forward_temps(sizes, wide, **what, by_unit=by_unit)


@op.compute(temps=lambda p, call: list(forward_temps_of(p, call).values()))
def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    run(p, ctx, inputs, outputs, Kernels(matmul))


def _forward_call(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, kernels: Kernels) -> _RNNCall:
    by_unit, unwanted = kernels.steps is not None, outputs[-1] is None
    sizes, temps = _forward_sizes(p, inputs[0].shape, unwanted, by_unit), forward_temps_of(p, ctx.call, by_unit)
    call = _RNNCall(p, ctx.xp, sizes, inputs, scratch(temps, ctx.temp), kernels)
    call.layers = activations(sizes, call.scratch["reserve"] if unwanted else outputs[-1], columns=True)
    return call


def run(
    p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, kernels: Kernels, packs: bool = True
) -> None:
    """Compute the outputs, with products and steps by `kernels`; its temporaries are those of `forward_temps_of`.

    `packs` says whether weights that a matrix unit reads packed are to be packed, or `pack` has done so before.
    """
    call = _forward_call(p, ctx, inputs, outputs, kernels)
    x, directions = call.data, call.sizes.directions
    for layer, saved in enumerate(call.layers):
        pause()
        flat = x.reshape(-1, x.shape[2])
        for number in range(directions):
            k = layer * directions + number
            last, cell = call.direction(layer, number).run(flat, packs)
            if outputs[1] is not None:
                outputs[1][k] = last
            if p.mode == "lstm" and outputs[2] is not None:
                outputs[2][k] = cell
        if saved.mask is not None:
            draw_mask(p, ctx, saved.mask)
        x = call.passed(saved)
    if outputs[0] is not None:
        outputs[0][...] = x


def pack(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, kernels: Kernels) -> None:
    """Pack all weights as a matrix unit reads them, into a temporary that stays from run to run."""
    call = _forward_call(p, ctx, inputs, outputs, kernels)
    assert kernels.steps is not None
    for layer in range(call.sizes.layers):
        pause()
        for number in range(call.sizes.directions):
            call.direction(layer, number).products_by_unit(kernels.steps)


def draw_mask(p: RNNOperatorParams, ctx: OpContext, mask: Array) -> None:
    """1 / (1 - p) with probability 1 - p and 0 otherwise in training, 1 elsewhere."""
    if not ctx.is_train:
        mask[...] = 1
        return
    ctx.random.uniform(mask)
    ctx.xp.less(mask, 1 - p.p, out=mask, casting="unsafe")
    if p.p < 1:
        mask *= 1 / (1 - p.p)


def backward_temps_of(p: RNNOperatorParams, call: CallSpec, by_unit: bool = False) -> dict[str, Temp]:
    data = call.inputs[3 if p.mode == "lstm" else 2]
    sizes, wide = sizes_of(p, data.shape), accumulation_type(data.dtype)
    return backward_temps(sizes, wide, lengths=p.use_sequence_length, narrow=wide != data.dtype, by_unit=by_unit)


@backward.compute(temps=lambda p, call: list(backward_temps_of(p, call).values()))
def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    differentiate(p, ctx, inputs, outputs, Kernels(matmul))


def differentiate(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, kernels: Kernels) -> None:
    """Compute the gradients, with products and steps by `kernels`; its temporaries are those of `backward_temps_of`."""
    xp, count = ctx.xp, 3 if p.mode == "lstm" else 2
    temps = backward_temps_of(p, ctx.call, by_unit=kernels.steps is not None)
    sizes, work = sizes_of(p, inputs[count].shape), scratch(temps, ctx.temp)
    call = _RNNCall(p, xp, sizes, inputs[count:-1], work, kernels)
    call.layers = activations(sizes, inputs[-1], columns=True)
    gout, glast = call.wide(inputs[0], "gout"), call.wide(inputs[1], "gstate_last")
    gcells = call.wide(inputs[2], "gcell_last") if p.mode == "lstm" else None
    gdata, packed = (
        None if target is None else target if target.dtype == call.data.dtype else work[name].reshape(target.shape)
        for target, name in ((outputs[0], "gdata"), (outputs[1], "gparameters"))
    )
    gweights = None if packed is None else weights(sizes, packed)
    for layer in reversed(range(sizes.layers)):
        pause()
        saved = call.layers[layer]
        x = call.passed(call.layers[layer - 1]) if layer else call.data
        # What comes from the layer above is read before what goes to the one below is complete: two arrays in turn.
        memory = work["glayers"]
        gstates = call.arriving(gout, saved, memory[layer % len(memory)] if len(memory) else gout)
        gx: Array | None = memory[(layer - 1) % len(memory)] if layer else gdata
        for number in range(sizes.directions):
            k = layer * sizes.directions + number
            n = sizes.outputs
            mine = gstates[..., number * n : (number + 1) * n]
            gcell = None if gcells is None else gcells[k]
            part = None if gweights is None else gweights[k]
            gstate, gcell = back(call.direction(layer, number), mine, glast[k], gcell, part)
            ggates = work["ggates"].reshape(sizes.gates, -1)
            if part is not None:
                kernels.matmul(xp, ggates, x.reshape(-1, x.shape[2]), part.i2h)
            if gx is not None:
                flat = gx.reshape(-1, gx.shape[2])
                product = flat if number == 0 else work["gother"][: flat.size].reshape(flat.shape)
                kernels.matmul(xp, ggates.T, call.weights[k].i2h, product)
                if number:
                    flat += product
            if outputs[2] is not None:
                outputs[2][k] = gstate
            if gcell is not None and outputs[3] is not None:
                outputs[3][k] = gcell
        if layer:
            gout = gx
    for target, value in ((outputs[0], gdata), (outputs[1], packed)):
        if target is not None and value is not target:
            target[...] = value
    if p.use_sequence_length and outputs[-1] is not None:
        outputs[-1][...] = 0
