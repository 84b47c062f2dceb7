"""RNNCell, LSTMCell, GRUCell: one step of the three classic recurrent layers.

x (batch, input), h and c (batch, num_hidden); i2h_weight (gates * num_hidden, input), h2h_weight
(gates * num_hidden, num_hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import initializer, symbol
from .cell import BaseRNNCell, RNNParams, StateInfo, States, Symbol

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]


class _GatedCell(BaseRNNCell):
    """Cells of one hidden size, whose gates come out of one product with the input and one with the state."""

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None, i2h_bias: Any = None) -> None:
        super().__init__(prefix, params)
        self._num_hidden = num_hidden
        self._iW = self.params.get("i2h_weight")
        self._iB = self.params.get("i2h_bias", **({"init": i2h_bias} if i2h_bias is not None else {}))
        self._hW = self.params.get("h2h_weight")
        self._hB = self.params.get("h2h_bias")

    @property
    def state_info(self) -> StateInfo:
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"}]

    def _products(self, inputs: Symbol, state: Symbol, name: str) -> tuple[Symbol, Symbol]:
        width = self._num_hidden * len(self._gate_names)
        i2h = symbol.FullyConnected(data=inputs, weight=self._iW, bias=self._iB, num_hidden=width, name=f"{name}i2h")
        h2h = symbol.FullyConnected(data=state, weight=self._hW, bias=self._hB, num_hidden=width, name=f"{name}h2h")
        return i2h, h2h

    def _step_name(self) -> str:
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"


class RNNCell(_GatedCell):
    """h' = activation(W_i x + b_i + W_h h + b_h) (Elman, 1990).

    Args:
        num_hidden: width of the state.
        activation: an `act_type` of Activation, or a function of a symbol.
        prefix, params: as of `BaseRNNCell`.
    """

    def __init__(
        self, num_hidden: int, activation: Any = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    @property
    def _gate_names(self) -> Sequence[str]:
        return ("",)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        name = self._step_name()
        i2h, h2h = self._products(inputs, self._checked(states)[0], name)
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


class LSTMCell(_GatedCell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gates by Gers et al., 2000).

    i, f, o = sigmoid, g = tanh of the four parts (i, f, c, o) of W_i x + b_i + W_h h + b_h;
    c' = f c + i g; h' = o tanh(c').

    Args:
        num_hidden: width of the states.
        prefix, params: as of `BaseRNNCell`.
        forget_bias: added to the forget gate's bias at initialization (Jozefowicz et al., 2015).

    Example:
        >>> cell = mx.rnn.LSTMCell(num_hidden=256, prefix="lstm1_")
        >>> outputs, states = cell.unroll(49, inputs=mx.sym.Variable("data"))
    """

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, initializer.LSTMBias(forget_bias=forget_bias))

    @property
    def state_info(self) -> StateInfo:
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(2)]

    @property
    def _gate_names(self) -> Sequence[str]:
        return ["_i", "_f", "_c", "_o"]

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        name = self._step_name()
        i2h, h2h = self._products(inputs, self._checked(states)[0], name)
        gates = symbol.SliceChannel(i2h + h2h, num_outputs=4, name=f"{name}slice")
        in_gate = symbol.Activation(gates[0], act_type="sigmoid", name=f"{name}i")
        forget_gate = symbol.Activation(gates[1], act_type="sigmoid", name=f"{name}f")
        in_transform = symbol.Activation(gates[2], act_type="tanh", name=f"{name}c")
        out_gate = symbol.Activation(gates[3], act_type="sigmoid", name=f"{name}o")
        next_c = symbol.elemwise_add(forget_gate * states[1], in_gate * in_transform, name=f"{name}state")
        next_h = symbol.elemwise_mul(out_gate, symbol.Activation(next_c, act_type="tanh"), name=f"{name}out")
        return next_h, [next_h, next_c]


class GRUCell(_GatedCell):
    """Gated recurrent unit (Cho et al., 2014), with the reset gate after the product, as cuDNN has it.

    r, z = sigmoid of the first two parts of W_i x + b_i + W_h h + b_h; n = tanh(x_n + r h_n) of the third parts;
    h' = (1 - z) n + z h.

    Args:
        num_hidden: width of the state.
        prefix, params: as of `BaseRNNCell`.
    """

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    @property
    def _gate_names(self) -> Sequence[str]:
        return ["_r", "_z", "_o"]

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        name = self._step_name()
        before = self._checked(states)[0]
        # MXNet's names of these nodes have the underscore twice.
        i2h, h2h = self._products(inputs, before, f"{name}_")
        i2h_r, i2h_z, i2h_n = symbol.SliceChannel(i2h, num_outputs=3, name=f"{name}_i2h_slice")
        h2h_r, h2h_z, h2h_n = symbol.SliceChannel(h2h, num_outputs=3, name=f"{name}_h2h_slice")
        reset_gate = symbol.Activation(i2h_r + h2h_r, act_type="sigmoid", name=f"{name}_r_act")
        update_gate = symbol.Activation(i2h_z + h2h_z, act_type="sigmoid", name=f"{name}_z_act")
        candidate = symbol.Activation(i2h_n + reset_gate * h2h_n, act_type="tanh", name=f"{name}_h_act")
        next_h = symbol.elemwise_add((1.0 - update_gate) * candidate, update_gate * before, name=f"{name}out")
        return next_h, [next_h]
