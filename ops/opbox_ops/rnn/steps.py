"""The recurrent cells, forward and backward over all steps of one direction of one layer.

The products of all steps with the inputs' weights are made before (`gates` arrives holding them), and those of the
gates' gradients with inputs and weights afterwards: a step has only the product with the state. Sigmoids are
(1 + tanh(x / 2)) / 2, so that one call of tanh serves all gates of a step. With `valid`, a step beyond a sequence's
length keeps the state as it was.

    rnn   h' = f(x + R h)
    lstm  i, f, n, o = gates(x + R h)        c' = f c + i n        h' = o tanh(c')
    gru   r, z = gates(x + R h)              n = tanh(x + r (R h + b))        h' = (1 - z) n + z h
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compute import Array
from ..cuda.product import matmul
from .layout import Weights

__all__ = ["Direction"]


@dataclass(slots=True)
class Direction:
    """One direction of one layer.

    Attributes:
        xp: numpy or cupy.
        mode: rnn_relu, rnn_tanh, lstm or gru.
        weights: its parameters, in the type that is computed in.
        reverse: whether it runs from the last step to the first.
        gates: (time, batch, gates).
        extra: (time, batch, hidden) of lstm and gru.
        states: (time, batch, outputs), written after each step.
        first: state before the first step (batch, outputs); first_cell (batch, hidden) of lstm.
        valid: (time, batch, 1) booleans, False beyond a sequence's length; None: all are valid.
        clip: lstm's least and greatest cell state, and whether NaN is made one of them; None: not clipped.
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
    clip: tuple[float, float, bool] | None

    @property
    def _hidden(self) -> int:
        return int(self.gates.shape[2]) // {"lstm": 4, "gru": 3}.get(self.mode, 1)

    def _times(self) -> Sequence[int]:
        times = range(self.gates.shape[0])
        return times[::-1] if self.reverse else times

    def _four(self, array: Array) -> list[Array]:
        """Views of gates, one for each kind of gate."""
        n = self._hidden
        return [array[..., k : k + n] for k in range(0, array.shape[-1], n)]

    def _previous(self, sequence: Array, first: Array) -> Array:
        """What `sequence` (time, batch, n) was before each step."""
        ends = (sequence[1:], first[None]) if self.reverse else (first[None], sequence[:-1])
        return self.xp.concatenate(ends) if len(sequence) else sequence

    # -- forward ------------------------------------------------------------------------------------------------

    def run(self) -> tuple[Array, Array | None]:
        """Fill gates, extra and states; the last state, and cell of lstm."""
        state, cell = self.first, self.first_cell
        if not len(self.gates):
            return state, cell
        step = {"lstm": self._lstm, "gru": self._gru}.get(self.mode, self._rnn)()
        for t in self._times():
            before, before_cell = state, cell
            cell = step(t, before, before_cell)
            state = self.states[t]
            if self.valid is not None:
                beyond = ~self.valid[t]
                self.xp.copyto(state, before, where=beyond)
                if cell is not None:
                    self.xp.copyto(cell, before_cell, where=beyond)
        return state, cell

    def _rnn(self) -> Any:
        xp, product = self.xp, self.xp.empty_like(self.gates[0])
        recurrent, relu = self.weights.h2h.T, self.mode == "rnn_relu"

        def step(t: int, before: Array, _: Any) -> None:
            gate = self.gates[t]
            matmul(xp, before, recurrent, product)
            gate += product
            if relu:
                xp.maximum(gate, 0, out=gate)
            else:
                xp.tanh(gate, out=gate)
            self.states[t] = gate

        return step

    def _half(self, kinds: tuple[bool, ...]) -> tuple[Array, Array]:
        """For sigmoid gates 1/2 and 1/2, for the others 1 and 0: what tanh is multiplied with, and what is added."""
        factors = np.repeat([0.5 if sigmoid else 1.0 for sigmoid in kinds], self._hidden)
        return tuple(self.xp.asarray(values.astype(self.gates.dtype)) for values in (factors, 1 - factors))

    def _lstm(self) -> Any:
        xp = self.xp
        half, rest = self._half((True, True, False, True))
        recurrent = (self.weights.h2h * half[:, None]).T
        self.gates *= half
        assert self.extra is not None
        cells = self.extra
        product, small = xp.empty_like(self.gates[0]), xp.empty_like(cells[0])
        projection = None if self.weights.h2r is None else self.weights.h2r.T

        def step(t: int, before: Array, before_cell: Array) -> Array:
            gate, cell = self.gates[t], cells[t]
            matmul(xp, before, recurrent, product)
            gate += product
            xp.tanh(gate, out=gate)
            gate *= half
            gate += rest
            i, f, new, o = self._four(gate)
            xp.multiply(f, before_cell, out=cell)
            xp.multiply(i, new, out=small)
            cell += small
            if self.clip is not None:
                self._clip(cell)
            xp.tanh(cell, out=small)
            if projection is None:
                xp.multiply(o, small, out=self.states[t])
            else:
                xp.multiply(o, small, out=small)
                self.states[t] = small @ projection
            return cell

        return step

    def _clip(self, cell: Array) -> None:
        assert self.clip is not None
        low, high, nan = self.clip
        if nan:
            self.xp.fmin(cell, high, out=cell)
            self.xp.fmax(cell, low, out=cell)
        else:
            self.xp.clip(cell, low, high, out=cell)

    def _gru(self) -> Any:
        xp, n = self.xp, self._hidden
        half, rest = self._half((True, True, False))
        recurrent = (self.weights.h2h * half[:, None]).T
        bias = self.weights.h2h_bias[2 * n :]
        self.gates *= half
        assert self.extra is not None
        products = self.extra
        product, small = xp.empty_like(self.gates[0]), xp.empty_like(products[0])

        def step(t: int, before: Array, _: Any) -> None:
            gate, again = self.gates[t], products[t]
            matmul(xp, before, recurrent, product)
            both, new = gate[:, : 2 * n], gate[:, 2 * n :]
            both += product[:, : 2 * n]
            xp.tanh(both, out=both)
            both *= half[: 2 * n]
            both += rest[: 2 * n]
            xp.add(product[:, 2 * n :], bias, out=again)
            xp.multiply(both[:, :n], again, out=small)
            new += small
            xp.tanh(new, out=new)
            xp.subtract(before, new, out=small)
            xp.multiply(small, both[:, n:], out=small)
            xp.add(new, small, out=self.states[t])

        return step

    # -- backward -----------------------------------------------------------------------------------------------

    def back(self, gstates: Array, glast: Array, glast_cell: Array | None, out: Weights | None) -> Any:
        """The gradients of what `gates` arrived with, of the first state and of the first cell.

        Args:
            gstates: the gradient of states (time, batch, outputs); 0 where they are not valid.
            glast, glast_cell: the gradients of the last state and cell.
            out: where the gradients of h2h, h2r and h2h_bias are written; None: they are not wanted.
        """
        before = self._previous(self.states, self.first)
        ggates, grecurrent, gfirst, gcell, gprojected = {"lstm": self._lstm_back, "gru": self._gru_back}.get(
            self.mode, self._rnn_back
        )(gstates, glast, glast_cell, before)
        if out is not None:
            flat = grecurrent.reshape(-1, grecurrent.shape[2])
            out.h2h[...] = flat.T @ before.reshape(-1, before.shape[2])
            out.h2h_bias[...] = flat.sum(axis=0)
            if out.h2r is not None:
                hidden = self._four(self.gates)[3] * self.xp.tanh(self.extra)
                out.h2r[...] = gprojected.reshape(-1, gprojected.shape[2]).T @ hidden.reshape(-1, self._hidden)
        return ggates, gfirst, gcell

    def _masked(self, *factors: Array) -> Any:
        """1 - valid, or None; the factors are made 0 where a step is not valid."""
        if self.valid is None:
            return None
        for factor in factors:
            factor *= self.valid
        return (~self.valid).astype(self.gates.dtype)

    def _rnn_back(self, gstates: Array, gstate: Array, _: Any, before: Array) -> Any:
        slope = (self.gates > 0).astype(self.gates.dtype) if self.mode == "rnn_relu" else 1 - self.gates * self.gates
        passing = self._masked(slope)
        for t in reversed(self._times()):
            total = gstates[t] + gstate
            slope[t] *= total
            gstate = slope[t] @ self.weights.h2h
            if passing is not None:
                gstate += passing[t] * total
        return slope, slope, gstate, None, None

    def _lstm_back(self, gstates: Array, gstate: Array, gcell: Array, before: Array) -> Any:
        xp, cells = self.xp, self.extra
        assert cells is not None
        assert self.first_cell is not None
        i, f, new, o = self._four(self.gates)
        squashed = xp.tanh(cells)
        # A gate's factor is its gradient for a gradient of 1: of the cell for the first three, of the state for o.
        factors = xp.empty_like(self.gates)
        of_i, of_f, of_new, of_o = self._four(factors)
        of_i[...] = new * i * (1 - i)
        of_f[...] = self._previous(cells, self.first_cell) * f * (1 - f)
        of_new[...] = i * (1 - new * new)
        of_o[...] = squashed * o * (1 - o)
        of_cell = o * (1 - squashed * squashed)
        forget = f
        if self.clip is not None:
            inside = (cells > self.clip[0]) & (cells < self.clip[1])
            for factor in (of_i, of_f, of_new):
                factor *= inside
            forget = forget * inside
        passing = self._masked(factors, of_cell)
        if passing is not None:
            forget = forget + passing * (1 - forget)
        projection, projected = self.weights.h2r, None
        if projection is not None:
            projected = xp.zeros_like(gstates)
        n = self._hidden
        for t in reversed(self._times()):
            total = gstates[t] + gstate
            ghidden = total
            if projection is not None and projected is not None:
                if self.valid is not None:
                    total_valid = total * self.valid[t]
                else:
                    total_valid = total
                projected[t] = total_valid
                ghidden = total_valid @ projection
            gcell = gcell + ghidden * of_cell[t]
            inner = factors[t, :, : 3 * n].reshape(-1, 3, n)
            inner *= gcell[:, None]
            of_o[t] *= ghidden
            gcell = gcell * forget[t]
            gstate = factors[t] @ self.weights.h2h
            if passing is not None:
                gstate += passing[t] * total
        return factors, factors, gstate, gcell, projected

    def _gru_back(self, gstates: Array, gstate: Array, _: Any, before: Array) -> Any:
        xp, again, n = self.xp, self.extra, self._hidden
        assert again is not None
        r, z, new = self._four(self.gates)
        inputs, recurrent = xp.empty_like(self.gates), xp.empty_like(self.gates)
        of_r, of_z, of_new = self._four(inputs)
        of_r[...] = again * r * (1 - r)
        of_z[...] = (before - new) * z * (1 - z)
        of_new[...] = (1 - z) * (1 - new * new)
        update = z
        passing = self._masked(of_z, of_new)
        if passing is not None:
            update = update + passing * (1 - update)
        for t in reversed(self._times()):
            total = gstates[t] + gstate
            of_new[t] *= total
            of_z[t] *= total
            of_r[t] *= of_new[t]
            recurrent[t] = inputs[t]
            recurrent[t, :, 2 * n :] *= r[t]
            gstate = recurrent[t] @ self.weights.h2h
            gstate += total * update[t]
        return inputs, recurrent, gstate, None, None
