"""RNN: the fused recurrent layers, one ONNX node for each layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..exporting import ExportCall, exports, refuse

GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_relu": (0,), "rnn_tanh": (0,)}
"""Positions of ONNX's gates (i, o, f, c; z, r, h) among MXNet's (i, f, c, o; r, z, n)."""
OP_TYPES = {"lstm": "LSTM", "gru": "GRU", "rnn_relu": "RNN", "rnn_tanh": "RNN"}


@exports("RNN", without_effect=("p", "lstm_state_clip_nan"))
def _(call: ExportCall) -> list[str]:
    for key in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max", "use_sequence_length"):
        if call.attr(key) is not None and call.attr(key) is not False:
            raise refuse(call, f"{key}: expected it not to be set, got {call.attr(key)}: ONNX's layers lack it")
    mode, size, layers = call.attr("mode"), int(call.attr("state_size")), int(call.attr("num_layers"))
    ways = 2 if call.attr("bidirectional") else 1
    weights = _weights(call.values(1), mode, size, layers, ways, call.size(0, 2))
    attrs: dict[str, Any] = {"hidden_size": size, "direction": "bidirectional" if ways == 2 else "forward"}
    if mode == "gru":
        attrs["linear_before_reset"] = 1
    if mode == "rnn_relu":
        attrs["activations"] = ["Relu"] * ways
    data, lasts, cells = call.inputs[0], [], []
    for layer, arrays in enumerate(weights):
        states = call.inputs[2 : 4 if mode == "lstm" else 3]
        starts = [_part(call, value, layer * ways, ways) if value else "" for value in states]  # "" begins with zeros
        parts = [call.constant(array) for array in arrays]
        outputs = call.emit_all(OP_TYPES[mode], data, *parts, "", *starts, outputs=3 if mode == "lstm" else 2, **attrs)
        transposed = call.emit("Transpose", outputs[0], perm=[0, 2, 1, 3])
        data = call.emit("Reshape", transposed, call.ints([0, 0, -1]))
        lasts.append(outputs[1])
        cells += outputs[2:]
    if not call.attr("state_outputs"):
        return [data]
    return [data, *(_joined(call, values) for values in (lasts, cells) if values)]


def _part(call: ExportCall, states: str, first: int, count: int) -> str:
    return call.emit("Slice", states, call.ints([first]), call.ints([first + count]), call.ints([0]))


def _joined(call: ExportCall, values: list[str]) -> str:
    return call.emit("Concat", *values, axis=0) if len(values) > 1 else call.emit("Identity", values[0])


def _weights(
    packed: np.ndarray[Any, Any], mode: str, size: int, layers: int, ways: int, width: int
) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """W, R and B of ONNX for each layer, from MXNet's vector: all matrices, then all biases."""
    order, place = GATES[mode], 0

    def cut(columns: int | None) -> np.ndarray[Any, Any]:
        nonlocal place
        shape = (len(order), size) if columns is None else (len(order), size, columns)
        count = int(np.prod(shape))
        part = packed.reshape(-1)[place : place + count].reshape(shape)[list(order)]
        place += count
        return part.reshape(-1) if columns is None else part.reshape(-1, columns)

    matrices = []
    for layer in range(layers):
        inputs = width if layer == 0 else size * ways
        matrices.append([(cut(inputs), cut(size)) for _ in range(ways)])
    biases = [[np.concatenate([cut(None), cut(None)]) for _ in range(ways)] for _ in range(layers)]
    return [
        (np.stack([w for w, _ in pairs]), np.stack([r for _, r in pairs]), np.stack(bias))
        for pairs, bias in zip(matrices, biases, strict=True)
    ]
