"""RNN beside what its parameters mean: sequence lengths, dropout, the packed layout."""

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.rnn import scratch
from opbox_ops.rnn.layout import GATES, Sizes, weights
from tests.cases.case import Arg, Case
from tests.ops.harness import Run

HIDDEN, INPUTS = 3, 4


def _run(mode: str, data: Any, lengths: Any = None, *, is_train: bool = False, **attrs: Any) -> list[np.ndarray]:
    """Outputs of a net of two layers with fixed parameters."""
    sides = 2 if attrs.get("bidirectional") else 1
    sizes = Sizes(mode, 2, sides, HIDDEN, attrs.get("projection_size", HIDDEN), 0, 0, INPUTS, False)
    batch = data.shape[1]
    rng = np.random.default_rng(7)
    values = {
        "data": data,
        "parameters": rng.uniform(-0.8, 0.8, sizes.parameters),
        "state": np.repeat(rng.uniform(-1, 1, (2 * sides, 1, sizes.outputs)), batch, axis=1),
    }
    if mode == "lstm":
        values["state_cell"] = np.repeat(rng.uniform(-1, 1, (2 * sides, 1, HIDDEN)), batch, axis=1)
    if lengths is not None:
        values["sequence_length"] = np.asarray(lengths)
        attrs["use_sequence_length"] = True
    attrs = {"mode": mode, "state_size": HIDDEN, "num_layers": 2, "state_outputs": True, **attrs}
    case = Case("RNN", {name: array.shape for name, array in values.items()}, attrs, is_train=is_train)
    run = Run(case, "float64", backend_for("cpu"), values)
    return [np.array(out) for out in run.forward()[: run.visible]]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", GATES)
def test_lengths_are_sequences_cut_off(mode: str, bidirectional: bool) -> None:
    """Each sequence gives what it gives alone, cut to its length, and zeros beyond."""
    data, lengths = np.random.default_rng(1).uniform(-1, 1, (5, 3, INPUTS)), [5, 2, 3]
    together = _run(mode, data, lengths, bidirectional=bidirectional)
    for k, length in enumerate(lengths):
        alone = _run(mode, data[:length, k : k + 1], bidirectional=bidirectional)
        np.testing.assert_allclose(together[0][:length, k], alone[0][:, 0], rtol=1e-12)
        assert not together[0][length:, k].any()
        for last, own in zip(together[1:], alone[1:], strict=True):
            np.testing.assert_allclose(last[:, k], own[:, 0], rtol=1e-12)


def test_dropout_is_between_layers_and_in_training_only() -> None:
    data = np.random.default_rng(2).uniform(-1, 1, (4, 2, INPUTS))
    plain = _run("lstm", data)
    for same in (_run("lstm", data, p=0.5), _run("lstm", data, p=0.0, is_train=True)):
        np.testing.assert_array_equal(same[0], plain[0])
    # All dropped: the second layer sees nothing of data, the first one's last state is as it was.
    dropped, other = (_run("lstm", part, p=1.0, is_train=True) for part in (data, -data))
    np.testing.assert_array_equal(dropped[0], other[0])
    np.testing.assert_array_equal(dropped[1][0], plain[1][0])
    assert not np.allclose(dropped[0], plain[0])


def test_packed_parameters_are_weights_and_then_biases() -> None:
    sizes = Sizes("gru", 2, 2, 3, 3, 0, 0, 5, False)
    parts = weights(sizes, np.arange(sizes.parameters))
    assert [part.i2h.shape for part in parts] == [(9, 5), (9, 5), (9, 6), (9, 6)]
    assert parts[0].i2h[0, 0] == 0
    assert parts[0].h2h[0, 0] == 45
    assert parts[1].i2h[0, 0] == 45 + 27
    assert parts[0].i2h_bias[0] == sum(part.i2h.size + part.h2h.size for part in parts)
    assert parts[3].h2h_bias[-1] == sizes.parameters - 1


def test_a_clipped_cell_stays_in_its_bounds() -> None:
    data = np.full((6, 1, INPUTS), 3.0)
    cells = _run("lstm", data, lstm_state_clip_min=-0.1, lstm_state_clip_max=0.05)[2]
    assert cells.min() >= -0.1
    assert cells.max() <= 0.05
    bad = data.copy()
    bad[2] = np.nan
    assert np.isnan(_run("lstm", bad, lstm_state_clip_min=-1, lstm_state_clip_max=1)[2]).any()
    state = _run("lstm", bad, lstm_state_clip_min=-1, lstm_state_clip_max=1, lstm_state_clip_nan=True)[2]
    assert not np.isnan(state).any()


def _results(case: Case) -> dict[str, Any]:
    run = Run(case, "float64", backend_for("cpu"))
    outputs = {f"output {k}": np.array(out) for k, out in enumerate(run.forward()[: run.visible])}
    return outputs | run.backward()


@pytest.mark.parametrize("lengths", [None, [7, 1, 4]])
@pytest.mark.parametrize("mode", GATES)
def test_pieces_of_any_length_make_one_sequence(mode: str, lengths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs' products and gates' factors are worked out for several steps at a time, as the cache allows."""
    names = ["data", "parameters", "state", *(["state_cell"] if mode == "lstm" else [])]
    sizes = Sizes(mode, 2, 2, HIDDEN, HIDDEN, 7, 3, INPUTS, False)
    states = (4, 3, HIDDEN)
    shapes: list[Any] = [(7, 3, INPUTS), (sizes.parameters,), states, states]
    args: dict[str, Any] = dict(zip(names, shapes, strict=False))
    attrs = {"mode": mode, "state_size": HIDDEN, "num_layers": 2, "bidirectional": True, "state_outputs": True}
    if lengths is not None:
        args["sequence_length"] = Arg((3,), values=lengths, grad=False)
        attrs["use_sequence_length"] = True
    case = Case("RNN", args, attrs)
    whole = _results(case)
    step = 2 * (sizes.gates + HIDDEN) * 3 * 8
    for columns, cache in ((1, 1), (2 * 3, 3 * step)):
        monkeypatch.setattr(scratch, "_COLUMNS", columns)
        monkeypatch.setattr(scratch, "CACHE_BYTES", cache)
        for name, value in _results(case).items():
            np.testing.assert_allclose(value, whole[name], rtol=1e-12, atol=1e-12, err_msg=name)
