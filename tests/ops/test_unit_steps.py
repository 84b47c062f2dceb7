"""Steps of recurrent cells by the matrix unit, and by its instructions in C, beside the definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.cpu.algorithms import blocked_product as blocks
from opbox_ops.cpu.algorithms.unit_steps import (
    TEXT,
    UnitSteps,
    compiled,
    fits,
    packed_numbers,
    scratch_numbers,
    unit_steps,
)
from opbox_ops.cpu.computes import recurrent
from opbox_ops.rnn.layout import GATES, Sizes
from tests.machine import has_matrix_unit, needs_avx512_words, needs_matrix_unit
from tests.matrix_unit_in_c import with_unit_in_c

from .recurrent_script import recurrent_script
from .thread_counts import assert_same_bits

Arrays = dict[str, Any]

pytestmark = needs_avx512_words

SHAPES = [(128, 32), (160, 64), (150, 20), (129, 33), (200, 8)]
"""Units and samples: whole blocks, and such that the last is not full, nor its last vector."""
MAX_ERROR = 3e-6
"""Of a state or gate: some roundings of float32 at 1, and twice as many of the steps before."""
STEPS = 5


@pytest.fixture(params=["the unit", "in C"])
def steps(request: pytest.FixtureRequest) -> UnitSteps:
    if request.param == "the unit" and not has_matrix_unit():
        pytest.skip("no matrix unit")
    functions = unit_steps() if request.param == "the unit" else compiled(with_unit_in_c(TEXT))
    assert functions is not None
    return functions


def drawn(mode: str, hidden: int, batch: int) -> Arrays:
    """A direction's arrays, and its weight."""
    sizes, rng = Sizes(mode, 1, 1, hidden, hidden, STEPS, batch, 1, False), np.random.default_rng(hidden)

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape).astype(np.float32)

    gates, extra = sizes.gates, mode in ("lstm", "gru")
    return {
        "weight": numbers(gates, hidden) / np.float32(hidden**0.5),
        "packed": np.full(packed_numbers(sizes), np.nan, np.float32),
        "x": numbers(gates, STEPS, batch),
        "bias": numbers(gates),
        "of_new": numbers(hidden),
        "before": numbers(batch, hidden + 3)[:, :hidden] / 2,
        "cell_before": numbers(hidden, batch),
        "valid": None,
        "gates": np.full((STEPS, gates, batch), np.nan, np.float32),
        "extra": np.full((STEPS, hidden, batch), np.nan, np.float32) if extra else None,
        "states": np.full((STEPS, batch, 2 * hidden), np.nan, np.float32)[..., hidden:],
        "scratch": np.full(scratch_numbers(sizes), np.nan, np.float32),
    }


def run(steps: UnitSteps, mode: str, arrays: Arrays, times: range, begin: int = 0) -> None:
    steps.pack(mode, arrays["weight"], arrays["packed"])
    steps.run(mode, {name: array for name, array in arrays.items() if name != "weight"}, times, begin)


def drawn_back(steps: UnitSteps, mode: str, hidden: int, batch: int, forward: range) -> Arrays:
    """What `back` takes, of a direction that `run` has computed in that order; and its weight."""
    sizes, rng = Sizes(mode, 1, 1, hidden, hidden, STEPS, batch, 1, False), np.random.default_rng(hidden)
    arrays = drawn(mode, hidden, batch)
    run(steps, mode, arrays, forward)

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape).astype(np.float32)

    written = {
        name: np.full((count, STEPS, batch), np.nan, np.float32)
        for name, count in (("ggates", sizes.gates), ("gagain", hidden))
    }
    return written | {
        "weight": arrays["weight"],
        "packed": np.full(packed_numbers(sizes), np.nan, np.float32),
        "gates": arrays["gates"],
        "extra": arrays["extra"],
        "states": arrays["states"],
        "first": arrays["before"],
        "first_cell": arrays["cell_before"],
        "gout": numbers(STEPS, batch, hidden + 5)[..., :hidden],
        "gstate": numbers(batch, hidden),
        "gcell": numbers(hidden, batch),
        "scratch": np.full(scratch_numbers(sizes, back=True), np.nan, np.float32),
    }


def run_back(steps: UnitSteps, mode: str, arrays: Arrays, times: range) -> None:
    steps.pack(mode, arrays["weight"], arrays["packed"], back=True)
    steps.back(mode, {name: array for name, array in arrays.items() if name != "weight"}, times)


def expected_back(mode: str, arrays: Arrays, times: range) -> Arrays:
    """The gradients that `back` writes, as `rnn.gradients` has them, before it has run."""
    wide = {name: None if array is None else array.astype(np.float64) for name, array in arrays.items()}
    gstate, gcell = wide["gstate"].T, wide["gcell"]
    out = {"ggates": np.full_like(wide["ggates"], np.nan), "gagain": np.full_like(wide["gagain"], np.nan)}
    for t in times:
        total, past = wide["gout"][t].T + gstate, t + times.step
        inside = 0 <= past < STEPS
        if mode == "lstm":
            into, keep, new, shown = np.split(wide["gates"][t], 4)
            before = wide["extra"][past] if inside else wide["first_cell"]
            cell = np.tanh(wide["extra"][t])
            gsum = gcell + (1 - cell**2) * shown * total
            factors = (1 - into) * into * new * gsum, (1 - keep) * keep * before * gsum, (1 - new**2) * into * gsum
            gates = read = np.concatenate([*factors, (1 - shown) * shown * cell * total])
            gcell, passed = gsum * keep, 0
        elif mode == "gru":
            reset, update, new = np.split(wide["gates"][t], 3)
            before = (wide["states"][past] if inside else wide["first"]).T
            slope = (1 - new**2) * (1 - update) * total
            both = [(1 - reset) * reset * wide["extra"][t] * slope, (1 - update) * update * (before - new) * total]
            out["gagain"][:, t], passed = slope * reset, total * update
            gates, read = np.concatenate([*both, slope]), np.concatenate([*both, slope * reset])
        else:
            state = wide["gates"][t]
            gates = read = total * (1 - state**2 if mode == "rnn_tanh" else state > 0)
            passed = 0
        out["ggates"][:, t] = gates
        gstate = wide["weight"].T @ read + passed
    return out | {"gstate": gstate.T, **({"gcell": gcell} if mode == "lstm" else {})}


def expected(mode: str, arrays: Arrays, times: range) -> Arrays:
    """States, gates and extras, as `rnn.steps` has them."""
    wide = {name: None if array is None else array.astype(np.float64) for name, array in arrays.items()}
    state, cell, out = wide["before"].T, wide["cell_before"], {name: {} for name in ("states", "gates", "extra")}

    def sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return (1 + np.tanh(x / 2)) / 2

    for t in times:
        x, product = wide["x"][:, t] + wide["bias"][:, None], wide["weight"] @ state
        before, cell_before = state, cell
        if mode == "lstm":
            into, keep, new, shown = np.split(x + product, 4)
            gates = [sigmoid(into), sigmoid(keep), np.tanh(new), sigmoid(shown)]
            extra = cell = gates[1] * cell + gates[0] * gates[2]
            state = gates[3] * np.tanh(cell)
        elif mode == "gru":
            parts, sums = np.split(x, 3), np.split(product, 3)
            reset, update = (sigmoid(parts[k] + sums[k]) for k in range(2))
            extra = sums[2] + wide["of_new"][:, None]
            gates = [reset, update, np.tanh(parts[2] + reset * extra)]
            state = (1 - update) * gates[2] + update * state
        else:
            extra, state = state, np.tanh(x + product) if mode == "rnn_tanh" else np.maximum(x + product, 0)
            gates = [state]
        if arrays["valid"] is not None:
            state = np.where(arrays["valid"][t], state, before)
            cell = np.where(arrays["valid"][t], cell, cell_before)
            extra = cell if mode == "lstm" else extra
        for name, value in (("states", state.T), ("gates", np.concatenate(gates)), ("extra", extra)):
            out[name][t] = value
    return out


def assert_as_expected(mode: str, arrays: Arrays, times: range, most: float = MAX_ERROR) -> None:
    with np.errstate(all="ignore"):
        values = expected(mode, arrays, times)
    for name in ("states", "gates", "extra"):
        if arrays[name] is None:
            continue
        for t in times:
            mine, value = arrays[name][t % len(arrays[name])], values[name][t]
            scale = max(1.0, np.abs(value[np.isfinite(value)]).max(initial=0))
            np.testing.assert_allclose(mine, value, rtol=0, atol=most * scale, err_msg=f"{name} of step {t}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", GATES)
@pytest.mark.parametrize("times", [range(STEPS), range(STEPS)[::-1], range(1, 2)], ids=str)
def test_steps(steps: UnitSteps, mode: str, shape: tuple[int, int], times: range) -> None:
    arrays = drawn(mode, *shape)
    beside = arrays["states"].base[..., : shape[0]]
    run(steps, mode, arrays, times)
    assert_as_expected(mode, arrays, times)
    assert np.isnan(beside).all()
    others = [t for t in range(STEPS) if t not in times]
    assert np.isnan(arrays["states"][others]).all()
    assert np.isnan(arrays["gates"][others]).all()


MANY = 355
"""Samples of 128 units of LSTM whose gradients are more than stay in the cache (MAX_STATE_NUMBERS)."""


def check_gradients(steps: UnitSteps, mode: str, shape: tuple[int, int], reverse: bool) -> None:
    forward = range(STEPS)[::-1] if reverse else range(STEPS)
    arrays, times = drawn_back(steps, mode, *shape, forward), forward[::-1]
    values = expected_back(mode, arrays, times)
    run_back(steps, mode, arrays, times)
    for name, value in values.items():
        most = MAX_ERROR * max(1, np.abs(np.nan_to_num(value)).max())
        np.testing.assert_allclose(arrays[name], value, rtol=0, atol=most, err_msg=name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", GATES)
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients(steps: UnitSteps, mode: str, shape: tuple[int, int], reverse: bool) -> None:
    check_gradients(steps, mode, shape, reverse)


def test_gradients_of_many_samples(steps: UnitSteps) -> None:
    check_gradients(steps, "lstm", (128, MANY), reverse=False)


@pytest.mark.parametrize("mode", GATES)
def test_gradients_go_on_where_others_ended(steps: UnitSteps, mode: str) -> None:
    whole, parts = (drawn_back(steps, mode, 150, 20, range(STEPS)) for _ in range(2))
    times = range(STEPS)[::-1]
    run_back(steps, mode, whole, times)
    for part in (times[:2], times[2:3], times[3:]):
        run_back(steps, mode, parts, part)
    for name in ("ggates", "gagain", "gstate", "gcell"):
        np.testing.assert_array_equal(parts[name], whole[name])


@pytest.mark.parametrize("name", ["gout", "gstate", "weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", GATES)
def test_gradients_that_are_not_finite(steps: UnitSteps, mode: str, value: float, name: str) -> None:
    arrays, times = drawn_back(steps, mode, 150, 20, range(STEPS)), range(STEPS)[::-1]
    arrays[name][(-1, 3, 40) if name == "gout" else (3, 40)] = value
    with np.errstate(all="ignore"):
        values = expected_back(mode, arrays, times)
    run_back(steps, mode, arrays, times)
    mine, expects = arrays["ggates"], values["ggates"]
    np.testing.assert_array_equal(np.isnan(mine), np.isnan(expects))
    finite = np.isfinite(expects)
    assert finite.any()
    assert not finite.all()
    np.testing.assert_allclose(mine[finite], expects[finite], rtol=0, atol=MAX_ERROR * np.abs(expects[finite]).max())
    np.testing.assert_array_equal(mine[~finite], expects[~finite].astype(np.float32))


@pytest.mark.parametrize("mode", GATES)
def test_samples_without_a_step_keep_their_state(steps: UnitSteps, mode: str) -> None:
    arrays = drawn(mode, 150, 20)
    arrays["valid"] = np.arange(STEPS)[:, None, None] < np.random.default_rng(0).integers(0, STEPS + 1, 20)
    assert arrays["valid"][0].sum() not in (0, 20)
    run(steps, mode, arrays, range(STEPS))
    assert_as_expected(mode, arrays, range(STEPS))


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_calls_go_on_where_others_ended(steps: UnitSteps, mode: str) -> None:
    """With the last two steps' extras alone, and no gates; x of the steps of a call."""
    whole, parts = drawn(mode, 150, 20), drawn(mode, 150, 20)
    run(steps, mode, whole, range(STEPS))
    parts |= {"gates": parts["gates"][:0], "extra": parts["extra"][:2]}
    for times in (range(2), range(2, STEPS)):
        now = parts | {"x": np.ascontiguousarray(whole["x"][:, times.start : times.stop])}
        run(steps, mode, now, times, times.start)
        last = times[-1]
        parts |= {"before": parts["states"][last], "cell_before": parts["extra"][last % 2]}
    np.testing.assert_array_equal(parts["states"], whole["states"])
    np.testing.assert_array_equal(parts["extra"][(STEPS - 1) % 2], whole["extra"][-1])


@pytest.mark.parametrize("name", ["x", "before", "weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("mode", GATES)
def test_numbers_that_are_not_finite(steps: UnitSteps, mode: str, value: float, name: str) -> None:
    """They go where the definition has them, and the sums of others are as ever."""
    arrays = drawn(mode, 150, 20)
    arrays[name][(70, 1, 7) if name == "x" else (3, 40)] = value
    # A weight is every sample's, so that none is finite in a second step; rnn_relu's sums overflow in float32 there.
    times = range(1 if name == "weight" or mode == "rnn_relu" else STEPS)
    run(steps, mode, arrays, times)
    with np.errstate(all="ignore"):
        states = {t: state.astype(np.float32) for t, state in expected(mode, arrays, times)["states"].items()}
    for t in times:
        np.testing.assert_array_equal(np.isnan(arrays["states"][t]), np.isnan(states[t]))
        finite = np.isfinite(states[t])
        assert finite.any()
        np.testing.assert_allclose(arrays["states"][t][finite], states[t][finite], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(arrays["states"][t][~finite], states[t][~finite])


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: True)

    def sizes(hidden: int, batch: int, outputs: int | None = None) -> Sizes:
        return Sizes("lstm", 2, 1, hidden, outputs or hidden, 35, batch, 200, False)

    assert fits(sizes(256, 32))
    assert not fits(sizes(256, 32, outputs=100))
    assert not fits(sizes(256, 4))
    assert not fits(sizes(127, 256))
    assert not fits(sizes(1024, 32))
    monkeypatch.setattr(blocks, "has_matrix_unit", lambda: False)
    assert not fits(sizes(256, 32))


TIME, BATCH, INPUTS, HIDDEN = 25, 48, 30, 330
"""More columns than one product with the inputs takes: steps in two calls."""


def layers(mode: str, *, trains: bool, **attrs: Any) -> list[np.ndarray[Any, Any]]:
    """Outputs, and gradients, of two layers of `RNN`."""
    names = ["data", "parameters", "state", *(["state_cell"] if mode == "lstm" else [])]
    names += ["sequence_length"] if "use_sequence_length" in attrs else []
    inputs = {name: mx.sym.Variable(name) for name in names}
    symbol = mx.sym.RNN(**inputs, mode=mode, state_size=HIDDEN, num_layers=2, **attrs)
    executor = symbol.simple_bind(mx.cpu(), data=(TIME, BATCH, INPUTS), grad_req="write" if trains else "null")
    rng = np.random.default_rng(5)
    for name, array in executor.arg_dict.items():
        lengths = name == "sequence_length"
        array[:] = rng.integers(1, TIME + 1, BATCH) if lengths else rng.normal(size=array.shape) / HIDDEN**0.5
    executor.forward(is_train=trains)
    outputs = [array.asnumpy() for array in executor.outputs]
    if trains:
        executor.backward([mx.nd.array(np.cos(array)) for array in outputs])
        outputs += [array.asnumpy() for array in executor.grad_arrays]
    return outputs


@needs_matrix_unit
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(
    "attrs", [{}, {"bidirectional": True, "state_outputs": True}, {"use_sequence_length": True}], ids=str
)
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_layers(mode: str, attrs: dict[str, Any], trains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the unit, but for roundings that 25 steps of two layers carry on (rnn_relu's slopes jump at 0)."""
    calls: list[str] = []
    for name in ("run", "back"):
        real = getattr(UnitSteps, name)
        monkeypatch.setattr(UnitSteps, name, lambda *args, name=name, real=real: (calls.append(name), real(*args)))
    mine = layers(mode, trains=trains, **attrs)
    count = 2 * 2 * (2 if "bidirectional" in attrs else 1)
    back = count if trains and "use_sequence_length" not in attrs else 0
    assert sorted(calls) == ["back"] * back + ["run"] * count
    monkeypatch.setattr(recurrent, "unit_steps", lambda: None)
    others = layers(mode, trains=trains, **attrs)
    assert len(calls) == count + back
    for array, other in zip(mine, others, strict=True):
        np.testing.assert_allclose(array, other, rtol=0, atol=2e-5 * np.abs(other).max())
        assert array.any() or not other.any()


@needs_matrix_unit
def test_threads_change_no_bit() -> None:
    assert_same_bits(recurrent_script(TIME, BATCH, INPUTS, HIDDEN))
