"""Layouts of RNN's packed parameters and of its activations.

The parameters are one vector: first all weights, then all biases, layer by layer and in each layer direction by
direction, as cuDNN packs them:

    weights  i2h (gates * hidden, inputs), h2h (gates * hidden, outputs), with projection h2r (outputs, hidden)
    biases   i2h (gates * hidden,), h2h (gates * hidden,)

inputs are data's for the first layer and directions * outputs for the others; outputs is projection_size, or hidden.
The gates are, in order: of lstm input, forget, new, output; of gru reset, update, new.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..compute import Array

__all__ = ["GATES", "Activations", "Sizes", "Weights", "activations", "reserve_size", "weights"]

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True, slots=True)
class Sizes:
    """An RNN's sizes.

    `outputs` is what a direction's state has for each sample, `stored` how many steps' extras, and `stored_gates` how
    many steps' gates, are there at a time.
    """

    mode: str
    layers: int
    directions: int
    hidden: int
    outputs: int
    time: int
    batch: int
    inputs: int
    dropout: bool
    stored: int = 0
    stored_gates: int = 0

    @property
    def gates(self) -> int:
        """Elements of a sample's gates in one direction."""
        return GATES[self.mode] * self.hidden

    @property
    def projected(self) -> bool:
        return self.outputs != self.hidden

    def layer_inputs(self, layer: int) -> int:
        """Return the number of inputs of a layer."""
        return self.inputs if layer == 0 else self.directions * self.outputs

    @property
    def parameters(self) -> int:
        """Length of the packed parameters."""
        return sum(math.prod(shape) for _, _, shape in _shapes(self))


@dataclass(slots=True)
class Weights:
    """A direction's parameters in one layer, as views of the packed vector; `h2r` is None without projection."""

    i2h: Array
    h2h: Array
    h2r: Array | None
    i2h_bias: Array
    h2h_bias: Array


def _shapes(sizes: Sizes) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """The packed parameters in order: number of layer and direction, name, shape."""
    for number in range(sizes.layers * sizes.directions):
        yield number, "i2h", (sizes.gates, sizes.layer_inputs(number // sizes.directions))
        yield number, "h2h", (sizes.gates, sizes.outputs)
        if sizes.projected:
            yield number, "h2r", (sizes.outputs, sizes.hidden)
    for number in range(sizes.layers * sizes.directions):
        yield number, "i2h_bias", (sizes.gates,)
        yield number, "h2h_bias", (sizes.gates,)


def weights(sizes: Sizes, packed: Array) -> list[Weights]:
    """The parts of the packed parameters: one for each layer and direction, layer * directions + direction."""
    parts: list[dict[str, Array]] = [{"h2r": None} for _ in range(sizes.layers * sizes.directions)]
    start = 0
    for number, name, shape in _shapes(sizes):
        stop = start + math.prod(shape)
        parts[number][name] = packed[start:stop].reshape(shape)
        start = stop
    return [Weights(**part) for part in parts]


@dataclass(slots=True)
class Activations:
    """Activations of one layer that forward saves for backward.

    With `columns` a step's gates are the columns of a matrix, one for each sample, and the last two axes of gates and
    extra change places: products of a few columns take OpenBLAS half the time of products of a few rows. Without a
    backward only the last steps' gates and extras are there, or no gates.

    Attributes:
        states: (time, batch, directions * outputs), each direction's state after each step.
        mask: what dropout multiplies states with on the way to the next layer, in that shape; None without dropout.
        gates: (stored_gates, batch, gates) for each direction, after their activation functions.
        extra: (stored, batch, hidden) for each direction: lstm's cells, gru's recurrent part of the new gate; or None.
    """

    states: Array
    mask: Array | None
    gates: list[Array]
    extra: list[Array] | None


def _layer_shapes(sizes: Sizes, layer: int) -> list[tuple[int, ...]]:
    states = (sizes.time, sizes.batch, sizes.directions * sizes.outputs)
    masks = [states] if sizes.dropout and layer < sizes.layers - 1 else []
    gates, extra = (sizes.stored_gates, sizes.batch, sizes.gates), (sizes.stored, sizes.batch, sizes.hidden)
    extras = [extra] * sizes.directions if sizes.mode in ("lstm", "gru") else []
    return [states, *masks, *[gates] * sizes.directions, *extras]


def reserve_size(sizes: Sizes) -> int:
    """Elements of all layers' activations."""
    return sum(math.prod(shape) for layer in range(sizes.layers) for shape in _layer_shapes(sizes, layer))


def activations(sizes: Sizes, reserve: Array, *, columns: bool = False) -> list[Activations]:
    """The activations of each layer, as views of `reserve`; forward and backward of a call agree on `columns`."""
    layers, start = [], 0
    for layer in range(sizes.layers):
        views = []
        for shape in _layer_shapes(sizes, layer):
            stop = start + math.prod(shape)
            views.append(reserve[start:stop].reshape(shape))
            start = stop
        mask = views.pop(1) if sizes.dropout and layer < sizes.layers - 1 else None
        if columns:
            views[1:] = [view.reshape(view.shape[0], view.shape[2], view.shape[1]) for view in views[1:]]
        gates = views[1 : 1 + sizes.directions]
        layers.append(Activations(views[0], mask, gates, views[1 + sizes.directions :] or None))
    return layers
