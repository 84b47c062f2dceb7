"""An LSTM over a sequence, unrolled: by hand, and by mx.rnn.LSTMCell. Both compute the same.

gates = W x + b + U h + c        in, forget, next, out = gates in four
state = forget * state + in * tanh(next)        h = out * tanh(state)
"""

from typing import Any

__all__ = ["build", "build_with_cell", "shapes", "shapes_by_hand"]


def _step(mx: Any, x: Any, hidden: Any, state: Any, weights: dict[str, Any], width: int, name: str) -> tuple[Any, Any]:
    from_input = mx.sym.FullyConnected(
        x, weight=weights["i2h_weight"], bias=weights["i2h_bias"], num_hidden=4 * width, name=f"{name}_i2h"
    )
    from_before = mx.sym.FullyConnected(
        hidden, weight=weights["h2h_weight"], bias=weights["h2h_bias"], num_hidden=4 * width, name=f"{name}_h2h"
    )
    gates = mx.sym.SliceChannel(from_input + from_before, num_outputs=4, name=f"{name}_slice")
    enter = mx.sym.Activation(gates[0], act_type="sigmoid", name=f"{name}_i")
    forget = mx.sym.Activation(gates[1], act_type="sigmoid", name=f"{name}_f")
    candidate = mx.sym.Activation(gates[2], act_type="tanh", name=f"{name}_c")
    leave = mx.sym.Activation(gates[3], act_type="sigmoid", name=f"{name}_o")
    state = forget * state + enter * candidate
    return leave * mx.sym.Activation(state, act_type="tanh", name=f"{name}_state"), state


def build(mx: Any, length: int = 49, hidden: int = 256, num_classes: int = 10) -> Any:
    """data (batch, length, features), the states begin_h and begin_c (batch, hidden), to (batch, num_classes)."""
    weights = {k: mx.sym.Variable(f"lstm_{k}") for k in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}
    steps = mx.sym.SliceChannel(mx.sym.Variable("data"), num_outputs=length, axis=1, squeeze_axis=True, name="steps")
    h, c = mx.sym.Variable("begin_h"), mx.sym.Variable("begin_c")
    for t in range(length):
        h, c = _step(mx, steps[t], h, c, weights, hidden, f"t{t}")
    x = mx.sym.FullyConnected(h, num_hidden=num_classes, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def build_with_cell(mx: Any, length: int = 49, hidden: int = 256, num_classes: int = 10) -> Any:
    """The same through mx.rnn.LSTMCell, which begins with states of zeros."""
    cell = mx.rnn.LSTMCell(num_hidden=hidden, prefix="lstm_")
    outputs, _ = cell.unroll(length, inputs=mx.sym.Variable("data"), merge_outputs=False)
    x = mx.sym.FullyConnected(outputs[-1], num_hidden=num_classes, name="fc")
    return mx.sym.SoftmaxOutput(x, name="softmax")


def shapes(batch: int = 32, length: int = 49, features: int = 128) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs of `build_with_cell`."""
    return {"data": (batch, length, features)}


def shapes_by_hand(
    batch: int = 32, length: int = 49, features: int = 128, hidden: int = 256
) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs of `build`: its first states are inputs too."""
    return {**shapes(batch, length, features), "begin_h": (batch, hidden), "begin_c": (batch, hidden)}
