"""Cells made of cells: one on top of the other, and two in opposite directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import symbol
from ..base import value_text
from .cell import BaseRNNCell, RNNParams, StateInfo, States, Symbol, normalize_sequence

__all__ = ["BidirectionalCell", "SequentialRNNCell"]


class _CellGroup(BaseRNNCell):
    """Cells whose parameters and states are those of all its cells, in order."""

    def __init__(self, cells: Sequence[BaseRNNCell], params: RNNParams | None, who: str) -> None:
        self._cells: list[BaseRNNCell] = []
        super().__init__("", params)
        self._override_cell_params = params is not None
        self._who = who
        for cell in cells:
            self._take_in(cell)

    def _take_in(self, cell: BaseRNNCell) -> None:
        if not isinstance(cell, BaseRNNCell):
            raise TypeError(f"{self._who}: expected a cell, got {value_text(cell)}")
        self._cells.append(cell)
        if self._override_cell_params:
            if not cell._own_params:
                raise AssertionError(f"{self._who}: params: expected them on the group or on its cells, got both")
            cell.params._params.update(self.params._params)
        self.params._params.update(cell.params._params)

    def reset(self) -> None:
        super().reset()
        for cell in self._cells:
            cell.reset()

    @property
    def state_info(self) -> StateInfo:
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, func: Any = None, **kwargs: Any) -> States:
        self._check_unmodified()
        return [state for cell in self._cells for state in cell.begin_state(func, **kwargs)]

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        weights = dict(args)
        for cell in self._cells:
            weights = cell.unpack_weights(weights)
        return weights

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        weights = dict(args)
        for cell in self._cells:
            weights = cell.pack_weights(weights)
        return weights

    def _split(self, states: States) -> list[States]:
        """The states, by cell."""
        parts, begin = [], 0
        for cell in self._cells:
            end = begin + len(cell.state_info)
            parts.append(states[begin:end])
            begin = end
        return parts


class SequentialRNNCell(_CellGroup):
    """A stack: each cell's outputs are the next one's inputs.

    Example:
        >>> stack = mx.rnn.SequentialRNNCell()
        >>> stack.add(mx.rnn.LSTMCell(256, prefix="l0_"))
        >>> stack.add(mx.rnn.DropoutCell(0.5))
    """

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__((), params, "SequentialRNNCell")

    def add(self, cell: BaseRNNCell) -> None:
        """Put a cell on top."""
        self._take_in(cell)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        self._counter += 1
        after: States = []
        for cell, own in zip(self._cells, self._split(states), strict=True):
            if isinstance(cell, BidirectionalCell):
                raise AssertionError("a stack with a BidirectionalCell cannot be stepped: use unroll")
            inputs, own = cell(inputs, own)
            after.extend(own)
        return inputs, after

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        self.reset()
        states = begin_state if begin_state is not None else self.begin_state()
        after: States = []
        last = len(self._cells) - 1
        for position, (cell, own) in enumerate(zip(self._cells, self._split(states), strict=True)):
            merge = merge_outputs if position == last else None
            inputs, own = cell.unroll(length, inputs, begin_state=own, layout=layout, merge_outputs=merge)
            after.extend(own)
        return inputs, after


class BidirectionalCell(_CellGroup):
    """Two cells, one from the first step to the last and one back; outputs side by side (Schuster and Paliwal, 1997).

    Args:
        l_cell, r_cell: the forward and the backward cell.
        params: shared with the cells; each its own when None.
        output_prefix: of the names of the outputs.
    """

    def __init__(
        self,
        l_cell: BaseRNNCell,
        r_cell: BaseRNNCell,
        params: RNNParams | None = None,
        output_prefix: str = "bi_",
    ) -> None:
        super().__init__((l_cell, r_cell), params, "BidirectionalCell")
        self._output_prefix = output_prefix

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        raise NotImplementedError(
            "BidirectionalCell: one step is not defined, for it reads the sequence from both ends: use unroll"
        )

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        self.reset()
        steps, axis = normalize_sequence(length, inputs, layout, False)
        states = begin_state if begin_state is not None else self.begin_state()
        l_begin, r_begin = self._split(states)
        l_cell, r_cell = self._cells
        l_outputs, l_states = l_cell.unroll(length, steps, l_begin, layout, merge_outputs)
        r_outputs, r_states = r_cell.unroll(length, list(reversed(steps)), r_begin, layout, merge_outputs)
        if merge_outputs is None:
            merge_outputs = isinstance(l_outputs, symbol.Symbol) and isinstance(r_outputs, symbol.Symbol)
            if not merge_outputs:
                l_outputs, _ = normalize_sequence(length, l_outputs, layout, False)
                r_outputs, _ = normalize_sequence(length, r_outputs, layout, False)
        after = [l_states, r_states]
        if merge_outputs:
            back = symbol.reverse(r_outputs, axis=axis)
            return symbol.Concat(l_outputs, back, dim=2, name=f"{self._output_prefix}out"), after
        outputs = [
            symbol.Concat(left, right, dim=1, name=f"{self._output_prefix}t{step}")
            for step, (left, right) in enumerate(zip(l_outputs, reversed(r_outputs), strict=True))
        ]
        return outputs, after
