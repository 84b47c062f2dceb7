"""The self-check of a GPU: what is wrong on purpose is found out, not used, and told; the rest is used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox.cli import main
from opbox_ops import registry, trust
from opbox_ops.backend import backend_for
from opbox_ops.backend.kernel_cache import kernel_folders
from opbox_ops.cuda import softmax
from opbox_ops.cudnn.algorithms import FORWARD, ConvolutionProblem, usable_algorithms
from opbox_ops.cudnn.library import current_handle
from opbox_ops.selfcheck.comparison import Comparison
from opbox_ops.selfcheck.identity import identity_of
from opbox_ops.selfcheck.row import Row
from opbox_ops.selfcheck.table import ROWS
from opbox_service.executor import invoke
from opbox_service.selfcheck import admission
from opbox_service.selfcheck.admission import admit
from opbox_service.selfcheck.child import units
from opbox_service.selfcheck.record import Record
from opbox_service.selfcheck.report import sentences, summary
from tests.contract.live import TOKENS, Live

DEVICE, LIMIT_S = "gpu:0", 300.0
"""No check here comes near its limit, but where a test says so."""
UNITS = [name for name, _ in units()]
FIRST, SECOND, DENSE, FINITE = (
    next(name for name in UNITS if name.startswith(f"{op} "))
    for op in ("softmax", "softmin", "FullyConnected", "all_finite")
)
NAME = "softmax/cuda.softmax"
RIGHT = {(NAME, "float32"): "", ("_backward_softmax/cuda.softmax", "float32"): ""}
"""What the first unit finds out on a right device."""
KERNEL = softmax.FORWARD.name
"""The kernel of softmax, of softmin too."""


@pytest.fixture(autouse=True)
def _own_verdicts(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A folder of verdicts that is empty, and a process that follows none."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    trust.forget()
    yield
    trust.forget()


def record_without(*left: str, identity: dict[str, str] | None = None) -> Record:
    """A record of this device, on disk, that lacks these units of the check."""
    record = Record.of(kernel_folders()[0], identity or identity_of(backend_for(DEVICE)))
    record.units = set(UNITS) - set(left)
    record.begin()
    return record


def checked(**options: Any) -> dict[tuple[str, str], str]:
    record, problem = admit(DEVICE, backend_for(DEVICE), **{"limit_s": LIMIT_S, **options})
    assert record.finished == (problem == "")
    return record.answers


def softmaxed() -> np.ndarray[Any, Any]:
    backend = backend_for(DEVICE)
    x = np.arange(12, dtype="f").reshape(3, 4)
    op = registry.get("softmax")
    (out,) = invoke(op, op.parse({}), [backend.put(x)], backend=backend, random=backend.random(0))
    np.testing.assert_allclose(backend.get(out).sum(1), 1, rtol=1e-6)
    return backend.get(out)


class Choices(Comparison):
    """A row whose computes are chosen, and not run."""

    def judge(self, node: Any, inputs: Any, expected: Any, names: Sequence[tuple[str, str]]) -> str:
        return ""


def compared(kind: type[Comparison], row: Row, dtype: str, calls: slice = slice(2)) -> dict[tuple[str, str], str]:
    answers: dict[tuple[str, str], str] = {}
    for attrs, inputs in row.calls(dtype)[calls]:
        comparison = kind(row, attrs, inputs, dtype, backend_for("cpu"), backend_for(DEVICE), lambda names: None)
        comparison.run()
        answers |= {name: reason or answers.get(name, "") for name, reason in comparison.answers.items()}
    return answers


def test_every_compute_is_chosen_by_a_row() -> None:
    names = {name for row in ROWS for name, _ in compared(Choices, row, row.types[0], slice(1))}
    own = {compute.name for name in registry.names() for compute in registry.get(name).computes("gpu") if compute.name}
    missing = sorted(own - names)
    assert not missing, f"{missing}: expected rows of ops/opbox_ops/selfcheck/ whose small call they take"


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.op}-{k}" for k, row in enumerate(ROWS)])
def test_a_row_is_right(row: Row) -> None:
    answers = compared(Comparison, row, row.types[0])
    assert answers
    assert not [f"{name}: {reason}" for name, reason in answers.items() if reason]


def test_a_right_device(caplog: pytest.LogCaptureFixture) -> None:
    record_without(FIRST, SECOND, "network")
    answers = checked()
    assert answers[NAME, "float32"] == answers["softmin/cuda.softmax", "float32"] == ""
    assert answers["cuda-graphs", trust.ANY_TYPE] == answers[trust.ANY_COMPUTE, trust.ANY_TYPE] == ""
    assert sentences(DEVICE) == []
    assert summary(DEVICE).endswith("kernels passed their check")
    caplog.clear()
    assert checked() == answers, "what is known is not checked again"
    assert not caplog.records


def test_a_wrong_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    record_without(FIRST, SECOND)
    monkeypatch.setenv("PRETEND_GPU_INSERT", f"{KERNEL}: if (blockIdx.x == 0) return;")
    answers = checked()
    assert answers[NAME, "float32"].startswith("differs from NumPy: expected 0.")
    assert answers[NAME, "float32"].endswith("at (0, 0), got nan")
    [line, _] = sentences(DEVICE)
    assert line.startswith(f"{NAME} is not used for float32: differs from NumPy")
    assert line in summary(DEVICE)
    monkeypatch.delenv("PRETEND_GPU_INSERT")
    with trust.choices(lambda name, dtype: pytest.fail(f"{name} was chosen")):
        softmaxed()


def test_a_kernel_that_gives_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    record_without(FIRST)
    once = "static int runs; if (!threadIdx.x && !blockIdx.x) ++runs; if (runs % 2 == 0 && blockIdx.x == 0) return;"
    monkeypatch.setenv("PRETEND_GPU_INSERT", f"{KERNEL}: {once}")
    assert checked()[NAME, "float32"] == "gives other bits in a second run"


def test_a_wrong_algorithm_of_cudnn_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    record_without("cuDNN float32")
    monkeypatch.setenv("PRETEND_CUDNN_WRONG", "6")
    answers = checked()
    wrong = {name for (name, _), reason in answers.items() if reason}
    assert wrong == {"cuDNN Forward algorithm 6"}
    assert {name.split()[1] for name, _ in answers} == {"Forward", "BackwardData", "BackwardFilter"}
    shapes = ((2, 4, 8, 8), (4, 4, 3, 3), (2, 4, 8, 8))
    window = ((1, 1), (1, 1), (1, 1))
    problem = ConvolutionProblem.of(FORWARD, "float32", shapes, window, 1, False, False, 1 << 24)
    with backend_for(DEVICE).scope():
        handle = current_handle()
        assert handle is not None
        numbers = {one.number for one in usable_algorithms(handle, problem)}
        trust.forget()
        assert {one.number for one in usable_algorithms(handle, problem)} == numbers | {6}


@pytest.mark.parametrize("fault", ["error", "crash"])
def test_a_kernel_that_ends_its_process(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The check goes on behind it, in another process."""
    record_without(FIRST, DENSE, FINITE)
    if fault == "error":
        monkeypatch.setenv("PRETEND_GPU_FAULT", KERNEL)
    else:
        monkeypatch.setenv("PRETEND_GPU_INSERT", f"{KERNEL}: __builtin_trap();")
    answers = checked()
    reason = answers[NAME, trust.ANY_TYPE]
    assert ("CUDA error 700" in reason) if fault == "error" else ("its process ended (killed by SIG" in reason)
    assert "" in answers.values(), "others were checked"
    assert [line for line in sentences(DEVICE) if line.startswith(f"{NAME} is not used: ")]


def test_a_kernel_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    record_without(FIRST, DENSE)
    monkeypatch.setenv("PRETEND_GPU_INSERT", f"{KERNEL}: for (volatile int on = 1; on;);")
    answers = checked(hang_s=8)
    assert answers[NAME, trust.ANY_TYPE] == "it did not end within 8 s"
    assert answers["FullyConnected/cuda.fully_connected", "float32"] == ""


def test_when_the_time_is_up_the_next_start_goes_on() -> None:
    record_without(FIRST)
    record, problem = admit(DEVICE, backend_for(DEVICE), 0.0)
    assert problem == "the time of 0 s was up"
    assert (record.answers, record.finished) == ({}, False)
    assert "opbox gpu-selfcheck goes on with it; CuPy computes what is not checked" in summary(DEVICE)
    with trust.choices(lambda name, dtype: pytest.fail(f"{name} was chosen, unchecked")):
        softmaxed()
    assert checked() == RIGHT


def test_a_broken_verdict_is_found_out_anew() -> None:
    record = record_without(FIRST)
    lines = record.path.read_text().splitlines()
    garbage = ["\0\xff", "[1]", '{"unit": 3}', '{"lost": 1}', '{"running": [[1]]}', '{"unit": "x", "answers": [["a"]]}']
    record.path.write_text("\n".join([lines[0], *garbage, *lines[1:], '{"unit": "soft']), encoding="latin-1")
    assert checked() == RIGHT
    record.path.write_bytes(b"\xff\xfe" * 100)
    record.read()
    assert (record.units, record.answers, record.finished) == (set(), {}, False)


def test_a_verdict_of_another_driver_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_without()
    record.add(unit=FIRST, answers=[[NAME, "float32", "differs from NumPy"]])
    record.add(finished=1)
    assert checked()[NAME, "float32"]
    another = {**record.identity, "driver": "another"}
    monkeypatch.setattr(admission, "identity_of", lambda backend: another)
    other = record_without(FIRST, identity=another)
    assert other.path != record.path
    assert checked() == RIGHT
    # A file that was renamed does not hold either.
    other.path.write_bytes(record.path.read_bytes())
    other.read()
    assert (other.answers, other.finished) == ({}, False)


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(file / "folder"))
    record, problem = admit(DEVICE, backend_for(DEVICE), 0.0)
    assert problem
    assert record.problem == (
        f"the verdict cannot be kept in {file / 'folder'} (Not a directory): every process checks anew"
    )


def test_a_check_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    record_without(FIRST)
    monkeypatch.setenv("PRETEND_GPU_DEVICES", "0")
    _, problem = admit(DEVICE, backend_for(DEVICE), LIMIT_S)
    assert problem.startswith("its process ended (exit status 1) before it checked anything: ")


REFUSED = "softmax/cuda.softmax is not used for float32: differs from NumPy"


def refused_record() -> Record:
    """A record that is finished, with one kernel that is wrong and one that is right."""
    record = record_without()
    record.add(unit=FIRST, answers=[[NAME, "float32", "differs from NumPy"], ["sort/cuda.order", "float32", ""]])
    record.add(finished=1)
    return record


def test_the_command_says_what_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    record = refused_record()
    assert main(["gpu-selfcheck", "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["refused"] == [{"kernel": NAME, "type": "float32", "reason": "differs from NumPy"}]
    assert (verdict["complete"], verdict["right"], verdict["file"]) == (True, False, str(record.path))
    assert main(["gpu-selfcheck"]) == 1
    assert capsys.readouterr().out == f"{DEVICE}: 1 of 2 kernels passed their check; {REFUSED}\n"


def test_a_server_tells_what_it_does_not_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused_record()
    server = Live("process", tmp_path, OPBOX_DEVICES=json.dumps([DEVICE]), OPBOX_GPU_SELFCHECK_S="300")
    try:
        rows = server.call("GET", "/v1/devices").header["devices"]
        lines = {row["kernels"] for row in rows if row["device"] == DEVICE}
        assert lines == {f"1 of 2 kernels passed their check; {REFUSED}"}
        assert {row["kernels"] for row in rows if row["device"] == "cpu"} == {""}
        monkeypatch.setenv("OPBOX_URL", server.url)
        monkeypatch.setenv("OPBOX_TOKEN", TOKENS["ann"])
        shown = subprocess.run([sys.executable, "-m", "opbox.cli", "status"], capture_output=True, text=True)
        assert f"{DEVICE}: 1 of 2 kernels passed their check; {REFUSED}" in shown.stdout.splitlines()
    finally:
        server.stop()
