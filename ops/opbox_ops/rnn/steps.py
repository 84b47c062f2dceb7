"""The recurrent cells, over all steps of one direction of one layer.

The products of several steps' inputs with the weights are made at once: a step has only the product with the state.
Its gates are the rows of a matrix with a column for each sample. Sigmoids are (1 + tanh(x / 2)) / 2, and the weights
of their gates halved before, so that one call of tanh serves all gates of a step. With `valid`, a step beyond a
sequence's length keeps the state as it was.

    rnn   h' = f(x + R h)
    lstm  i, f, n, o = gates(x + R h)        c' = f c + i n        h' = o tanh(c')
    gru   r, z = gates(x + R h)              n = tanh(x + r (R h + b))        h' = (1 - z) n + z h
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ..compute import Array
from ..cpu.algorithms.recurrent_cells import Cells
from ..cpu.algorithms.unit_steps import UnitSteps
from ..pausing import pause
from .layout import Weights
from .scratch import Scratch

__all__ = ["Columns", "Direction", "Kernels"]

Matmul: TypeAlias = Callable[[Any, Array, Array, Array], Any]
"""`(xp, a, b, out)`: out = a @ b."""

_Step: TypeAlias = Callable[[int, Array, Array, Array], Any]
"""`(t, x, before, cell before)`: fills a step's gates, extra and state; the cell of lstm."""


Columns: TypeAlias = Callable[[Array, Array], None]
"""`(a, out)`: out = a.T @ weight, where a is contiguous."""


Rows: TypeAlias = Callable[[Array, Array], None]
"""`(b, out)`: out = weight @ b, where each column of b lies together."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes the products, and all of a step beside them.

    Attributes:
        matmul: a product.
        cells: a step in C; None: the array library computes it.
        packed: from a weight, the columns of what it multiplies, and memory for the packed weight, to the product of
            such columns by the weight, which it has packed into that memory; None where that is no gain.
        packed_rows: from a weight, the columns of what it is multiplied by, such memory, and whether it is to pack into
            it, `packs`, to the product of the weight by columns.
        steps: all that is computed of a layer's steps, by a matrix unit; None: products and cells.
    """

    matmul: Matmul
    cells: Cells | None = None
    packed: Callable[[Array, int, Array], Columns | None] | None = None
    packed_rows: Callable[..., Rows | None] | None = None
    steps: UnitSteps | None = None


@dataclass(slots=True)
class Direction:
    """One direction of one layer.

    Attributes:
        xp: numpy or cupy.
        mode: rnn_relu, rnn_tanh, lstm or gru.
        weights: its parameters, in the type that is computed in.
        reverse: whether it runs from the last step to the first.
        gates: (stored, gates, batch), or of no step.
        extra: (stored, hidden, batch) of lstm and gru.
        states: (time, batch, outputs), written after each step.
        first: state before the first step (batch, outputs); first_cell (batch, hidden) of lstm.
        valid: (time, 1, batch) booleans, False beyond a sequence's length; None: all are valid.
        beyond: the contrary.
        clip: lstm's least and greatest cell state, and whether NaN is made one of them; None: not clipped.
        scratch: the call's temporaries.
        kernels: compute its products and steps.
        packed: memory of the recurrent weight, and of the inputs', for a matrix unit; None: it computes no step.
    """

    xp: Any
    mode: str
    weights: Weights
    reverse: bool
    gates: Array
    extra: Array | None
    states: Array
    first: Array
    first_cell: Array | None
    valid: Array | None
    beyond: Array | None
    clip: tuple[float, float, bool] | None
    scratch: Scratch
    kernels: Kernels
    packed: tuple[Array, Array] | None = None

    @property
    def hidden(self) -> int:
        """Elements of a cell's state."""
        return int(self.gates.shape[1]) // {"lstm": 4, "gru": 3}.get(self.mode, 1)

    def times(self) -> range:
        """The steps in the order in which they run."""
        times = range(len(self.states))
        return times[::-1] if self.reverse else times

    def stored(self, array: Array, t: int) -> Array:
        """The part of gates or extra that is a step's."""
        return array[t % len(array)]

    def before(self, sequence: Array, first: Array, t: int) -> Array:
        """The value of `sequence` (time, …) before step t."""
        last = t + 1 if self.reverse else t - 1
        return sequence[last] if 0 <= last < len(sequence) else first

    def shifted(self, sequence: Array, first: Array, start: int, stop: int) -> list[tuple[slice, Array]]:
        """Values of `sequence` (time, …) before each of the steps `start` to `stop`: slices of these, and arrays."""
        count = stop - start
        if not count:
            return []
        if self.reverse:
            edge = sequence[stop : stop + 1] if stop < len(sequence) else first[None]
            return [(slice(0, count - 1), sequence[start + 1 : stop]), (slice(count - 1, count), edge)]
        edge = sequence[start - 1 : start] if start else first[None]
        return [(slice(0, 1), edge), (slice(1, count), sequence[start : stop - 1])]

    def run(self, x: Array, packs: bool = True) -> tuple[Array, Array | None]:
        """Fill gates, extra and states from x (time * batch, inputs); the last state, and cell of lstm.

        `packs` says whether weights that a matrix unit reads packed are to be packed, or are.
        """
        if self.kernels.steps is not None:
            return self._run_by_unit(x, self.kernels.steps, packs)
        i2h, h2h = self._weights(x.shape[1])
        step = self._by_cells(h2h) or {"lstm": self._lstm, "gru": self._gru}.get(self.mode, self._rnn)(h2h)
        state, cell = self.first.T, None if self.first_cell is None else self.first_cell.T
        length, start = self.scratch["pieces"].shape[1], -1
        for t in self.times():
            if t // length != start:
                pause()
                start = t // length
                products = self._products(x, i2h, start * length)
            before, before_cell = state, cell
            cell = step(t, products[:, t - start * length], before, before_cell)
            state = self.states[t].T
            if self.beyond is not None:
                self.xp.copyto(state, before, where=self.beyond[t])
                if cell is not None:
                    self.xp.copyto(cell, before_cell, where=self.beyond[t])
        return state.T, None if cell is None else cell.T

    def _run_by_unit(self, x: Array, steps: UnitSteps, packs: bool) -> tuple[Array, Array | None]:
        """The same, all of some steps in one call."""
        xp, part, work, n = self.xp, self.weights, self.scratch, self.hidden
        pieces, bias, cell = work["pieces"], work["bias"], work["small"]
        xp.add(part.i2h_bias, part.h2h_bias, out=bias)
        if self.mode == "gru":
            bias[2 * n :] = part.i2h_bias[2 * n :]
        if self.first_cell is not None:
            cell[...] = self.first_cell.T
        length, (time, batch, _) = pieces.shape[1], self.states.shape
        multiply = self.products_by_unit(steps, packs)
        assert self.packed is not None
        arrays = {"packed": self.packed[0], "bias": bias, "of_new": part.h2h_bias[2 * n :], "valid": self.valid}
        arrays |= {"gates": self.gates, "extra": self.extra, "states": self.states, "scratch": work["scratch"]}
        times, state = range(time), self.first
        for start in times[::length][:: -1 if self.reverse else 1]:
            pause()
            now = times[start : start + length]
            products = pieces.reshape(-1)[: len(part.i2h) * len(now) * batch].reshape(len(part.i2h), -1)
            multiply(x[start * batch : now.stop * batch].T, products)
            now = now[::-1] if self.reverse else now
            arrays |= {"x": products, "before": state, "cell_before": cell}
            steps.run(self.mode, arrays, now, start)
            state = self.states[now[-1]]
            if self.first_cell is not None:
                cell = self.stored(self.extra, now[-1])
        return state, None if self.first_cell is None else cell.T

    def products_by_unit(self, steps: UnitSteps, packs: bool = True) -> Rows:
        """Pack the weights for a matrix unit, or find them packed; return the product of the inputs' by columns."""
        assert self.packed is not None
        weights, (recurrent, inputs), rows = self.weights, self.packed, self.kernels.packed_rows
        columns = self.scratch["pieces"].shape[1] * self.states.shape[1]
        if packs:
            steps.pack(self.mode, weights.h2h, recurrent)
        multiply = None if rows is None else rows(weights.i2h, columns, inputs, packs=packs)
        return partial(self.kernels.matmul, self.xp, weights.i2h) if multiply is None else multiply

    def _weights(self, inputs: int) -> tuple[Array, Array]:
        """The weights of inputs and state, halved for the sigmoids of lstm and gru.

        The bias is the weight of a further input, which is 1. gru's new gate has its second bias within the reset.
        """
        xp, part, n, sigmoids = self.xp, self.weights, self.hidden, self.mode in ("lstm", "gru")
        i2h, h2h = self.scratch["i2h"][: len(part.i2h) * (inputs + 1)].reshape(-1, inputs + 1), part.h2h
        new = slice(2 * n, 3 * n)
        i2h[:, :inputs] = part.i2h
        xp.add(part.i2h_bias, part.h2h_bias, out=i2h[:, inputs])
        if self.mode == "gru":
            i2h[new, inputs] = part.i2h_bias[new]
        if sigmoids:
            h2h = self.scratch["h2h"]
            h2h[...] = part.h2h
            for array in (i2h, h2h):
                for rows in (array[: 2 * n], array[3 * n :]):
                    xp.multiply(rows, 0.5, out=rows)
        return i2h, h2h

    def _products(self, x: Array, i2h: Array, start: int) -> Array:
        """i2h times the inputs of the steps from `start` on: (gates, steps, batch)."""
        memory, batch, width = self.scratch["pieces"], self.states.shape[1], i2h.shape[1]
        count = min(memory.shape[1], len(self.states) - start)
        inputs = self.scratch["inputs"][: count * batch * width].reshape(count * batch, width)
        inputs[:, : width - 1] = x[start * batch : (start + count) * batch]
        inputs[:, width - 1] = 1
        products = memory.reshape(-1)[: len(i2h) * count * batch].reshape(len(i2h), count * batch)
        self.kernels.matmul(self.xp, i2h, inputs.T, products)
        return products.reshape(len(i2h), count, batch)

    def _by_cells(self, h2h: Array) -> _Step | None:
        """A step in C; None where there is none, or the cells are clipped or projected."""
        cells, extra = self.kernels.cells, self.extra
        if cells is None or self.clip is not None or self.weights.h2r is not None:
            return None
        product, memory = self.scratch["product"], self.scratch["small"]
        multiply = partial(self.kernels.matmul, self.xp, h2h)

        def lstm(t: int, x: Array, before: Array, before_cell: Array) -> Array:
            cell = self.stored(extra, t)
            multiply(before, product)
            cells.lstm((product, x, self.stored(self.gates, t), before_cell, cell, memory, self.states[t]))
            return cell

        def gru(t: int, x: Array, before: Array, _: Any) -> None:
            multiply(before, product)
            again = self.stored(extra, t)
            cells.gru((product, x, self.stored(self.gates, t), before, again, memory, self.states[t]), bias)

        def rnn(t: int, x: Array, before: Array, _: Any) -> None:
            multiply(before, product)
            cells.rnn((product, x, self.stored(self.gates, t), self.states[t]), self.mode == "rnn_relu")

        bias = self.weights.h2h_bias[2 * self.hidden :]
        return lstm if self.mode == "lstm" else gru if self.mode == "gru" else rnn

    def _rnn(self, h2h: Array) -> _Step:
        xp, product, relu = self.xp, self.scratch["product"], self.mode == "rnn_relu"
        matmul = self.kernels.matmul

        def step(t: int, x: Array, before: Array, _: Any) -> None:
            gate = self.stored(self.gates, t)
            matmul(xp, h2h, before, product)
            xp.add(product, x, out=gate)
            if relu:
                xp.maximum(gate, 0, out=gate)
            else:
                xp.tanh(gate, out=gate)
            self.states[t].T[...] = gate

        return step

    def _lstm(self, h2h: Array) -> _Step:
        xp, n, cells, clip, matmul = self.xp, self.hidden, self.extra, self.clip, self.kernels.matmul
        assert cells is not None
        product, small, projected = (self.scratch[name] for name in ("product", "small", "projected"))
        projection = self.weights.h2r

        def step(t: int, x: Array, before: Array, before_cell: Array) -> Array:
            gate, cell = self.stored(self.gates, t), self.stored(cells, t)
            matmul(xp, h2h, before, product)
            xp.add(product, x, out=gate)
            xp.tanh(gate, out=gate)
            for sigmoid in (gate[: 2 * n], gate[3 * n :]):
                xp.multiply(sigmoid, 0.5, out=sigmoid)
                xp.add(sigmoid, 0.5, out=sigmoid)
            xp.multiply(gate[:n], gate[2 * n : 3 * n], out=small)
            xp.multiply(gate[n : 2 * n], before_cell, out=cell)
            xp.add(cell, small, out=cell)
            if clip is not None:
                _clip(xp, cell, *clip)
            xp.tanh(cell, out=small)
            if projection is None:
                xp.multiply(gate[3 * n :], small, out=self.states[t].T)
            else:
                xp.multiply(gate[3 * n :], small, out=small)
                matmul(xp, projection, small, projected)
                self.states[t].T[...] = projected
            return cell

        return step

    def _gru(self, h2h: Array) -> _Step:
        xp, n, products, matmul = self.xp, self.hidden, self.extra, self.kernels.matmul
        assert products is not None
        product, small = self.scratch["product"], self.scratch["small"]
        bias = self.weights.h2h_bias[2 * n :, None]

        def step(t: int, x: Array, before: Array, _: Any) -> None:
            gate, again = self.stored(self.gates, t), self.stored(products, t)
            both, new = gate[: 2 * n], gate[2 * n :]
            matmul(xp, h2h, before, product)
            xp.add(product[: 2 * n], x[: 2 * n], out=both)
            xp.tanh(both, out=both)
            xp.multiply(both, 0.5, out=both)
            xp.add(both, 0.5, out=both)
            xp.add(product[2 * n :], bias, out=again)
            xp.multiply(both[:n], again, out=small)
            xp.add(small, x[2 * n :], out=new)
            xp.tanh(new, out=new)
            xp.subtract(before, new, out=small)
            xp.multiply(small, both[n:], out=small)
            xp.add(new, small, out=self.states[t].T)

        return step


def _clip(xp: Any, cell: Array, low: float, high: float, nan: bool) -> None:
    """Bound a cell state in place."""
    if nan:
        xp.fmin(cell, high, out=cell)
        xp.fmax(cell, low, out=cell)
    else:
        xp.clip(cell, low, high, out=cell)
