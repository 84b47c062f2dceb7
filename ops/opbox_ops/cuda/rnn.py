"""RNN on a GPU: all steps of all layers as products of cuBLAS and kernels of `recurrent`, in planned memory.

The steps' own products are made of all at once where they can be: of the inputs before a layer's steps, for the
gradients of weights and inputs after them. A layer of s steps is 2 s launches and a few, which a plan's graph records.
With projection, and in bfloat16, the operator's own compute runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..index.counting import count_up
from ..infer import size_of
from ..rnn.layout import Activations, Sizes, Weights, activations, reserve_size, weights
from ..rnn.operator import RNNOperatorParams, backward, draw_mask, op, sizes_of
from .kernel import MAX_ELEMENTS, TYPES, KernelTemplate, contiguous
from .product import product
from .recurrent import GRU, GRU_BACK, LSTM, LSTM_BACK, PLAIN, PLAIN_BACK, THREADS

Calls = list[Callable[[], Any]]


def _heads(p: RNNOperatorParams) -> int:
    """Return the number of output gradients, which come first among backward's inputs."""
    return 3 if p.mode == "lstm" else 2


def _arrays(p: RNNOperatorParams) -> int:
    """Return the number of inputs, sequence_length not counted."""
    return 4 if p.mode == "lstm" else 3


def _takes(p: RNNOperatorParams, call: CallSpec, inputs: tuple[ArraySpec, ...]) -> bool:
    """Return whether the kernels accept a call whose forward has these inputs."""
    sizes = sizes_of(p, inputs[0].shape)
    return (
        call.plain
        and all(array.dtype == inputs[0].dtype for array in inputs[: _arrays(p)])
        and inputs[0].dtype.name in TYPES
        and not sizes.projected
        and min(*inputs[0].shape, sizes.layers) > 0
        and max(reserve_size(sizes), sizes.parameters, size_of(inputs[0].shape)) <= MAX_ELEMENTS
    )


def _common_temps(p: RNNOperatorParams, inputs: tuple[ArraySpec, ...]) -> list[Temp]:
    """Temporaries of `_RecurrentLaunches`: inputs in the computing type, lengths, steps that count, a layer's input."""
    sizes, wide = sizes_of(p, inputs[0].shape), accumulation_type(inputs[0].dtype)
    temps = [Temp(array.shape, wide) for array in inputs[: _arrays(p)] if array.dtype != wide]
    if p.use_sequence_length:
        temps.append(Temp((sizes.time,), "int64"))
    temps.append(Temp((sizes.time, sizes.batch) if p.use_sequence_length else (1, 1), "int8"))
    if p.use_sequence_length or sizes.dropout:
        temps.append(Temp((sizes.time, sizes.batch, sizes.directions * sizes.outputs), wide))
    return temps


class _RecurrentLaunches:
    """One call's arrays, forward or backward, and the calls that are to run before.

    Attributes:
        dtype: what is computed in.
        calls: in their order; whoever binds the rest adds to it.
        temps: the temporaries that are left.
        valid: (time, batch) of 0 and 1.
    """

    def __init__(self, p: RNNOperatorParams, ctx: OpContext, inputs: Arrays) -> None:
        self.p, self.ctx, self.xp = p, ctx, ctx.xp
        self.sizes: Sizes = sizes_of(p, inputs[0].shape)
        self.dtype = accumulation_type(inputs[0].dtype)
        self.temps: Iterator[Array] = iter(ctx.temp)
        plain, self.calls = contiguous(ctx, inputs)
        arrays = [self.widened(array) for array in plain[: _arrays(p)]]
        self.data, self.state = arrays[0], arrays[2]
        self.weights = weights(self.sizes, arrays[1])
        self.cell = arrays[3] if p.mode == "lstm" else None
        steps = next(self.temps) if p.use_sequence_length else None
        self.valid = next(self.temps)
        if steps is not None:
            self.calls.append(partial(count_up, self.xp, steps))
            less = partial(self.xp.less, steps[:, None], plain[-1], out=self.valid, casting="unsafe")
            self.calls.append(less)
        self._passed = next(self.temps) if p.use_sequence_length or self.sizes.dropout else None

    def widened(self, array: Array) -> Array:
        """The array in the type that is computed in, to which it is copied then."""
        if array.dtype == self.dtype:
            return array
        wide = next(self.temps)
        self.copy(wide, array)
        return wide

    def copy(self, target: Array, array: Array) -> None:
        """Copy then, in whatever types."""
        self.calls.append(partial(self.xp.copyto, target, array, casting="unsafe"))

    def product(self, a: Array, b: Array, out: Array, add: bool = False) -> None:
        """Multiply then."""
        matrices = (array[None, None] for array in (a, b, out))
        self.calls.append(product(self.xp, *matrices, add=add))

    def launch(self, kernel: KernelTemplate, t: int, column: int, *arguments: Any) -> None:
        """Launch a cell's kernel then, for step t, behind these arguments the numbers that all have."""
        elements = self.sizes.batch * self.sizes.hidden
        numbers = (elements, self.sizes.hidden, self.sizes.directions * self.sizes.outputs, column)
        masked = np.int32(self.p.use_sequence_length)
        valid = self.valid[t if self.p.use_sequence_length else 0]
        everything = (*arguments, *map(np.int32, numbers), valid, masked)
        self.calls.append(kernel.call(self.ctx, self.dtype, -(-elements // THREADS), THREADS, everything))

    def passed(self, saved: Activations) -> Array:
        """Return a layer's output, (time, batch, directions * outputs), as the input of the next layer."""
        states = saved.states
        if self.p.use_sequence_length:
            self.calls.append(partial(self.xp.multiply, states, self.valid[:, :, None], out=self._passed))
            states = self._passed
        if saved.mask is not None:
            self.calls.append(partial(self.xp.multiply, states, saved.mask, out=self._passed))
            states = self._passed
        return states

    @property
    def clip(self) -> tuple[Any, ...]:
        """Least and greatest cell state, and 2 where NaN is made one of them, 1 where it stays, 0 without bounds."""
        low, high = self.p.lstm_state_clip_min, self.p.lstm_state_clip_max
        clips = 0 if low is None or high is None else 2 if self.p.lstm_state_clip_nan else 1
        return self.dtype.type(low or 0), self.dtype.type(high or 0), np.int32(clips)

    def times(self, number: int) -> list[int]:
        """The steps of a direction in their order."""
        return list(range(self.sizes.time))[:: -1 if number else 1]

    def state_before(self, saved: Activations, k: int, t: int) -> tuple[Array, Any, Any]:
        """The array that has the state before a step, the width of its rows, the column that the state begins at."""
        number, n = k % self.sizes.directions, self.sizes.outputs
        last = t + 1 if number else t - 1
        if not 0 <= last < self.sizes.time:
            return self.state[k], np.int32(n), np.int32(0)
        return saved.states[last], np.int32(self.sizes.directions * n), np.int32(number * n)

    def cells_before(self, saved: Activations, k: int, t: int) -> Array:
        """The cells (batch, hidden) before a step."""
        number = k % self.sizes.directions
        last = t + 1 if number else t - 1
        assert saved.extra is not None
        assert self.cell is not None
        return saved.extra[number][last] if 0 <= last < self.sizes.time else self.cell[k]


# -- forward ----------------------------------------------------------------------------------------------------------


def _forward_temps(p: RNNOperatorParams, call: CallSpec) -> list[Temp]:
    sizes, wide = sizes_of(p, call.inputs[0].shape), accumulation_type(call.inputs[0].dtype)
    temps = _common_temps(p, call.inputs)
    if not call.wants(len(call.outputs) - 1):
        temps.append(Temp((reserve_size(sizes),), wide))
    if p.mode == "gru":
        temps.append(Temp((sizes.batch, sizes.gates), wide))
    return temps


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _takes(p, call, call.inputs),
    temps=_forward_temps,
)
def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    call = _RecurrentLaunches(p, ctx, inputs)
    sizes, n = call.sizes, call.sizes.outputs
    layers = activations(sizes, next(call.temps) if outputs[-1] is None else outputs[-1])
    apart = next(call.temps) if p.mode == "gru" else None
    x = call.data
    for layer, saved in enumerate(layers):
        for number in range(sizes.directions):
            k = layer * sizes.directions + number
            gates = saved.gates[number].reshape(-1, sizes.gates)
            call.product(x.reshape(-1, x.shape[2]), call.weights[k].i2h.T, gates)
            for t in call.times(number):
                _step(call, saved, k, t, apart)
            last = call.times(number)[-1]
            if outputs[1] is not None:
                call.copy(outputs[1][k], saved.states[last][:, number * n : (number + 1) * n])
            if p.mode == "lstm" and outputs[2] is not None:
                assert saved.extra is not None
                call.copy(outputs[2][k], saved.extra[number][last])
        if saved.mask is not None:
            call.calls.append(partial(draw_mask, p, ctx, saved.mask))
        if layer < sizes.layers - 1 or outputs[0] is not None:
            x = call.passed(saved)
    if outputs[0] is not None:
        call.copy(outputs[0], x)
    return as_one(call.calls)


def _step(call: _RecurrentLaunches, saved: Activations, k: int, t: int, apart: Array | None) -> None:
    """One step of a direction: gates, which hold the products with the inputs, and state and cell."""
    number, n, part = k % call.sizes.directions, call.sizes.outputs, call.weights[k]
    gates, (before, width, column) = saved.gates[number][t], call.state_before(saved, k, t)
    states = before[:, int(column) : int(column) + n]
    call.product(states, part.h2h.T, gates if apart is None else apart, add=apart is None)
    place = (saved.states[t], before, width, column)
    biases = (part.i2h_bias, part.h2h_bias)
    if call.p.mode == "lstm":
        assert saved.extra is not None
        cells = (saved.extra[number][t], call.cells_before(saved, k, t))
        call.launch(LSTM, t, number * n, gates, *biases, *cells, *place, *call.clip)
    elif call.p.mode == "gru":
        assert saved.extra is not None
        call.launch(GRU, t, number * n, gates, apart, *biases, saved.extra[number][t], *place)
    else:
        call.launch(PLAIN, t, number * n, gates, *biases, *place, np.int32(call.p.mode == "rnn_relu"))


# -- backward ---------------------------------------------------------------------------------------------------------


def _backward_temps(p: RNNOperatorParams, call: CallSpec) -> list[Temp]:
    """Besides: heads in the wide type, the gradients of all gates, of a state and a cell, of layers' inputs; the
    parameters' and data's where they are narrow or nobody wants them."""
    inputs = call.inputs[_heads(p) : -1]
    sizes, dtype = sizes_of(p, inputs[0].shape), inputs[0].dtype
    wide = accumulation_type(dtype)
    temps = _common_temps(p, inputs)
    temps += [Temp(array.shape, wide) for array in call.inputs[: _heads(p)] if array.dtype != wide]
    temps += [Temp((sizes.time, sizes.batch, sizes.gates), wide)] * (2 if p.mode == "gru" else 1)
    temps += [Temp((sizes.batch, sizes.hidden), wide)] * 2
    temps += [Temp((sizes.time, sizes.batch, sizes.directions * sizes.outputs), wide)] * 2
    if dtype != wide:
        temps += [Temp(call.inputs[_heads(p)].shape, wide), Temp((sizes.parameters,), wide)]
    return temps


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _takes(p, call, call.inputs[_heads(p) : -1]),
    temps=_backward_temps,
)
def _(p: RNNOperatorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    count = _heads(p)
    call = _RecurrentLaunches(p, ctx, inputs[count:-1])
    sizes, xp = call.sizes, ctx.xp
    heads, copies = contiguous(ctx, [*inputs[:count], inputs[-1]])
    call.calls += copies
    layers = activations(sizes, heads.pop())
    gradients = _RecurrentGradients(call, [call.widened(head) for head in heads], outputs)
    for layer in reversed(range(sizes.layers)):
        saved = layers[layer]
        x = call.passed(layers[layer - 1]) if layer else call.data
        if saved.mask is not None:
            call.calls.append(partial(xp.multiply, gradients.states, saved.mask, out=gradients.states))
        for number in range(sizes.directions):
            gradients.direction(saved, layer, number, x)
        gradients.next_layer()
    gradients.write()
    if p.use_sequence_length and outputs[-1] is not None:
        call.calls.append(partial(outputs[-1].fill, 0))
    return as_one(call.calls)


class _RecurrentGradients:
    """The gradients of a backward call while its layers are gone through from the last to the first.

    Attributes:
        states: of the states of the layer that is at work.
    """

    def __init__(self, call: _RecurrentLaunches, heads: list[Array], outputs: Outputs) -> None:
        self.call, self.outputs = call, outputs
        self._glast, self._gcells = heads[1], heads[2] if call.p.mode == "lstm" else None
        self._ggates = next(call.temps)
        self._grecurrent = next(call.temps) if call.p.mode == "gru" else self._ggates
        self._gstate, self._gcell = next(call.temps), next(call.temps)
        # Dropout multiplies them in place.
        self.states, self._below = next(call.temps), next(call.temps)
        call.copy(self.states, heads[0])
        self._gdata, self._gpacked = outputs[0], outputs[1]
        if call.ctx.call.inputs[0].dtype != call.dtype:
            wide = next(call.temps), next(call.temps)
            self._gdata, self._gpacked = (
                None if out is None else array for out, array in zip(outputs[:2], wide, strict=True)
            )
        self._gweights = None if self._gpacked is None else weights(call.sizes, self._gpacked)

    def direction(self, saved: Activations, layer: int, number: int, x: Array) -> None:
        """Go through the steps of a direction of a layer whose input was x."""
        call, sizes = self.call, self.call.sizes
        k = layer * sizes.directions + number
        call.copy(self._gstate, self._glast[k])
        if self._gcells is not None:
            call.copy(self._gcell, self._gcells[k])
        for t in reversed(call.times(number)):
            self._step(saved, k, t)
            call.product(self._grecurrent[t], call.weights[k].h2h, self._gstate, add=True)
        flat = self._ggates.reshape(-1, sizes.gates)
        if self._gweights is not None:
            self._of_weights(self._gweights[k], saved, k, flat, x.reshape(-1, x.shape[2]))
        gx = self._below if layer else self._gdata
        if gx is not None:
            call.product(flat, call.weights[k].i2h, gx.reshape(-1, x.shape[2]), add=number > 0)
        if self.outputs[2] is not None:
            call.copy(self.outputs[2][k], self._gstate)
        if self._gcells is not None and self.outputs[3] is not None:
            call.copy(self.outputs[3][k], self._gcell)

    def _step(self, saved: Activations, k: int, t: int) -> None:
        call, number = self.call, k % self.call.sizes.directions
        gates, states, column = saved.gates[number][t], self.states[t], number * call.sizes.outputs
        if call.p.mode == "lstm":
            assert saved.extra is not None
            cells = (saved.extra[number][t], call.cells_before(saved, k, t))
            arguments = (gates, *cells, states, self._gstate, self._gcell, self._ggates[t], *call.clip)
            call.launch(LSTM_BACK, t, column, *arguments)
        elif call.p.mode == "gru":
            assert saved.extra is not None
            gradients = (states, self._gstate, self._ggates[t], self._grecurrent[t])
            before = call.state_before(saved, k, t)
            call.launch(GRU_BACK, t, column, gates, saved.extra[number][t], *gradients, *before)
        else:
            relu = np.int32(call.p.mode == "rnn_relu")
            call.launch(PLAIN_BACK, t, column, gates, states, self._gstate, self._ggates[t], relu)

    def _of_weights(self, out: Weights, saved: Activations, k: int, flat: Array, x: Array) -> None:
        """The gradients of a direction's weights and biases: sums over all steps."""
        call, sizes, n = self.call, self.call.sizes, self.call.sizes.outputs
        number = k % sizes.directions
        first = call.times(number)[0]
        call.product(flat.T, x, out.i2h)
        call.product(self._grecurrent[first].T, call.state[k], out.h2h)
        if sizes.time > 1:
            later, before = (slice(0, -1), slice(1, None)) if number else (slice(1, None), slice(0, -1))
            states = saved.states.reshape(-1, sizes.directions * n)[:, number * n : (number + 1) * n]
            rows = [
                slice((s.start or 0) * sizes.batch, (sizes.time + (s.stop or 0)) * sizes.batch) for s in (later, before)
            ]
            recurrent = self._grecurrent.reshape(-1, sizes.gates)
            call.product(recurrent[rows[0]].T, states[rows[1]], out.h2h, add=True)
        sums = partial(call.xp.sum, axis=0)
        call.calls.append(partial(sums, flat, out=out.i2h_bias))
        call.calls.append(partial(sums, self._grecurrent.reshape(-1, sizes.gates), out=out.h2h_bias))

    def next_layer(self) -> None:
        """Go down a layer."""
        self.states, self._below = self._below, self.states

    def write(self) -> None:
        """Round the gradients of data and parameters where they are narrow."""
        for out, wide in zip(self.outputs[:2], (self._gdata, self._gpacked), strict=True):
            if out is not None and out is not wide:
                self.call.copy(out, wide)
