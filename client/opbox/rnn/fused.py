"""FusedRNNCell: layers of recurrent cells in one operator, RNN, with its packed parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import initializer, symbol
from .. import ndarray as nd
from ..initializer.recurrent import GATE_NAMES, packed_parts
from .cell import BaseRNNCell, RNNParams, StateInfo, States, Symbol, normalize_sequence
from .cells import GRUCell, LSTMCell, RNNCell
from .modifiers import DropoutCell
from .stacks import BidirectionalCell, SequentialRNNCell

__all__ = ["FusedRNNCell"]


class FusedRNNCell(BaseRNNCell):
    """Layers of one kind of cell as one operator, over a whole sequence: faster than unrolled cells.

    Args:
        num_hidden: width of each state.
        num_layers: how many layers.
        mode: "rnn_relu", "rnn_tanh", "lstm" or "gru".
        bidirectional: whether each layer also runs backwards.
        dropout: share of a layer's outputs that is dropped on the way to the next one, in training.
        get_next_state: whether `unroll` returns the last states.
        forget_bias: of an lstm's forget gates, at initialization.
        prefix: of its names; `<mode>_` when None.
        params: as of `BaseRNNCell`.

    Example:
        >>> cell = mx.rnn.FusedRNNCell(256, num_layers=2, mode="lstm", prefix="lstm_")
        >>> outputs, _ = cell.unroll(49, mx.sym.Variable("data"), layout="TNC", merge_outputs=True)
    """

    def __init__(
        self,
        num_hidden: int,
        num_layers: int = 1,
        mode: str = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
        get_next_state: bool = False,
        forget_bias: float = 1.0,
        prefix: str | None = None,
        params: RNNParams | None = None,
    ) -> None:
        if mode not in GATE_NAMES:
            raise ValueError(f"mode: expected one of {', '.join(GATE_NAMES)}, got {mode!r}")
        super().__init__(f"{mode}_" if prefix is None else prefix, params)
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._mode: Any = mode  # GATE_NAMES has the ones that there are
        self._bidirectional = bidirectional
        self._dropout = dropout
        self._get_next_state = get_next_state
        self._directions = ["l", "r"] if bidirectional else ["l"]
        own = initializer.FusedRNN(None, num_hidden, num_layers, mode, bidirectional, forget_bias)
        self._parameter = self.params.get("parameters", init=own)

    @property
    def state_info(self) -> StateInfo:
        shape = (len(self._directions) * self._num_layers, 0, self._num_hidden)
        return [{"shape": shape, "__layout__": "LNC"} for _ in range(2 if self._mode == "lstm" else 1)]

    @property
    def _gate_names(self) -> Sequence[str]:
        return GATE_NAMES[self._mode]

    @property
    def _num_gates(self) -> int:
        return len(self._gate_names)

    def _parts(self, size: int) -> Any:
        return packed_parts(size, self._num_hidden, self._num_layers, self._mode, self._bidirectional, self._prefix)

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with the packed vector replaced by one array a layer, direction and gate."""
        arrays = dict(args)
        packed = self._take(arrays, f"{self._prefix}parameters")
        for name, start, shape in self._parts(packed.size):
            stop = start + shape[0] * (shape[1] if len(shape) > 1 else 1)
            arrays[name] = packed[start:stop].reshape(shape).copy()
        return arrays

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of `unpack_weights`; also for the parameters of the `unfuse`d cells, unpacked."""
        arrays = dict(args)
        h, sides = self._num_hidden, len(self._directions)
        first = self._take(dict(arrays), f"{self._prefix}l0_i2h{self._gate_names[0]}_weight")
        upper = (self._num_layers - 1) * (h + sides * h + 2)
        size = sides * h * self._num_gates * (first.shape[1] + h + 2 + upper)
        parts = [self._take(arrays, name).reshape((-1,)) for name, _, _ in self._parts(size)]
        arrays[f"{self._prefix}parameters"] = nd.concatenate(parts)
        return arrays

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        raise NotImplementedError("FusedRNNCell: one step is not defined, for it is one operator: use unroll")

    def unroll(
        self,
        length: int,
        inputs: Any,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
    ) -> tuple[Any, States]:
        """Apply all layers to a sequence; see `BaseRNNCell.unroll`. The last states are [] without get_next_state."""
        self.reset()
        inputs, axis = normalize_sequence(length, inputs, layout, True)
        if axis == 1:
            warnings.warn(
                "FusedRNNCell: layout 'NTC' is transposed to 'TNC' and back: give 'TNC', which is faster",
                stacklevel=2,
            )
            inputs = symbol.swapaxes(inputs, dim1=0, dim2=1)
        states = begin_state if begin_state is not None else self.begin_state()
        rnn = symbol.RNN(
            data=inputs,
            parameters=self._parameter,
            state_size=self._num_hidden,
            num_layers=self._num_layers,
            bidirectional=self._bidirectional,
            p=self._dropout,
            state_outputs=self._get_next_state,
            mode=self._mode,
            name=f"{self._prefix}rnn",
            **dict(zip(("state", "state_cell"), states, strict=False)),
        )
        outputs, after = rnn, []
        if self._get_next_state:
            outputs, after = rnn[0], [rnn[k] for k in range(1, 1 + len(states))]
        if axis == 1:
            outputs = symbol.swapaxes(outputs, dim1=0, dim2=1)
        outputs, _ = normalize_sequence(length, outputs, layout, merge_outputs)
        return outputs, after

    def unfuse(self) -> SequentialRNNCell:
        """The same layers as a stack of cells, whose packed weights are this cell's, unpacked.

        Example:
            >>> stack = cell.unfuse()
            >>> args = stack.pack_weights(cell.unpack_weights(args))
        """
        make: dict[str, Callable[[str], BaseRNNCell]] = {
            "rnn_relu": lambda prefix: RNNCell(self._num_hidden, activation="relu", prefix=prefix),
            "rnn_tanh": lambda prefix: RNNCell(self._num_hidden, activation="tanh", prefix=prefix),
            "lstm": lambda prefix: LSTMCell(self._num_hidden, prefix=prefix),
            "gru": lambda prefix: GRUCell(self._num_hidden, prefix=prefix),
        }
        stack = SequentialRNNCell()
        for layer in range(self._num_layers):
            cells = [make[self._mode](f"{self._prefix}{side}{layer}_") for side in self._directions]
            if self._bidirectional:
                stack.add(BidirectionalCell(cells[0], cells[1], output_prefix=f"{self._prefix}bi_l{layer}_"))
            else:
                stack.add(cells[0])
            if self._dropout > 0 and layer != self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return stack
