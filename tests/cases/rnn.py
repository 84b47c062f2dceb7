"""RNN and _rnn_param_concat."""

from typing import Any

from .case import FLOATS, Arg, Case

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def _rnn(mode: str, data: tuple[int, ...] = (4, 2, 5), hidden: int = 3, layers: int = 1, **attrs: Any) -> Case:
    own = {key: attrs.pop(key) for key in ("oracle", "why", "random", "lengths", "is_train", "grad") if key in attrs}
    _, batch, inputs = data
    directions = 2 if attrs.get("bidirectional") else 1
    outputs = attrs.get("projection_size") or hidden
    width, size = inputs, 0
    for _ in range(layers):
        size += directions * (GATES[mode] * hidden * (width + outputs + 2))
        size += directions * (outputs * hidden if outputs != hidden else 0)
        width = directions * outputs
    args: dict[str, Any] = {
        "data": data,
        "parameters": Arg((size,), low=-0.7, high=0.7),
        "state": (layers * directions, batch, outputs),
    }
    if mode == "lstm":
        args["state_cell"] = (layers * directions, batch, hidden)
    if "lengths" in own:
        args["sequence_length"] = Arg((batch,), values=own.pop("lengths"), grad=False)
        attrs["use_sequence_length"] = True
    why = own.pop("why", "sums over steps")
    attrs = {"mode": mode, "state_size": hidden, "num_layers": layers, **attrs}
    return Case("RNN", args, attrs, FLOATS, rtol=1e-4, atol=1e-5, zero_size=False, why=why, **own)


CUDNN = {"oracle": False, "why": "cuDNN only in MXNet: its CPU build passes the parameter over"}
PROJECTED = {"oracle": False, "why": "MXNet trains no lstm with projection on the CPU"}

CASES = [
    *(_rnn(mode) for mode in GATES),
    *(_rnn(mode, layers=2, bidirectional=True, state_outputs=True) for mode in GATES),
    _rnn("lstm", (3, 4, 2), 5, 3, state_outputs=True),
    _rnn("gru", (1, 3, 2), 4, 2, state_outputs=True, p=0.0),
    _rnn("rnn_tanh", (5, 1, 1), 1, bidirectional=True),
    _rnn("lstm", layers=2, projection_size=2, state_outputs=True, **PROJECTED),
    _rnn("lstm", layers=2, projection_size=2, state_outputs=True, bidirectional=True, **PROJECTED),
    *(
        _rnn("lstm", layers=2, projection_size=2, bidirectional=both, state_outputs=True, is_train=False, grad=False)
        for both in (False, True)
    ),
    _rnn("lstm", state_outputs=True, lstm_state_clip_min=-0.25, lstm_state_clip_max=0.25, **CUDNN),
    _rnn(
        "lstm",
        state_outputs=True,
        lstm_state_clip_min=-0.5,
        lstm_state_clip_max=0.5,
        lstm_state_clip_nan=True,
        projection_size=2,
        lengths=[4, 2],
        **CUDNN,
    ),
    *(
        _rnn(mode, (4, 3, 5), layers=2, bidirectional=True, state_outputs=True, lengths=[2, 4, 1], **CUDNN)
        for mode in GATES
    ),
    _rnn("gru", (4, 3, 5), state_outputs=True, lengths=[3, 0, 4], **CUDNN),
    _rnn("lstm", layers=2, p=0.5, random=True, state_outputs=True),
    Case("_rnn_param_concat", {"arg0": (3,), "arg1": (4,), "arg2": (2,)}, {"num_args": 3, "dim": 0}),
    Case("_rnn_param_concat", {"arg0": (2, 3), "arg1": (2, 1)}, {"num_args": 2}),
]
