"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Positions of MXNet's gates (i, f, c, o; r, z, n) among ONNX's (i, o, f, c; z, r, h)."""
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@imports("LSTM", "GRU", "RNN")
def _(call: ImportCall) -> Sequence[Symbol]:
    kind, size = call.op_type, int(call.constant(2).shape[2])
    ways = {"forward": 1, "bidirectional": 2}.get(call.attr("direction"), 0)
    functions = call.attr("activations", [])
    is_relu = kind == "RNN" and functions == ["Relu"] * ways
    clipped = call.attr("clip") is not None
    if not ways or call.attr("layout") or clipped or call.attr("input_forget") or call.attr("hidden_size") != size:
        raise call.refuse("expected direction forward or bidirectional, layout 0, no clip, and R's size, got others")
    if functions and not is_relu and functions[: len(ACTIVATIONS[kind]) * ways] != ACTIVATIONS[kind] * ways:
        raise call.refuse(f"activations: expected {ACTIVATIONS[kind]} for each direction, got {functions}")
    call.without_effect("activation_alpha", "activation_beta")  # of functions that have none
    if kind == "GRU" and not call.attr("linear_before_reset"):
        raise call.refuse("linear_before_reset: expected 1, as MXNet's GRU multiplies, got 0")
    if call.has(4) or call.has(7):
        raise call.refuse("expected no lengths of sequences and no peepholes, got some")
    mode = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_relu" if is_relu else "rnn_tanh"}[kind]
    batch = call.shape(0)[1] or 0  # 0 is the size that follows from the data
    parts = [call.symbol(0), call.parameter("parameters", _packed(call, kind, size, ways))]
    states = (5, 6) if kind == "LSTM" else (5,)
    parts += [call.symbol(i) if call.has(i) else call.step("_zeros", shape=(ways, batch, size)) for i in states]
    outputs = list(
        call.make("RNN", *parts, state_size=size, num_layers=1, bidirectional=ways == 2, mode=mode, state_outputs=True)
    )
    wide = call.step("Reshape", outputs[0], shape=(0, 0, ways, size))
    return [call.step("transpose", wide, axes=(0, 2, 1, 3)), *outputs[1:]]


def _packed(call: ImportCall, kind: str, size: int, ways: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """MXNet's vector of all matrices and then all biases."""
    order, weight, again = list(GATES[kind]), call.constant(1), call.constant(2)
    bias = call.constant(3) if call.has(3) else np.zeros((ways, 2 * len(order) * size), weight.dtype)
    matrices = [matrix for way in range(ways) for matrix in (weight[way], again[way])]
    parts = [matrix.reshape(len(order), size, -1)[order] for matrix in matrices]
    parts += [bias[way].reshape(2, len(order), size)[:, order] for way in range(ways)]
    return np.concatenate([part.reshape(-1) for part in parts])
