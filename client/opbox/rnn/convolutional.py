"""Recurrent cells whose products are convolutions, for sequences of images: one step of each.

x (batch, channels, height, width), states (batch, num_hidden, height', width'), of the layout that the cell is made
with; height' and width' are what the convolution of the input leaves. i2h_weight (gates * num_hidden, channels,
*i2h_kernel) and h2h_weight (gates * num_hidden, num_hidden, *h2h_kernel) for NCHW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import symbol
from ..base import value_text
from .cell import BaseRNNCell, RNNParams, StateInfo, States, Symbol

__all__ = ["BaseConvRNNCell", "ConvGRUCell", "ConvLSTMCell", "ConvRNNCell"]


def _leaky(data: Symbol, **kwargs: Any) -> Symbol:
    return symbol.LeakyReLU(data, act_type="leaky", slope=0.2, **kwargs)


class BaseConvRNNCell(BaseRNNCell):
    """Base of the convolutional cells; a subclass defines `_gate_names` and `__call__`.

    Args:
        input_shape: of one step's input, with the batch's size, or 0 for it, where the layout has it.
        num_hidden: channels of a state.
        h2h_kernel, h2h_dilate: of the state's convolution, whose padding keeps the state's size: odd sizes only.
        i2h_kernel, i2h_stride, i2h_pad, i2h_dilate: of the input's convolution.
        i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer: of the parameters.
        activation: an `act_type` of Activation, or a function of a symbol; by default a leaky ReLU of slope 0.2.
        prefix, params: as of `BaseRNNCell`.
        conv_layout: "NCHW", or "NHWC".

    Raises:
        AssertionError: a kernel of the state with an even size.
        MXNetError: what the convolution refuses: another layout, an input of too few dimensions.
    """

    _default_prefix = ""
    _states = 1

    def __init__(
        self,
        input_shape: Sequence[int],
        num_hidden: int,
        h2h_kernel: Sequence[int] = (3, 3),
        h2h_dilate: Sequence[int] = (1, 1),
        i2h_kernel: Sequence[int] = (3, 3),
        i2h_stride: Sequence[int] = (1, 1),
        i2h_pad: Sequence[int] = (1, 1),
        i2h_dilate: Sequence[int] = (1, 1),
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        activation: Any = _leaky,
        prefix: str | None = None,
        params: RNNParams | None = None,
        conv_layout: str = "NCHW",
    ) -> None:
        super().__init__(self._default_prefix if prefix is None else prefix, params)
        if any(size % 2 == 0 for size in h2h_kernel):
            raise AssertionError(
                f"{type(self).__name__}: h2h_kernel: expected odd sizes, which keep the state's size, got "
                f"{value_text(h2h_kernel)}"
            )
        self._num_hidden = num_hidden
        self._layout = conv_layout
        self._activation = activation
        self._i2h: dict[str, Any] = {"kernel": i2h_kernel, "stride": i2h_stride, "pad": i2h_pad, "dilate": i2h_dilate}
        pad = tuple(dilate * (size - 1) // 2 for size, dilate in zip(h2h_kernel, h2h_dilate, strict=True))
        self._h2h: dict[str, Any] = {"kernel": h2h_kernel, "stride": (1, 1), "pad": pad, "dilate": h2h_dilate}
        layout: Any = conv_layout  # the operator says which there are
        after = symbol.Convolution(
            symbol.Variable("data"), num_filter=num_hidden, layout=layout, **self._i2h
        ).infer_shape(data=tuple(input_shape))[1]
        assert after is not None
        self._state_shape = (0, *after[0][1:])
        self._iW = self.params.get("i2h_weight", init=i2h_weight_initializer)
        self._hW = self.params.get("h2h_weight", init=h2h_weight_initializer)
        self._iB = self.params.get("i2h_bias", init=i2h_bias_initializer)
        self._hB = self.params.get("h2h_bias", init=h2h_bias_initializer)

    @property
    def state_info(self) -> StateInfo:
        return [{"shape": self._state_shape, "__layout__": self._layout} for _ in range(self._states)]

    def _step_name(self) -> str:
        self._counter += 1
        return f"{self._prefix}t{self._counter}_"

    def _convolutions(self, inputs: Symbol, states: States, name: str) -> tuple[Symbol, Symbol]:
        """All gates' convolutions of the input and of the first state."""
        width = self._num_hidden * len(self._gate_names)
        common: dict[str, Any] = {"num_filter": width, "layout": self._layout}
        state = self._checked(states)[0]
        i2h = symbol.Convolution(inputs, self._iW, self._iB, name=f"{name}i2h", **common, **self._i2h)
        h2h = symbol.Convolution(state, self._hW, self._hB, name=f"{name}h2h", **common, **self._h2h)
        return i2h, h2h

    def _gates(self, joint: Symbol, name: str) -> Any:
        """The gates' channels, one symbol each."""
        axis = self._layout.find("C")
        return symbol.SliceChannel(joint, num_outputs=len(self._gate_names), axis=axis, name=name)


class ConvRNNCell(BaseConvRNNCell):
    """h' = activation(W_i * x + b_i + W_h * h + b_h), with convolutions for products.

    Args: as of `BaseConvRNNCell`.

    Example:
        >>> cell = mx.rnn.ConvRNNCell(input_shape=(1, 3, 16, 10), num_hidden=10)
        >>> outputs, states = cell.unroll(3, inputs=[mx.sym.Variable(f"t{i}") for i in range(3)], merge_outputs=False)
    """

    _default_prefix = "ConvRNN_"

    @property
    def _gate_names(self) -> Sequence[str]:
        return ("",)

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        name = self._step_name()
        i2h, h2h = self._convolutions(inputs, states, name)
        output = self._get_activation(i2h + h2h, self._activation, name=f"{name}out")
        return output, [output]


class ConvLSTMCell(BaseConvRNNCell):
    """`LSTMCell` with convolutions for products (Shi et al., 2015), and `activation` for tanh.

    Args: as of `BaseConvRNNCell`.
    """

    _default_prefix = "ConvLSTM_"
    _states = 2

    @property
    def _gate_names(self) -> Sequence[str]:
        return ["_i", "_f", "_c", "_o"]

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        name = self._step_name()
        i2h, h2h = self._convolutions(inputs, states, name)
        gates = self._gates(i2h + h2h, f"{name}slice")
        in_gate = symbol.Activation(gates[0], act_type="sigmoid", name=f"{name}i")
        forget_gate = symbol.Activation(gates[1], act_type="sigmoid", name=f"{name}f")
        in_transform = self._get_activation(gates[2], self._activation, name=f"{name}c")
        out_gate = symbol.Activation(gates[3], act_type="sigmoid", name=f"{name}o")
        next_c = symbol.elemwise_add(forget_gate * states[1], in_gate * in_transform, name=f"{name}state")
        next_h = symbol.elemwise_mul(out_gate, self._get_activation(next_c, self._activation), name=f"{name}out")
        return next_h, [next_h, next_c]


class ConvGRUCell(BaseConvRNNCell):
    """`GRUCell` with convolutions for products, and `activation` for tanh.

    Args: as of `BaseConvRNNCell`.
    """

    _default_prefix = "ConvGRU_"

    @property
    def _gate_names(self) -> Sequence[str]:
        return ["_r", "_z", "_o"]

    def __call__(self, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        name = self._step_name()
        i2h, h2h = self._convolutions(inputs, states, name)
        i2h_r, i2h_z, i2h_n = self._gates(i2h, f"{name}_i2h_slice")
        h2h_r, h2h_z, h2h_n = self._gates(h2h, f"{name}_h2h_slice")
        reset_gate = symbol.Activation(i2h_r + h2h_r, act_type="sigmoid", name=f"{name}_r_act")
        update_gate = symbol.Activation(i2h_z + h2h_z, act_type="sigmoid", name=f"{name}_z_act")
        candidate = self._get_activation(i2h_n + reset_gate * h2h_n, self._activation, name=f"{name}_h_act")
        next_h = symbol.elemwise_add((1.0 - update_gate) * candidate, update_gate * states[0], name=f"{name}out")
        return next_h, [next_h]
