"""Cells that change another cell's outputs or states: dropout, zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import symbol
from ..base import value_text
from .cell import BaseRNNCell, RNNParams, StateInfo, States, Symbol, normalize_sequence
from .stacks import BidirectionalCell

__all__ = ["DropoutCell", "ModifierCell", "ResidualCell", "ZoneoutCell"]


class DropoutCell(BaseRNNCell):
    """Dropout on its inputs, for use in a stack.

    Args:
        dropout: the probability of dropping an element.
        prefix, params: as of `BaseRNNCell`.
    """

    def __init__(self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        if not isinstance(dropout, (int, float)):
            raise AssertionError(f"dropout: expected a probability, got {dropout!r}")
        self.dropout = dropout

    @property
    def state_info(self) -> StateInfo:
        return []

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        if self.dropout > 0:
            inputs = symbol.Dropout(data=inputs, p=self.dropout)
        return inputs, states

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        self.reset()
        inputs, _ = normalize_sequence(length, inputs, layout, merge_outputs)
        if isinstance(inputs, symbol.Symbol):
            return self(inputs, [])
        return super().unroll(length, inputs, begin_state, layout, merge_outputs)


class ModifierCell(BaseRNNCell):
    """Base of cells around another, whose parameters and states they share; the cell inside is no longer called."""

    def __init__(self, base_cell: BaseRNNCell) -> None:
        if not isinstance(base_cell, BaseRNNCell):
            raise TypeError(f"{type(self).__name__}: base_cell: expected a cell, got {value_text(base_cell)}")
        base_cell._modified = True
        self.base_cell = base_cell
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.base_cell.reset()

    @property
    def params(self) -> RNNParams:
        self._own_params = False
        return self.base_cell.params

    @property
    def state_info(self) -> StateInfo:
        return self.base_cell.state_info

    def begin_state(self, func: Any = None, **kwargs: Any) -> States:
        self._check_unmodified()
        self.base_cell._modified = False
        try:
            return self.base_cell.begin_state(func, **kwargs)
        finally:
            self.base_cell._modified = True

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return self.base_cell.pack_weights(args)


class ZoneoutCell(ModifierCell):
    """Keep each output and state as it was with a probability, in training (Krueger et al., 2016).

    Args:
        base_cell: the cell; not a bidirectional one.
        zoneout_outputs, zoneout_states: the probabilities.
    """

    def __init__(self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        if isinstance(base_cell, BidirectionalCell):
            raise AssertionError(
                "ZoneoutCell: expected a cell that can be stepped, got a BidirectionalCell: "
                "put a ZoneoutCell around each of its cells"
            )
        super().__init__(base_cell)
        self.zoneout_outputs = zoneout_outputs
        self.zoneout_states = zoneout_states
        self.prev_output: Symbol | None = None

    def reset(self) -> None:
        super().reset()
        self.prev_output = None

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        output, after = self.base_cell(inputs, states)
        if self.zoneout_outputs:
            before = self.prev_output if self.prev_output is not None else symbol.zeros((0, 0))
            output = symbol.where(_mask(self.zoneout_outputs, output), output, before)
        if self.zoneout_states:
            after = [
                symbol.where(_mask(self.zoneout_states, new), new, old) for new, old in zip(after, states, strict=True)
            ]
        self.prev_output = output
        return output, after


def _mask(p: float, like: Symbol) -> Symbol:
    """Ones, of which a share `p` is 0 in training."""
    return symbol.Dropout(symbol.ones_like(like), p=p)


class ResidualCell(ModifierCell):
    """Add the inputs to the outputs (He et al., 2015; Wu et al., 2016); they must be equally wide."""

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        output, after = self.base_cell(inputs, states)
        return _plus(output, inputs), after

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        self.reset()
        self.base_cell._modified = False
        try:
            outputs, states = self.base_cell.unroll(length, inputs, begin_state, layout, merge_outputs)
        finally:
            self.base_cell._modified = True
        merged = isinstance(outputs, symbol.Symbol)
        inputs, _ = normalize_sequence(length, inputs, layout, merged)
        if merged:
            return _plus(outputs, inputs), states
        return [_plus(output, one) for output, one in zip(outputs, inputs, strict=True)], states


def _plus(output: Symbol, inputs: Symbol) -> Symbol:
    return symbol.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")
