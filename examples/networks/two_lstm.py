"""Two stacked LSTMs of 49 steps, their last outputs joined: the program of two_lstm_infer_shape.py, for any `mx`."""

from typing import Any

__all__ = ["build", "shapes"]


def build(mx: Any, length: int = 49, hidden: int = 256) -> Any:
    """audio_data (batch, length, features) to (batch, 2 * hidden)."""
    inputs = mx.sym.Variable("audio_data")
    first = mx.rnn.LSTMCell(num_hidden=hidden, prefix="lstm1_")
    first_outputs, _ = first.unroll(length=length, inputs=inputs, merge_outputs=False)
    second = mx.rnn.LSTMCell(num_hidden=hidden, prefix="lstm2_")
    second_outputs, _ = second.unroll(length=length, inputs=first_outputs, merge_outputs=False)
    ends = [
        mx.sym.Reshape(data=outputs[-1], shape=(-1, hidden), name=f"rnn{number}_last_out_reshape")
        for number, outputs in ((1, first_outputs), (2, second_outputs))
    ]
    return mx.sym.Concat(*ends, num_args=2, dim=1, name="rnn_outputs")


def shapes(batch: int = 128, length: int = 49, features: int = 75) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs."""
    return {"audio_data": (batch, length, features)}
