"""mx.profiler: times of operators by node, taken on the engine, and a program's marks, counted as MXNet counts them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.profiler.recording import RECORDING
from opbox_protocol.errors import MXNetError
from opbox_service.executor.profile import Profile


@pytest.fixture(autouse=True)
def trace(engine: str, tmp_path: Path) -> Iterator[Path]:
    """The trace's file; nothing is recorded before the test and after it."""
    path = tmp_path / "profile.json"
    mx.profiler.set_config(filename=path, aggregate_stats=True)
    yield path
    mx.profiler.set_state("stop")
    RECORDING.collect()
    RECORDING.forget()
    RECORDING.statistics.clear()
    mx.profiler.set_config()


def executor() -> mx.executor.Executor:
    fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    net = mx.sym.SoftmaxOutput(fc, name="softmax")
    return net.simple_bind(mx.cpu(), data=(4, 5), softmax_label=(4,))


def train(bound: mx.executor.Executor, steps: int = 2) -> None:
    weight, gradient = bound.arg_dict["fc_weight"], bound.grad_dict["fc_weight"]
    for _ in range(steps):
        bound.forward(is_train=True)
        bound.backward()
        mx.nd.sgd_update(weight, gradient, lr=0.1, out=weight)
    mx.nd.waitall()


def operators(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "operator"]


def test_a_trace_has_every_node_with_its_operator_and_times(trace: Path) -> None:
    bound = executor()
    mx.profiler.set_state("run")
    train(bound)
    mx.profiler.set_state("stop")
    mx.profiler.dump()
    events = operators(trace)
    # What real MXNet 1.9.1 counts for this program.
    assert Counter(event["name"] for event in events) == {
        "FullyConnected": 2,
        "SoftmaxOutput": 2,
        "_backward_SoftmaxOutput": 2,
        "_backward_FullyConnected": 2,
        "sgd_update": 2,
    }
    nodes = [event["args"]["node"] for event in events if event["args"]]
    assert nodes == ["fc", "softmax", "softmax_backward", "fc_backward"] * 2
    assert events[0]["args"] == {"node": "fc", "operator": "FullyConnected"}
    ends = [event["ts"] + event["dur"] for event in events]
    assert all(event["dur"] >= 0 for event in events)
    # A microsecond for the rounding of numbers of seconds since 1970.
    assert all(event["ts"] + 1 >= end for event, end in zip(events[1:], ends, strict=False))


def test_statistics_have_the_form_of_mxnets() -> None:
    bound = executor()
    mx.profiler.set_state("run")
    train(bound)
    task = mx.profiler.Domain("mine").new_task("training")
    task.start()
    task.stop()
    sums = json.loads(mx.profiler.dumps(format="json"))
    assert sums["Unit"] == {"Time": "ms", "Memory": "kB"}
    assert {name: row["Count"] for name, row in sums["Time"]["operator"].items()} == {
        "FullyConnected": 2,
        "SoftmaxOutput": 2,
        "_backward_SoftmaxOutput": 2,
        "_backward_FullyConnected": 2,
        "sgd_update": 2,
    }
    assert sums["Time"]["command"]["forward"]["Count"] == 2
    assert sums["Time"]["mine"]["training"]["Count"] == 1
    row = sums["Time"]["operator"]["FullyConnected"]
    assert row["Min"] <= row["Avg"] <= row["Max"] <= row["Total"]
    counts = json.loads(mx.profiler.dumps(format="json", sort_by="max", ascending=True))["Time"]["operator"]
    assert [row["Max"] for row in counts.values()] == sorted(row["Max"] for row in counts.values())
    table = mx.profiler.dumps(reset=True)
    assert table.startswith("\nProfile Statistics:\n\tNote the difference in units for different entries.\n")
    assert "\noperator\n=================\nName                          Total Count        Time (ms) " in table
    assert "FullyConnected                          2 " in table
    mx.profiler.set_state("stop")
    assert "FullyConnected" not in mx.profiler.dumps()
    mx.profiler.set_config()
    assert mx.profiler.dumps() == ""


def test_marks_of_the_program(trace: Path) -> None:
    domain = mx.profiler.Domain("mine")
    counter, event = domain.new_counter("left", 9), mx.profiler.Event("decoding")
    mx.profiler.set_state("run")
    frame = domain.new_frame("frame")
    frame.start()
    event.start()
    counter += 3
    counter -= 1
    domain.new_marker("now").mark("thread")
    event.stop()
    event.stop()  # as nothing was begun
    frame.stop()
    mx.profiler.pause()
    counter.set_value(1)
    mx.profiler.resume()
    mx.profiler.dump()
    rows = [row for row in json.loads(trace.read_text())["traceEvents"] if row["ph"] != "M" and "dur" not in row]
    assert [(row["cat"], row["name"], row["ph"]) for row in rows] == [
        ("mine", "left", "C"),
        ("mine", "left", "C"),
        ("mine,instant_marker", "now", "i"),
        ("event", "decoding", "b"),
        ("event", "decoding", "e"),
        ("mine,frame", "frame", "b"),
        ("mine,frame", "frame", "e"),
    ]
    assert [row["args"]["left"] for row in rows[:2]] == [12, 11]
    assert (str(domain), str(counter), str(event)) == ("mine", "left", "decoding")


def test_only_what_was_asked_for_is_recorded(trace: Path) -> None:
    bound = executor()
    mx.profiler.set_config(filename=trace, profile_symbolic=False, profile_api=False)
    mx.profiler.set_state("run")
    train(bound, 1)
    mx.profiler.pause()
    train(bound, 1)
    mx.profiler.resume()
    train(bound, 1)
    mx.profiler.dump(finished=False)
    assert [event["name"] for event in operators(trace)] == ["sgd_update"] * 2
    train(bound, 1)
    mx.profiler.dump()
    assert [event["name"] for event in operators(trace)] == ["sgd_update"] * 3
    with pytest.raises(MXNetError, match=r"dump: expected a profile that has run: call mx.profiler.set_state\('run'\)"):
        mx.profiler.dump()


def test_a_step_stays_one_request() -> None:
    bound = executor()
    session = mx.cpu().session
    train(bound)

    def requests() -> int:
        before = session.requests
        for _ in range(3):
            train(bound, 1)
        return session.requests - before

    silent = requests()
    mx.profiler.set_state("run")
    assert requests() == silent
    mx.profiler.set_state("stop")
    assert requests() == silent


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mx.profiler.set_state("on"), KeyError, "set_state: expected 'run' or 'stop', got 'on'"),
        (lambda: mx.profiler.set_config(foo=1), MXNetError, "set_config: expected some of .*, got 'foo'"),
        (lambda: mx.profiler.set_config(profile_all="maybe"), MXNetError, "profile_all: expected True or False, got"),
        (lambda: mx.profiler.set_config(dump_period="x"), MXNetError, "dump_period: expected seconds, got 'x'"),
        (lambda: mx.profiler.set_config(filename=3), TypeError, "set_config: filename: expected a path, got 3"),
        (lambda: mx.profiler.dumps(format="csv"), AssertionError, "format: expected 'table' or 'json', got 'csv'"),
        (lambda: mx.profiler.dumps(sort_by="x"), AssertionError, "dumps: sort_by: expected 'total' or .*, got 'x'"),
        (lambda: mx.profiler.pause("server"), MXNetError, "pause: profile_process: expected 'worker', got 'server'"),
        (lambda: mx.profiler.Domain("d").new_counter("n", "x"), ValueError, "invalid literal"),  # type: ignore[arg-type]
        (lambda: mx.profiler.Domain("d").new_marker("n").mark("all"), MXNetError, "mark: scope: expected one of"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    mx.profiler.set_config(filename=tmp_path / "none" / "profile.json")
    mx.profiler.set_state("run")
    with pytest.raises(MXNetError, match=r"none"):
        mx.profiler.dump()


def test_old_names(trace: Path) -> None:
    with pytest.warns(UserWarning, match="profiler_set_config is an old name"):
        mx.profiler.profiler_set_config("all", trace)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="profiler_set_state is an old name"):
        mx.profiler.profiler_set_state("run")
    (mx.nd.ones((2,)) + 1).wait_to_read()
    with pytest.warns(UserWarning, match="dump_profile is an old name"):
        mx.profiler.dump_profile()
    assert "_plus_scalar" in [event["name"] for event in operators(trace)]


def test_the_command_says_what_it_takes() -> None:
    for command, message in (
        ({"record": ["memory"]}, "command 0 .profile.: record"),
        ({"take": 1 << 20}, "command 0 .profile.: take"),
    ):
        with pytest.raises(MXNetError, match=message):
            mx.cpu().session.ask({"do": "profile", **command})  # type: ignore[typeddict-item]


def test_a_full_profile_counts_what_it_loses() -> None:
    profile = Profile(max_events=3)
    for i in range(5):
        profile.add("symbolic", f"fc{i % 2}", "FullyConnected", 10 * i, 10 * i + 5)
    assert (len(profile), profile.dropped) == (3, 2)
    other = Profile()
    other.restore(json.loads(json.dumps(profile.image())))  # as when the session moves to another process
    titles, events = other.take(2)
    assert titles == [("symbolic", "fc0", "FullyConnected"), ("symbolic", "fc1", "FullyConnected")]
    assert events == [(0, 0, 5), (1, 10, 5)]
    assert other.take(2) == ([("symbolic", "fc0", "FullyConnected")], [(0, 20, 5)])
    assert other.take(2) == ([], [])


def test_values_are_those_of_a_run_without_a_profile() -> None:
    bound = executor()
    bound.arg_dict["data"][:] = np.arange(20, dtype="f").reshape(4, 5) / 20
    bound.arg_dict["fc_weight"][:] = np.arange(15, dtype="f").reshape(3, 5) / 15
    outputs = []
    for state in ("stop", "run"):
        mx.profiler.set_state(state)
        bound.forward(is_train=True)
        bound.backward()
        gradient = bound.grad_dict["fc_weight"]
        assert gradient is not None
        outputs.append((bound.outputs[0].asnumpy(), gradient.asnumpy()))
    for silent, recorded in zip(*outputs, strict=True):
        np.testing.assert_array_equal(silent, recorded)
