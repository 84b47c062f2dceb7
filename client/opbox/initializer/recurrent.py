"""The initializer of packed recurrent parameters, and where a layer's weights are in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ndarray import NDArray
from .initializer import InitDesc, Initializer, create, register

__all__ = ["GATE_NAMES", "FusedRNN", "packed_parts"]

GATE_NAMES = {
    "rnn_relu": ("",),
    "rnn_tanh": ("",),
    "lstm": ("_i", "_f", "_c", "_o"),
    "gru": ("_r", "_z", "_o"),
}


def packed_parts(
    size: int, num_hidden: int, num_layers: int, mode: str, bidirectional: bool, prefix: str = ""
) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """The parts of the operator RNN's packed parameters: name, where it starts, shape; one a gate, in their order.

    All weights come first, then all biases; of each layer the direction "l" and, if bidirectional, "r":
    `<prefix>l0_i2h_f_weight` is (num_hidden, inputs) of the forget gate of the first layer.

    Raises:
        ValueError: no size of the inputs makes `size` parameters.
    """
    h, gates, sides = num_hidden, GATE_NAMES[mode], "lr" if bidirectional else "l"
    upper = (num_layers - 1) * (h + len(sides) * h + 2)
    inputs, rest = divmod(size, len(sides) * h * len(gates))
    inputs -= upper + h + 2
    if rest or inputs < 1:
        raise ValueError(
            f"parameters: expected as many as {num_layers} layers of {mode} with {h} hidden elements have, got {size}"
        )
    start = 0
    for kind in ("weight", "bias"):
        for layer in range(num_layers):
            for side in sides:
                for group in ("i2h", "h2h"):
                    width = h if group == "h2h" else inputs if layer == 0 else len(sides) * h
                    shape = (h, width) if kind == "weight" else (h,)
                    for gate in gates:
                        yield f"{prefix}{side}{layer}_{group}{gate}_{kind}", start, shape
                        start += h * width if kind == "weight" else h


@register
class FusedRNN(Initializer):
    """The packed parameters of a FusedRNNCell, each gate's weights and biases as `init` fills them.

    Args:
        init: an initializer, or one as `dumps` writes it; None for the one that is asked for all parameters.
        num_hidden, num_layers, mode, bidirectional: as of `FusedRNNCell`.
        forget_bias: of the forget gates of an lstm.
    """

    def __init__(
        self,
        init: Any,
        num_hidden: int,
        num_layers: int,
        mode: str,
        bidirectional: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        inner = create(init) if isinstance(init, str) else init
        super().__init__(
            init=inner.dumps() if inner is not None else None,
            num_hidden=num_hidden,
            num_layers=num_layers,
            mode=mode,
            bidirectional=bidirectional,
            forget_bias=forget_bias,
        )
        self._init = inner
        self._sizes = (num_hidden, num_layers, mode, bidirectional)
        self._forget_bias = forget_bias

    def _init_weight(self, name: str, arr: NDArray) -> None:
        outer = getattr(name, "global_init", None)
        for part, start, shape in packed_parts(arr.size, *self._sizes):
            stop = start + shape[0] * (shape[1] if len(shape) > 1 else 1)
            values = arr[start:stop].reshape(shape)
            if self._sizes[2] == "lstm" and part.endswith("_f_bias"):
                values[:] = self._forget_bias
                continue
            fill = self._init if self._init is not None else outer
            if fill is None or isinstance(fill, FusedRNN):
                raise ValueError(f"FusedRNN: {name}: expected an initializer for the gates' weights, got none")
            fill(InitDesc(part, global_init=outer), values)
