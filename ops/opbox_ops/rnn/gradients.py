"""The gradients of the recurrent cells (`steps.py`), from the last step of a direction to its first.

With g for the gradient of what is named behind it, and s' = s (1 - s) for a sigmoid, t' = 1 - t t for a tanh:

    rnn   gx = f' gh                     gh of the step before = R.T gx                     (so of lstm, too)
    lstm  gc += o (1 - tanh(c) tanh(c)) gh        gi, gf, gn = i' n gc, f' (c before) gc, n' i gc
          go = o' tanh(c) gh                      gc of the step before = f gc
    gru   gn = n' (1 - z) gh                      gz = z' (h before - n) gh                     gr = r' (R h + b) gn
          gh of the step before = R.T (gr, gz, r gn) + z gh

What of it does not wait for the step behind is worked out for as many steps at a time as stay in the cache. The gates'
gradients of all steps stand side by side, so that each weight's gradient is one product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from ..compute import Array
from ..cpu.algorithms.recurrent_cells import Cells
from ..cpu.algorithms.unit_steps import UnitSteps
from ..pausing import pause
from .layout import Weights
from .scratch import UNIT_COLUMNS
from .steps import Columns, Direction

__all__ = ["back"]


def back(direction: Direction, gstates: Array, glast: Array, glast_cell: Array | None, out: Weights | None) -> Any:
    """The gradients of the first state (batch, outputs) and of lstm's first cell (batch, hidden), else None.

    Those of the gates, before their activation functions, are left in the temporary ggates (gates, time, batch).

    Args:
        direction: after its `run`.
        gstates: the gradient of its states (time, batch, outputs); 0 where they are not valid.
        glast: the gradient of the last state; glast_cell of lstm's last cell.
        out: where the gradients of the weights but i2h are written; None: they are not wanted.
    """
    xp, scratch = direction.xp, direction.scratch
    if glast_cell is not None:
        scratch["gcell"][...] = glast_cell.T
    if direction.kernels.steps is not None:
        _back_by_unit(direction, direction.kernels.steps, gstates, glast)
        if out is not None:
            _weights(direction, out)
        return scratch["gstate"].reshape(glast.shape), None if glast_cell is None else scratch["gcell"].T
    cell = {"lstm": _Lstm, "gru": _Gru}.get(direction.mode, _Rnn)(direction)
    cell.begin(glast)
    time, length = len(gstates), len(scratch["factors"])
    pieces = [(start, min(start + length, time)) for start in range(0, time, length)]
    for start, stop in pieces if direction.reverse else pieces[::-1]:
        pause()
        steps = range(start, stop)
        steps = steps if direction.reverse else steps[::-1]
        if isinstance(cell, _CellInC) and cell.in_c is not None:
            for t in steps:
                cell.step_in_c(cell.in_c, gstates[t], t)
            continue
        cell.prepare(start, stop)
        for t in steps:
            xp.add(gstates[t].T, cell.gstate, out=cell.total)
            cell.step(t, t - start)
        cell.store(start, stop)
    if out is not None:
        _weights(direction, out)
    return cell.first_gstate(), None if glast_cell is None else scratch["gcell"].T


def _back_by_unit(direction: Direction, steps: UnitSteps, gstates: Array, glast: Array) -> None:
    """Fill ggates, and leave the gradients of the first state and cell in gstate, (batch, outputs), and gcell."""
    work, mode = direction.scratch, direction.mode
    steps.pack(mode, direction.weights.h2h, work["packed"], back=True)
    gstate, first_cell = work["gstate"].reshape(glast.shape), work["first_cell"]
    gstate[...] = glast
    if direction.first_cell is not None:
        first_cell[...] = direction.first_cell.T
    arrays = {"packed": work["packed"], "gates": direction.gates, "extra": direction.extra}
    arrays |= {"states": direction.states, "first": direction.first, "first_cell": first_cell, "gout": gstates}
    arrays |= {"gstate": gstate, "gcell": work["gcell"], "ggates": work["ggates"], "gagain": work["gagain"]}
    arrays["scratch"] = work["scratch"]
    times, length = direction.times()[::-1], max(1, UNIT_COLUMNS // gstates.shape[1])
    for start in range(0, len(times), length):
        pause()
        steps.back(mode, arrays, times[start : start + length])


def _weights(direction: Direction, out: Weights) -> None:
    """Write the gradients of the recurrent weights and both biases."""
    xp, scratch, n, matmul = direction.xp, direction.scratch, direction.hidden, direction.kernels.matmul
    before, time = scratch["before"], len(direction.states)
    for target, source in direction.shifted(direction.states, direction.first, 0, time):
        before[target] = source
    before = before.reshape(-1, before.shape[2])
    ggates = scratch["ggates"].reshape(len(scratch["ggates"]), -1)
    ones = scratch["ones"]  # CuPy's sums of rows ask for memory
    ones.fill(1)
    matmul(xp, ggates, ones, out.i2h_bias[:, None])
    out.h2h_bias[...] = out.i2h_bias
    if direction.mode == "gru":
        gagain = scratch["gagain"].reshape(n, -1)
        matmul(xp, ggates[: 2 * n], before, out.h2h[: 2 * n])
        matmul(xp, gagain, before, out.h2h[2 * n :])
        matmul(xp, gagain, ones, out.h2h_bias[2 * n :, None])
    else:
        matmul(xp, ggates, before, out.h2h)
    if out.h2r is not None:
        gprojected, hidden = scratch["gprojected"], scratch["hidden"]
        matmul(xp, gprojected.reshape(len(gprojected), -1), hidden.reshape(n, -1).T, out.h2r)


class _Cell(ABC):
    """The gradient of a kind of cell.

    Attributes:
        total: the gradient of a step's state.
        gstate: its share for the step before.
        through: of that what does not go through the gates.
        factors: (steps, gates, batch) gradients of the gates, at first for a `total` of 1.
    """

    def __init__(self, direction: Direction) -> None:
        self.direction, self.xp, self.n = direction, direction.xp, direction.hidden
        self.matmul = direction.kernels.matmul
        self.gates, self.valid = direction.gates, direction.valid
        self.beyond: Array = direction.beyond
        names = ("total", "gstate", "through", "factors", "small", "h2h")
        arrays = (direction.scratch[name] for name in names)
        self.total, self.gstate, self.through, self.factors, self.small, h2h = arrays
        self.h2h = h2h[: len(self.gstate), : self.gates.shape[1]]

    def begin(self, glast: Array) -> None:
        """Take the gradient of the last state (batch, outputs)."""
        self.gstate[...] = glast.T
        self.h2h[...] = self.direction.weights.h2h.T

    def first_gstate(self) -> Array:
        """The gradient of the first state (batch, outputs), behind all steps."""
        return self.gstate.T

    @abstractmethod
    def prepare(self, start: int, stop: int) -> None:
        """Work out the factors of steps `start` to `stop`."""

    @abstractmethod
    def step(self, t: int, k: int) -> None:
        """From `total` the gradients of step t, whose factors are the k-th, and `gstate`."""

    def store(self, start: int, stop: int) -> None:
        """Put the gradients of steps `start` to `stop` beside the others'."""
        self.direction.scratch["ggates"][:, start:stop] = self.factors[: stop - start].transpose(1, 0, 2)

    def pass_by(self, t: int) -> None:
        """Beyond the lengths, `total` goes to the step before as it is."""
        if self.valid is not None:
            self.xp.multiply(self.total, self.beyond[t], out=self.through)
            self.xp.multiply(self.total, self.valid[t], out=self.total)

    def to_state(self, k: int) -> None:
        """Write `gstate` from a step's gradients."""
        self.matmul(self.xp, self.h2h, self.factors[k], self.gstate)
        if len(self.through):
            self.xp.add(self.gstate, self.through, out=self.gstate)


class _CellInC(_Cell):
    """One whose steps may be computed in C.

    Attributes:
        by_rows: the product of a step's gradients (gates, batch) by the packed weight, which writes `gstate` as (batch,
            outputs); None: as other cells do.
        passed: what is to be added to `gstate` then.
    """

    by_rows: Columns | None = None
    passed: Array | None = None

    def begin(self, glast: Array) -> None:
        kernels, weight, memory = self.direction.kernels, self.direction.weights.h2h, self.direction.scratch["h2h"]
        if self.in_c is not None and kernels.packed is not None:
            self.by_rows = kernels.packed(weight, len(glast), memory)
        if self.by_rows is None:
            super().begin(glast)
        else:
            self.gstate = self.gstate.reshape(glast.shape)
            self.gstate[...] = glast

    def first_gstate(self) -> Array:
        if self.by_rows is None:
            return super().first_gstate()
        if self.passed is not None:
            self.xp.add(self.gstate, self.passed.T, out=self.gstate)
        return self.gstate

    @property
    def gstate_row(self) -> int:
        """Numbers of a row of `gstate` where it is (batch, outputs), else 0."""
        return 0 if self.by_rows is None else int(self.gstate.shape[1])

    def from_c(self) -> None:
        """Write `gstate` from a step's gradients, which C has left in the first of `factors`."""
        if self.by_rows is None:
            self.to_state(0)
        else:
            self.by_rows(self.factors[0], self.gstate)
            self.passed = self.through if len(self.through) else None

    @property
    @abstractmethod
    def in_c(self) -> Cells | None:
        """The compiled functions; None where they cannot take this direction's steps."""

    @abstractmethod
    def step_in_c(self, cells: Cells, gout: Array, t: int) -> None:
        """Do all that the other methods do for step t, whose state has the gradient `gout`."""


class _Rnn(_Cell):
    def prepare(self, start: int, stop: int) -> None:
        gates, slope = self.gates[start:stop], self.factors[: stop - start]
        if self.direction.mode == "rnn_relu":
            self.xp.greater(gates, 0, out=slope)
        else:
            self.xp.multiply(gates, gates, out=slope)
            self.xp.subtract(1, slope, out=slope)

    def step(self, t: int, k: int) -> None:
        slope = self.factors[k]  # one view: of two, CuPy would copy the first
        self.pass_by(t)
        self.xp.multiply(slope, self.total, out=slope)
        self.to_state(k)


class _Lstm(_CellInC):
    def __init__(self, direction: Direction) -> None:
        super().__init__(direction)
        names = ("gcell", "inner", "inside", "ghidden", "gprojected", "hidden")
        arrays = (direction.scratch[name] for name in names)
        self.gcell, self.inner, self.inside, self.ghidden, self.gprojected, self.hidden = arrays
        self.cell_states: Array = direction.extra
        self.first_cell: Array = direction.first_cell
        self.forget = self.gates[:, self.n : 2 * self.n]
        self.three = self.factors[:, : 3 * self.n].reshape(len(self.factors), 3, self.n, self.gates.shape[2])
        self.of_o = self.factors[:, 3 * self.n :]

    def prepare(self, start: int, stop: int) -> None:
        xp, n, count = self.xp, self.n, stop - start
        gates, factors, small = self.gates[start:stop], self.factors[:count], self.small[:count]
        both, new, o = gates[:, : 2 * n], gates[:, 2 * n : 3 * n], gates[:, 3 * n :]
        of_both, of_new, of_o = factors[:, : 2 * n], factors[:, 2 * n : 3 * n], factors[:, 3 * n :]
        of_i, of_f = of_both[:, :n], of_both[:, n:]
        xp.tanh(self.cell_states[start:stop], out=small)
        if self.direction.weights.h2r is not None:
            xp.multiply(o.transpose(1, 0, 2), small.transpose(1, 0, 2), out=self.hidden[:, start:stop])
        xp.subtract(1, o, out=of_o)
        xp.multiply(of_o, o, out=of_o)
        xp.multiply(of_o, small, out=of_o)
        xp.multiply(small, small, out=small)
        xp.subtract(1, small, out=small)
        xp.multiply(small, o, out=small)
        xp.subtract(1, both, out=of_both)
        xp.multiply(of_both, both, out=of_both)
        xp.multiply(of_i, new, out=of_i)
        for target, before in self.direction.shifted(self.cell_states, self.first_cell.T, start, stop):
            part = of_f[target]
            xp.multiply(part, before, out=part)
        xp.multiply(new, new, out=of_new)
        xp.subtract(1, of_new, out=of_new)
        xp.multiply(of_new, both[:, :n], out=of_new)

    def step(self, t: int, k: int) -> None:
        xp, gcell, ghidden, inner = self.xp, self.gcell, self.total, self.inner
        of_o, three = self.of_o[k], self.three[k]
        self.pass_by(t)
        if self.direction.weights.h2r is not None:
            self.gprojected[:, t] = self.total
            ghidden = self.ghidden
            self.matmul(xp, self.direction.weights.h2r.T, self.total, ghidden)
        xp.multiply(self.small[k], ghidden, out=inner)
        xp.add(gcell, inner, out=gcell)
        counted = self.counted(t)
        xp.multiply(three, counted, out=three)
        xp.multiply(of_o, ghidden, out=of_o)
        if self.valid is None:
            xp.multiply(counted, self.forget[t], out=gcell)
        else:
            xp.multiply(counted, self.forget[t], out=inner)
            xp.multiply(gcell, self.beyond[t], out=gcell)
            xp.add(gcell, inner, out=gcell)
        self.to_state(k)

    @property
    def in_c(self) -> Cells | None:
        direction = self.direction
        plain = direction.weights.h2r is None and direction.clip is None and self.valid is None
        return direction.kernels.cells if plain else None

    def step_in_c(self, cells: Cells, gout: Array, t: int) -> None:
        direction, work = self.direction, (self.total, self.small[0], self.inner)
        before = direction.before(self.cell_states, self.first_cell.T, t)
        stored = self.gates[t], self.cell_states[t], before, direction.scratch["ggates"][:, t]
        cells.lstm_back((gout, self.gstate, *work, self.gcell, self.factors[0], *stored), self.gstate_row)
        self.from_c()

    def counted(self, t: int) -> Array:
        """The gradient of a step's cell where the step counts and the cell was not clipped."""
        xp, counted, clip = self.xp, self.gcell, self.direction.clip
        if self.valid is not None:
            counted = xp.multiply(counted, self.valid[t], out=self.inner)
        if clip is not None:
            for bound, compare in zip(clip, (xp.greater, xp.less), strict=False):
                compare(self.cell_states[t], bound, out=self.inside)
                counted = xp.multiply(counted, self.inside, out=self.inner)
        return counted


class _Gru(_CellInC):
    def __init__(self, direction: Direction) -> None:
        super().__init__(direction)
        self.products: Array = direction.extra

    def prepare(self, start: int, stop: int) -> None:
        xp, n, count = self.xp, self.n, stop - start
        gates, factors, small = self.gates[start:stop], self.factors[:count], self.small[:count]
        both, new = gates[:, : 2 * n], gates[:, 2 * n :]
        of_both, of_r, of_z, rest = factors[:, : 2 * n], factors[:, :n], factors[:, n : 2 * n], factors[:, 2 * n :]
        states, first = self.direction.states.transpose(0, 2, 1), self.direction.first.T
        xp.subtract(1, both, out=of_both)
        xp.multiply(new, new, out=small)
        xp.subtract(1, small, out=small)
        xp.multiply(small, of_z, out=small)
        xp.multiply(of_both, both, out=of_both)
        for target, before in self.direction.shifted(states, first, start, stop):
            xp.subtract(before, new[target], out=rest[target])
        xp.multiply(of_z, rest, out=of_z)
        xp.multiply(of_r, self.products[start:stop], out=of_r)

    def step(self, t: int, k: int) -> None:
        xp, n, small, factors, gates = self.xp, self.n, self.small[k], self.factors[k], self.gates[t]
        of_r, of_z = factors[:n], factors[n : 2 * n]
        xp.multiply(self.total, gates[n : 2 * n], out=self.through)
        if self.valid is not None:
            xp.copyto(self.through, self.total, where=self.beyond[t])
            xp.multiply(self.total, self.valid[t], out=self.total)
        xp.multiply(small, self.total, out=small)
        xp.multiply(of_z, self.total, out=of_z)
        xp.multiply(of_r, small, out=of_r)
        xp.multiply(small, gates[:n], out=factors[2 * n :])
        self.to_state(k)

    @property
    def in_c(self) -> Cells | None:
        return self.direction.kernels.cells if self.valid is None else None

    def step_in_c(self, cells: Cells, gout: Array, t: int) -> None:
        direction, scratch, small = self.direction, self.direction.scratch, self.small
        before = direction.before(direction.states.transpose(0, 2, 1), direction.first.T, t)
        written = scratch["ggates"][:, t], scratch["gagain"][:, t]
        work = self.total, small[0], scratch["inner"], self.through, self.factors[0]
        stored = self.gates[t], self.products[t], before
        cells.gru_back((gout, self.gstate, *work, *stored, *written), self.passed, self.gstate_row)
        self.from_c()

    def store(self, start: int, stop: int) -> None:
        scratch, n, count = self.direction.scratch, self.n, stop - start
        factors = self.factors[:count].transpose(1, 0, 2)
        scratch["ggates"][: 2 * n, start:stop] = factors[: 2 * n]
        scratch["ggates"][2 * n :, start:stop] = self.small[:count].transpose(1, 0, 2)
        scratch["gagain"][:, start:stop] = factors[2 * n :]
