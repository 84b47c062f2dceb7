"""Convolutions by cuDNN on the pretend device, and the steps behind it: columns with cuBLAS, then CuPy."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.compute import OpReq
from opbox_ops.cudnn import choice, convolution, library, search
from opbox_ops.cudnn.algorithms import DATA, FORWARD, WEIGHT, ConvolutionPass, ConvolutionProblem
from opbox_ops.cudnn.choice import choice_of
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.executor import invoke
from tests.cases import families
from tests.cases.case import Case
from tests.ops.checks import NEAR, NEAR_GRADIENT, close
from tests.ops.harness import Run
from tests.switches import switch

from .replays import replayed_and_eager
from .spy import watched

STEPS = {"cudnn": "library", "columns": "generated", "reference": "reference"}
ROWS = [
    case
    for family in ("convolution", "windows")
    for case in families()[family]
    if case.op in ("Convolution", "Deconvolution", "Convolution_v1")
]


def forget() -> None:
    """No algorithm was chosen before, and no handle made."""
    assert search.settle(60)
    for cached in (choice._choice, library._library):
        cached.cache_clear()
    for handles in (library._State.handles, search._Measurements.handles):
        handles.clear()


@pytest.fixture(autouse=True)
def anew(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process, whose measurements are written to a folder of their own."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    forget()
    yield
    forget()


def results(case: Case, dtype: str, device: str, level: str | None = None) -> tuple[Run, list[Any], dict[str, Any]]:
    """A row's calls, outputs and gradients."""
    backend = backend_for(device)
    run = Run(case, dtype, backend, level=level)
    outputs = [backend.get(array) for array in run.forward()]
    gradients = run.backward() if case.grad else {}
    return run, outputs, {name: backend.get(array) for name, array in gradients.items()}


def agree(case: Case, dtype: str, step: str) -> None:
    """A row's values on the device are the CPU's, by the computes of that step."""
    run, outputs, gradients = results(case, dtype, "gpu:0", "reference" if step == "reference" else None)
    levels = {call.chosen().level for call in run.calls}
    assert levels == {STEPS[step]} or (step == "columns" and case.op == "Deconvolution" and levels == {"reference"})
    _, expected, expected_gradients = results(case, dtype, "cpu", "reference")
    for out, array in zip(outputs, expected, strict=True):
        close(out, array, NEAR[dtype], case.op)
    for name, array in expected_gradients.items():
        close(gradients[name], array, NEAR_GRADIENT[dtype], f"{case.op}, gradient of {name}")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case.op}-{'x'.join(map(str, case.attrs['kernel']))}")
def test_a_row_has_the_cpus_values(case: Case, dtype: str) -> None:
    with watched() as watch:
        agree(case, dtype, "cudnn")
    assert watch.calls["cudnn"]
    assert not watch.calls["product"]


@pytest.mark.parametrize("step", ["columns", "reference"])
@pytest.mark.parametrize("case", ROWS[::4], ids=lambda case: f"{case.op}-{'x'.join(map(str, case.attrs['kernel']))}")
def test_the_steps_behind_cudnn_are_taken(case: Case, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch, "cudnn", on=step != "columns")
    with watched() as watch:
        agree(case, "float32", step)
    assert not watch.calls["cudnn"]


def test_an_attribute_turns_it_off() -> None:
    case = ROWS[2]
    run, _, _ = results(Case(case.op, case.inputs, {**case.attrs, "cudnn_off": True}, ("float32",)), "float32", "gpu:0")
    assert {call.chosen().level for call in run.calls} == {"generated"}


def last(case: Case) -> Case:
    """A row with the channels last."""
    axes = {"data": (0, *range(2, 4), 1), "weight": (0, *range(2, 4), 1), "bias": (0,)}
    inputs = {name: tuple(shape[k] for k in axes[name]) for name, shape in case.inputs.items()}  # type: ignore[index]  # tuples
    return Case(case.op, inputs, {**case.attrs, "layout": "NHWC"}, case.dtypes)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_channels_may_lie_last(dtype: str) -> None:
    rows = [case for case in ROWS if len(case.attrs["kernel"]) == 2 and not case.attrs.get("target_shape")]
    for case in rows[::3]:
        agree(last(case), dtype, "cudnn")


WINDOW = {"kernel": (3, 3), "num_filter": 6, "pad": (1, 1), "no_bias": True}


# -- the choice -------------------------------------------------------------------------------------------------------


def problem(
    direction: ConvolutionPass = FORWARD, dtype: str = "float32", *, measured: bool = True, most: int = 1 << 30
) -> Any:
    """3 x 3 over 8 x 8, 4 channels to 6."""
    shapes, window = ((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 8, 8)), ((1, 1), (1, 1), (1, 1))
    return ConvolutionProblem.of(direction, "float32", shapes, window, 1, False, measured, most)


@pytest.mark.parametrize("direction", [FORWARD, DATA, WEIGHT], ids=lambda direction: direction.name)
@pytest.mark.parametrize("measured", [True, False])
def test_the_fastest_exact_one_that_repeats_its_bits_is_taken(direction: ConvolutionPass, measured: bool) -> None:
    chosen = choice_of(problem(direction, measured=measured))
    assert chosen is not None
    # Winograd's, of three that are as fast and one that is faster: those add up by atomics, or multiply in TF32.
    assert chosen.best.math == library.Math.FMA
    assert chosen.best.number == {"Forward": 6, "BackwardData": 2, "BackwardFilter": 2}[direction.name]


@pytest.mark.parametrize("direction", [DATA, WEIGHT], ids=lambda direction: direction.name)
def test_algorithms_that_add_by_atomics_are_for_who_asks(
    direction: ConvolutionPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers() -> set[int]:
        chosen = choice_of(problem(direction))
        assert chosen is not None
        return {one.number for one in chosen.candidates}

    monkeypatch.setenv("OPBOX_ALLOW_NONDETERMINISTIC", "0")
    deterministic = numbers()
    assert 0 not in deterministic
    monkeypatch.setenv("OPBOX_ALLOW_NONDETERMINISTIC", "1")
    chosen = choice_of(problem(direction))
    assert chosen is not None
    assert chosen.best.varies, "the fastest of the stand-in's adds by atomics"
    assert 0 in numbers()
    monkeypatch.delenv("OPBOX_ALLOW_NONDETERMINISTIC")
    assert numbers() == deterministic


def test_the_workspace_bounds_the_choice() -> None:
    choices = [choice_of(problem(most=most)) for most in (1 << 30, 2048, 0)]
    sizes = [chosen.best.workspace for chosen in choices if chosen is not None]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0
    assert len(sizes) == 3


def test_an_operator_says_what_bounds_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for attrs in ({"workspace": 0}, {"workspace": 1}, {"workspace": 0, "cudnn_tune": "fastest"}):
        case = Case("Convolution", {"data": (2, 4, 8, 8), "weight": (6, 4, 3, 3)}, {**WINDOW, **attrs}, ("float32",))
        run = Run(case, "float32", backend_for("gpu:0"))
        run.forward()
        [call] = run.calls
        taken.append(call.chosen().temps[0].shape[0])
    assert taken[0] == 0
    # Its candidates may need more than the one that is recommended.
    assert 0 < taken[1] < taken[2]
    monkeypatch.setattr(convolution, "_FASTEST_SHARE", 1 << 32)  # leaves a byte
    assert call.chosen().temps[0].shape == (0,)


def test_choosing_waits_for_nothing_and_runs_nothing() -> None:
    assert library.current_handle()
    with watched() as watch:
        assert choice_of(problem()) is not None
    assert not watch.refused
    assert not watch.allocations
    assert not watch.calls


def test_another_device_keeps_to_the_workspace_that_was_planned(gpu: Any) -> None:
    with backend_for("gpu:0").scope():
        planned = choice_of(problem())
    with backend_for("gpu:1").scope():
        other = choice_of(problem())
    assert planned is not None
    assert other is not None
    assert other is not planned
    taken = other.within(100)
    assert taken is not None
    assert taken.workspace <= 100 < planned.workspace


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("step", ["cudnn", "columns"])
def test_tf32_is_for_who_asks(step: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_ALLOW_TF32", str(int(allowed)))
    rng = np.random.default_rng(0)
    data, weight = rng.normal(size=(2, 8, 9, 9)), rng.normal(size=(4, 8, 3, 3))
    backend = backend_for("gpu:0")
    params = {"kernel": (3, 3), "num_filter": 4, "no_bias": True, "cudnn_off": step == "columns"}

    def run(dtype: str) -> Any:
        arrays = [backend.put(array.astype(dtype)) for array in (data, weight)]
        (out,) = invoke("Convolution", params, arrays, backend=backend, random=backend.random(0))
        return backend.get(out)

    error = np.abs(run("float32") - run("float64")).max()
    # Sums of 72 products: single precision has 24 bits, TF32 has 11.
    assert (error > 1e-3) == allowed
    assert (error < 1e-5) == (not allowed)


def test_tuning_may_be_off_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "off")
    with watched() as watch:
        results(ROWS[2], "float32", "gpu:0")
    assert watch.calls["cudnn"] == 3
    monkeypatch.setenv("OPBOX_CUDNN_TUNE", "best")
    with pytest.raises(BadRequestError, match=r"OPBOX_CUDNN_TUNE: expected one of .*, got 'best'"):
        results(ROWS[2], "float32", "gpu:0")


# -- arrays -----------------------------------------------------------------------------------------------------------


def test_arrays_may_lie_at_odd_addresses(cupy: Any) -> None:
    case, backend = ROWS[2], backend_for("gpu:0")
    run = Run(case, "float32", backend)
    (expected,) = (backend.get(array) for array in run.forward())
    values = run.calls[0].fresh()

    def odd(array: Any) -> Any:
        place = cupy.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
        place[...] = array
        return place

    out = odd(cupy.zeros(expected.shape, expected.dtype))
    arrays = [odd(array) for array in values]
    invoke(case.op, case.attrs, arrays, outputs=[out], backend=backend, random=backend.random(0))
    np.testing.assert_array_equal(backend.get(out), expected)


def network() -> Any:
    x = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(3, 3), pad=(1, 1), name="one")
    x = mx.sym.Deconvolution(x, num_filter=3, kernel=(2, 2), stride=(2, 2), no_bias=False, name="two")
    return mx.sym.MakeLoss(mx.sym.sum(x)), {"data": (2, 3, 6, 6)}


@pytest.mark.parametrize("req", ["write", "add"])
def test_a_captured_plan_has_the_eager_numbers(req: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed_and_eager(network, req, monkeypatch)


# -- without it -------------------------------------------------------------------------------------------------------


def test_a_missing_library_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OPBOX_CUDNN", "/nowhere/libcudnn.so.9")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            agree(ROWS[2], "float32", "columns")
    assert caplog.messages == [
        "gpu:0: convolutions run without cuDNN (/nowhere/libcudnn.so.9: cannot open shared object file: No such file "
        "or directory): pip install 'opbox-service[cuda13]'"
    ]


def test_an_old_library_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(library, "OLDEST", 100000)
    with caplog.at_level(logging.WARNING):
        agree(ROWS[2], "float32", "columns")
    assert "(expected version 9.0 or a later one, got 91.9)" in caplog.text


def test_a_library_that_does_not_start_is_said(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    gpu.fail_next("cudnnCreate", gpu.LAUNCH_FAILURE)
    assert library.current_handle() is None
    gpu.reset()
    assert "cuDNN refused a call: cudnnCreate answered 5000 (CUDNN_STATUS_EXECUTION_FAILED)" in caplog.text
    agree(ROWS[2], "float32", "columns")


@pytest.mark.parametrize("name", ["cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward"])
def test_a_refused_call_is_an_error(gpu: Any, name: str) -> None:
    case, backend = ROWS[2], backend_for("gpu:0")
    if "Bias" in name:
        # Of the algorithms that are left, that with a bias is recommended.
        case = Case(case.op, case.inputs, {**case.attrs, "stride": (2, 2)}, case.dtypes)
    else:
        inputs = {key: shape for key, shape in case.inputs.items() if key != "bias"}
        case = Case(case.op, inputs, {**case.attrs, "no_bias": True}, case.dtypes)
    run = Run(case, "float32", backend)
    run.forward()
    gpu.fail_next(name, gpu.INVALID_VALUE)
    with pytest.raises(MXNetError, match=f"cuDNN refused a call: {name} answered 5000"):
        run.calls[0].compute(run.calls[0].fresh(), [OpReq.WRITE], run.calls[0].empty())


def test_what_it_does_not_describe_goes_to_the_next_step() -> None:
    assert choice_of(problem()) is not None
    shapes = ((1, 1, 50000, 50000), (1, 1, 1, 1), (1, 1, 50000, 50000))
    assert math.prod(shapes[0]) > 2**31
    window = ((1, 1), (1, 1), (0, 0))
    assert choice_of(ConvolutionProblem.of(FORWARD, "float32", shapes, window, 1, False, True, 0)) is None
    wrong = ((2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 9, 9))
    assert choice_of(ConvolutionProblem.of(FORWARD, "float32", wrong, window, 1, False, True, 0)) is None
