"""cuDNN's algorithms measured behind the calls: nothing waits for it, results on disk, memory that goes back."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.cudnn import choice, library, measuring, results, search
from opbox_ops.cudnn.algorithms import DATA, FORWARD, WEIGHT, ConvolutionPass, ConvolutionProblem
from opbox_ops.cudnn.choice import ConvolutionChoice, choice_of
from tests.ops.checks import NEAR, close

from .spy import watched
from .test_cudnn import forget
from .test_plans import executor_of

NAME = "cudnnConvolutionForward"
FIRST, FOURIER, GEMM = 6, 4, 1
"""The best candidates of a 3 x 3 convolution, as the stand-in recommends them."""
COSTS = {(NAME, FIRST): 3.0, (NAME, FOURIER): 2.0, (NAME, GEMM): 1.0, (NAME, 2): 4.0, (NAME, 0): 5.0}
"""Milliseconds by which the third is the fastest."""


@pytest.fixture(autouse=True)
def anew(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process with an empty folder of kernels, that measures."""
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "limited_workspace")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    forget()
    yield
    for gate in gpu.gates.values():
        gate.set()
    forget()


def problem(size: int = 8, direction: ConvolutionPass = FORWARD, *, last: bool = False, stride: int = 1) -> Any:
    """3 x 3 over a square image, 4 channels to 6."""
    out = (size - 1) // stride + 1
    shapes, window = ((2, 4, size, size), (6, 4, 3, 3), (2, 6, out, out)), ((stride, stride), (1, 1), (1, 1))
    return ConvolutionProblem.of(direction, "float32", shapes, window, 1, last, True, 1 << 30)


def asked(size: int = 8) -> ConvolutionChoice:
    """The choice for a problem of which a measurement has been asked for."""
    chosen = choice_of(problem(size))
    assert chosen is not None
    search.ask(chosen)
    return chosen


def network() -> Any:
    x = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=6, kernel=(3, 3), pad=(1, 1), no_bias=True)
    return mx.sym.MakeLoss(mx.sym.sum(x)), {"data": (2, 4, 8, 8)}


def gate(gpu: Any, number: int = FOURIER) -> threading.Event:
    """Have an algorithm take as long as the event is not set."""
    event: threading.Event = gpu.gates.setdefault((NAME, number), threading.Event())
    return event


def until(condition: Any) -> None:
    """Wait for what another thread does."""
    while not condition():
        time.sleep(0.001)


# -- nothing waits ----------------------------------------------------------------------------------------------------


def test_no_step_waits_for_a_measurement_and_a_later_one_takes_the_fastest(gpu: Any) -> None:
    closed = gate(gpu)
    gpu.costs.update(COSTS)
    backend = backend_for("gpu:0")
    executor, grads, _ = executor_of(network, "gpu:0", "write")
    expected, expected_grads, _ = executor_of(network, "cpu", "write")
    expected.forward(is_train=True)
    expected.backward()

    def step() -> dict[str, int]:
        with watched() as watch:
            executor.forward(is_train=True)
            executor.backward()
        close(backend.get(executor.outputs[0]), expected.outputs[0], NEAR["float32"], "Convolution")
        for name, array in grads.items():
            close(backend.get(array), expected_grads[name], NEAR["float32"], name)
        return dict(watch.calls)

    [step() for _ in range(2)]
    until(lambda: closed in list(gpu.state.closed.values()))  # the thread waits there, and launches no graphs
    assert step().get("graphLaunch") == 2, "recorded, with what is recommended"
    chosen = choice_of(problem())
    assert chosen is not None
    assert chosen.best.number == FIRST
    assert not search.settle(0), "it was still measured"
    closed.set()
    assert search.settle(60)
    assert chosen.best.number == GEMM
    assert step().get("graphLaunch") == 1, "forward is out of date: it runs as ever"
    assert [step().get("graphLaunch") for _ in range(2)] == [2, 2], "and is recorded anew"


def test_a_process_that_measures_for_nobody_has_no_thread() -> None:
    asked()
    assert search.settle(60)
    assert "opbox-cudnn-search" not in {thread.name for thread in threading.enumerate()}


def test_a_problem_is_measured_once() -> None:
    chosen = asked()
    assert search.settle(60)
    assert chosen.is_measured
    version = chosen.version
    with watched() as watch:
        assert choice_of(problem()) is chosen
    assert not watch.calls
    assert chosen.version == version, "the recommended one is as fast as the others"


def test_results_of_a_session_are_published_together(gpu: Any) -> None:
    gpu.costs.update(COSTS)
    begin, closed = gate(gpu, FIRST), threading.Event()
    gpu.gates["cudnnConvolutionBackwardFilter", GEMM] = closed
    one, other = asked(), choice_of(problem(direction=WEIGHT))
    assert other is not None
    search.ask(other)
    begin.set()
    until(lambda: search._Measurements.measured)
    assert not one.is_measured
    assert one.best.number == FIRST
    closed.set()
    assert search.settle(60)
    assert one.is_measured
    assert other.is_measured
    assert one.best.number == GEMM


def measured(gpu: Any, max_first_ms: float) -> dict[Any, int]:
    """How often each candidate ran."""
    chosen = choice_of(problem())
    cupy: Any = library.attached_cupy()
    assert chosen is not None
    runs = {}
    for candidate in chosen.candidates:
        with cupy.cuda.Stream(non_blocking=True), measuring.scratch_arrays(cupy, problem(), 1 << 20) as arrays:
            assert arrays is not None
            with watched() as watch:
                measuring.measured_milliseconds(
                    library.further_handle(), problem(), [candidate], arrays, lambda: False, max_first_ms
                )
        runs[candidate.number] = watch.calls["cudnn"]
    return runs


def test_a_slow_candidate_runs_once(gpu: Any) -> None:
    assert measured(gpu, 0.0) == {number: 1 for _, number in COSTS}
    # The first run, one for the time that queuing takes, and the rounds.
    rounds = measuring.ROUNDS
    assert all(2 + rounds <= count <= 2 + measuring.CALLS * rounds for count in measured(gpu, 1e9).values())


def test_what_would_take_long_is_not_measured() -> None:
    assert measuring.is_worth_measuring(problem())
    assert not measuring.is_worth_measuring(problem(100_000, DATA, stride=10_000))
    shapes = ((64, 512, 112, 112), (512, 512, 3, 3), (64, 512, 112, 112))
    large = ConvolutionProblem.of(FORWARD, "float32", shapes, ((1, 1),) * 3, 1, False, True, 0)
    assert not measuring.is_worth_measuring(large)
    # The first layer of a vision transformer has a large stride, and little to compute.
    shapes = ((256, 3, 224, 224), (768, 3, 16, 16), (256, 768, 14, 14))
    patches = ConvolutionProblem.of(FORWARD, "float32", shapes, ((16, 16), (1, 1), (0, 0)), 1, False, True, 0)
    assert measuring.is_worth_measuring(patches)
    chosen = choice_of(problem(1000, stride=100))
    assert chosen is not None
    with watched() as watch:
        search.ask(chosen)
        assert search.settle(60)
    assert not watch.calls


@pytest.mark.parametrize("direction", [FORWARD, DATA, WEIGHT], ids=lambda direction: direction.name)
@pytest.mark.parametrize("last", [False, True])
def test_each_direction_is_measured(gpu: Any, direction: ConvolutionPass, last: bool) -> None:
    chosen = choice_of(problem(direction=direction, last=last))
    assert chosen is not None
    slowest = f"cudnnConvolution{direction.name}", chosen.best.number
    gpu.costs[slowest] = 5.0
    algorithms = [one for one in chosen._ranking if not one.is_product]
    products = len(chosen._ranking) - len(algorithms)
    assert bool(products) == (direction is WEIGHT)
    count = len(chosen.candidates)
    assert count == products + (1 if last else min(choice.CANDIDATES, len(algorithms)))
    search.ask(chosen)
    assert search.settle(60)
    assert (chosen.best.number != slowest[1]) == (count > 1)


# -- on disk ----------------------------------------------------------------------------------------------------------


def stored_file(tmp_path: Path) -> Path:
    [path] = (tmp_path / results.FOLDER).iterdir()
    return path


def test_another_process_reads_what_was_measured(gpu: Any, tmp_path: Path) -> None:
    gpu.costs.update(COSTS)
    asked()
    assert search.settle(60)
    content = json.loads(stored_file(tmp_path).read_text())
    assert content["key"]["device"] == "pretend"
    assert content["milliseconds"] == 1.0
    program = (
        "from opbox_ops.backend import backend_for; backend_for('gpu:0')\n"
        "from tests.pretend_gpu.test_search import choice_of, problem\n"
        "chosen = choice_of(problem()); print(chosen.is_measured, chosen.best.number)"
    )
    environment = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path / "own"), "CUPY_SHARED_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
    assert answer.stdout.split() == ["True", str(GEMM)]


def test_a_plan_reserves_what_the_fastest_needs_once_it_is_known(gpu: Any) -> None:
    gpu.costs.update(COSTS)
    before = asked().workspace
    assert search.settle(60)
    forget()
    chosen = choice_of(problem())
    assert chosen is not None
    assert (chosen.is_measured, chosen.best.number) == (True, GEMM)
    assert chosen.workspace == chosen.best.workspace < before


BROKEN = ["", "{", "[]", "7", "null", '{"result": [6, 3, false]}', '{"key": 1, "result": [6, 3, false]}', "\udcff"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_ignored_with_one_line_and_written_anew(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked()
    assert search.settle(60)
    path = stored_file(tmp_path)
    good = path.read_bytes()
    path.write_bytes(text.encode(errors="surrogateescape"))
    results._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            forget()
            chosen = choice_of(problem())
            assert chosen is not None
            assert not chosen.is_measured
    assert caplog.messages == [
        f"{path}: expected the result of a measurement of cuDNN's algorithms: the file is ignored"
    ]
    search.ask(chosen)
    assert search.settle(60)
    assert json.loads(path.read_bytes())["result"] == json.loads(good)["result"]
    assert stored_file(tmp_path) == path, "no file of a writer is left"


@pytest.mark.parametrize("result", [[99, 3, False], [6, 0, False], [0, 3, True], ["6", 3, False], [6, 3]])
def test_an_algorithm_that_may_not_run_is_not_taken_from_a_file(result: list[Any], tmp_path: Path) -> None:
    asked()
    assert search.settle(60)
    path = stored_file(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "result": result}))
    forget()
    chosen = choice_of(problem())
    assert chosen is not None
    assert not chosen.is_measured
    assert chosen.best.number == FIRST


def test_without_a_folder_to_write_to_it_is_known_in_this_process(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file"))
    gpu.costs[NAME, FIRST] = 3.0
    chosen = asked()
    assert search.settle(60)
    assert chosen.is_measured
    assert chosen.best.number != FIRST


# -- memory -----------------------------------------------------------------------------------------------------------


def test_its_memory_goes_back_to_the_device(gpu: Any) -> None:
    library.current_handle()
    before, closed = gpu.state.used[0], gate(gpu)
    chosen = asked()
    until(lambda: gpu.state.used[0] > before)
    closed.set()
    assert search.settle(60)
    assert chosen.is_measured
    assert gpu.state.used[0] == before


def test_it_takes_at_most_half_of_the_free_memory(gpu: Any) -> None:
    real = gpu.BYTES
    gpu.BYTES = gpu.state.used[0] + 100_000
    try:
        with watched() as watch:
            chosen = asked()
            assert search.settle(60)
    finally:
        gpu.BYTES = real
    assert not chosen.is_measured
    assert chosen.best.number == FIRST
    assert not watch.calls["malloc"]
    search.ask(chosen)
    assert search.settle(60)
    assert chosen.is_measured, "it may be asked for again"


def test_it_gives_way_to_who_needs_the_memory(gpu: Any) -> None:
    backend = backend_for("gpu:0")
    gc.collect()  # CuPy collects before it gives up
    backend.give_back()
    before, closed = gpu.state.used[0], gate(gpu)
    chosen = asked()
    until(lambda: gpu.state.used[0] > before and search._Measurements.holds_memory is not None)
    running: Any = search._Measurements.running
    opener = threading.Thread(target=lambda: (until(lambda: running.is_abandoned), closed.set()), daemon=True)
    opener.start()
    nbytes = gpu.state.used[0] + (1 << 16)  # more than could be free in what the pool has
    real, gpu.BYTES = gpu.BYTES, gpu.state.used[0] + nbytes - (1 << 15)
    try:
        assert backend.empty((nbytes,), "u1").nbytes == nbytes
    finally:
        gpu.BYTES = real
    assert closed.is_set()
    opener.join()
    assert search.settle(60)
    assert not chosen.is_measured


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_that_ends_waits_for_nothing_and_measures_nothing_more(gpu: Any) -> None:
    closed = gate(gpu)
    backend = backend_for("gpu:0").for_session()
    with backend.scope():
        one, other = asked(8), asked(9)
        until(lambda: search._Measurements.holds_memory is not None)
    backend.close()
    assert not closed.is_set()
    with watched() as watch:
        closed.set()
        assert search.settle(60)
    assert not one.is_measured
    assert not other.is_measured
    assert not watch.calls["malloc"]


def test_what_another_session_has_asked_for_too_is_measured(gpu: Any) -> None:
    closed = gate(gpu)
    backends = [backend_for("gpu:0").for_session() for _ in range(2)]
    for backend in backends:
        with backend.scope():
            chosen = asked()
    backends[0].close()
    closed.set()
    assert search.settle(60)
    assert chosen.is_measured
    backends[1].close()


def test_plans_are_recorded_whole_beside_a_measurement(gpu: Any, cupy: Any) -> None:
    """Each records while the thread makes its handle, takes memory, measures and gives memory back."""
    x = cupy.zeros(2, "f")
    choices, recorded = [], 0
    for size in range(8, 14):
        choices.append(asked(size))
        while not choices[-1].is_measured and search._Measurements.thread is not None:
            assert backend_for("gpu:0").capture([lambda: cupy.add(x, 1, out=x)]) is not None
            recorded += 1
    assert search.settle(60)
    assert all(chosen.is_measured for chosen in choices)
    assert recorded


def test_a_measurement_that_fails_is_logged_and_calls_go_on(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    gpu.fail_next(NAME, gpu.INVALID_VALUE)
    with caplog.at_level(logging.WARNING):
        chosen = asked()
        assert search.settle(60)
    assert not chosen.is_measured
    [message] = caplog.messages
    assert message.startswith(f"cuDNN's algorithms were not measured: cuDNN refused a call: {NAME} answered 5000")
    executor, _, _ = executor_of(network, "gpu:0", "write")
    executor.forward()
    assert np.isfinite(backend_for("gpu:0").get(executor.outputs[0])).all()


def test_on_a_large_device_candidates_may_need_more(gpu: Any) -> None:
    real = gpu.BYTES
    gpu.BYTES = 80 << 30
    try:
        chosen = choice_of(problem(400))
    finally:
        gpu.BYTES = real
    assert chosen is not None
    assert choice.MAX_CANDIDATE_WORKSPACE < chosen.workspace <= (80 << 30) // choice.CANDIDATE_SHARE
    assert FOURIER in {one.number for one in chosen.candidates}


def test_plans_keep_to_few_bytes_for_candidates(gpu: Any) -> None:
    """The workspace of a candidate that may turn out to be slow is bounded; of the recommended one it is not."""
    chosen = choice_of(problem(400))
    assert chosen is not None
    everything = {one.number: one.workspace for one in chosen._ranking}
    assert everything[FOURIER] > choice.MAX_CANDIDATE_WORKSPACE
    assert FOURIER not in {one.number for one in chosen.candidates}
    assert chosen.workspace <= choice.MAX_CANDIDATE_WORKSPACE
