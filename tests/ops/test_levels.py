"""The operator table once more, for operators that have computes above the reference's: with the reference's forced.

The table itself runs what an executor would choose, so that both are compared with MXNet's values.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.compute import LEVELS, ArraySpec, CallSpec, highest_level
from opbox_ops.cpu.onednn import library as onednn
from opbox_ops.cpu.onednn.library import library
from opbox_ops.cpu.runtime import gomp_threads
from opbox_ops.cpu.runtime.c_compiler import spins
from opbox_ops.cpu.runtime.gomp_threads import MAX_ROUNDS, MIN_ROUNDS, SPINS, rounds_of
from tests.cases import all_cases
from tests.cases.case import Case
from tests.cases.values import is_float
from tests.machine import needs_onednn, needs_vectors

from . import test_operator_table as table

LIBRARY = (
    *("BatchNorm", "Concat", "Convolution", "Convolution_v1", "Deconvolution", "FullyConnected", "GroupNorm"),
    *("InstanceNorm", "L2Normalization", "LRN", "LayerNorm", "Pooling", "RNN", "SliceChannel", "SoftmaxActivation"),
    *("SoftmaxOutput", "_rnn_param_concat", "_split_v2", "batch_dot", "dot", "log_softmax", "max", "mean", "min"),
    *("norm", "softmax", "softmin"),
)
"""Operators with computes of level "library" for the CPU."""

ROWS = [
    pytest.param(case, dtype, id=f"{dtype}-{case.id}")
    for case in all_cases()
    if case.op in LIBRARY
    for dtype in case.dtypes
    if dtype in ("float16", "float32", "bfloat16")
]


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only reference computes are chosen."""
    monkeypatch.setenv("OPBOX_COMPUTE_LEVEL", LEVELS[0])
    highest_level.cache_clear()
    yield
    highest_level.cache_clear()


def call_of(op: str, attrs: dict[str, Any], *shapes: tuple[int, ...], out: tuple[int, ...], dtype: str) -> CallSpec:
    ins = tuple(ArraySpec(shape, np.dtype(dtype)) for shape in shapes)
    return CallSpec("cpu", ins, (ArraySpec(out, np.dtype(dtype)),) * registry.get(op).num_outputs(parsed(op, attrs)))


def parsed(op: str, attrs: dict[str, Any]) -> Any:
    return registry.get(op).parse({key: str(value) for key, value in attrs.items()})


def test_the_operators_with_library_computes() -> None:
    """The list above is the registry's."""
    forward = {name for name in registry.names() if not name.startswith("_backward")}
    levels = {name: {compute.level for compute in registry.get(name).computes("cpu")} for name in forward}
    assert {name for name, those in levels.items() if "library" in those} == set(LIBRARY)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(("case", "dtype"), ROWS)
def test_the_reference(case: Case, dtype: str) -> None:
    table.test_forward("cpu", case, dtype)
    if case.grad and is_float(dtype):
        table.test_gradient("cpu", case, dtype)
    table.test_requests("cpu", case, dtype)


CONVOLUTION = {"kernel": (3, 3), "num_filter": 4, "no_bias": True}


def chosen(dtype: str, samples: int = 2) -> str:
    """The level of the compute that a convolution gets."""
    call = call_of("Convolution", CONVOLUTION, (samples, 3, 8, 8), (4, 3, 3, 3), out=(samples, 4, 6, 6), dtype=dtype)
    return registry.get("Convolution").choose(parsed("Convolution", CONVOLUTION), call).level


@needs_onednn
def test_onednn_takes_what_it_has() -> None:
    """float32 always; float64 and arrays without elements never."""
    assert library() is not None, "install onednn-cpu-gomp (make test does)"
    assert chosen("float32") == "library"
    assert chosen("float64") == "reference"
    assert chosen("float32", samples=0) == "reference"


@pytest.mark.usefixtures("reference")
def test_a_level_is_forced() -> None:
    assert chosen("float32") == "reference"


def test_without_the_library_the_reference_runs() -> None:
    script = "import tests.ops.test_levels as levels; print(levels.chosen('float32'), levels.library())"
    environment = {**os.environ, "OPBOX_ONEDNN": "/nowhere/libdnnl.so.3"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["reference", "None"]


@needs_vectors
def test_a_compiled_kernel_loads_the_threads_so_too() -> None:
    """Without oneDNN before it: a kernel is linked with libgomp."""
    script = """if True:
        import os
        from opbox_ops.cpu.algorithms.blocked_product import blocked_product
        from opbox_ops.cpu.onednn.library import library
        compiled = blocked_product() is not None
        print(compiled, library.cache_info().currsize, os.environ.get("GOMP_SPINCOUNT"))
    """
    names = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
    environment = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    compiled, loaded, rounds = done.stdout.split()
    assert (compiled, loaded) == ("True", "0")
    assert MIN_ROUNDS <= int(rounds) <= MAX_ROUNDS


def test_threads_spin_for_a_time() -> None:
    """Rounds by how long a pause takes; within bounds, whatever the clock says."""
    assert rounds_of(lambda count: time.sleep(20e-9 * count)) in range(MIN_ROUNDS, 3500)
    assert rounds_of(lambda count: time.sleep(1e-6 * count)) == MIN_ROUNDS
    assert rounds_of(lambda count: None) == MAX_ROUNDS
    assert rounds_of(None) == SPINS


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": str(spins()), "OMP_WAIT_POLICY": "ACTIVE"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": "ACTIVE"}),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_WAIT_POLICY": "PASSIVE"}),
    ],
    ids=["by default", "set by the user", "another policy"],
)
@pytest.mark.parametrize("fails", [False, True])
def test_threads_without_work_sleep_soon(
    environment: dict[str, str], expected: dict[str, str], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library finds when it is loaded; the policy is not left behind."""
    names, seen = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"), []

    def load(path: Path) -> Any:
        seen.append({name: os.environ[name] for name in names if name in os.environ})
        raise OSError if fails else StopIteration

    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gomp_threads, "_loaded", lambda: None)
    monkeypatch.setattr(onednn, "Library", load)
    monkeypatch.setattr(onednn, "_candidates", lambda: [Path(__file__)])
    with contextlib.suppress(StopIteration):
        assert onednn._attempt.__wrapped__().library is None
    assert seen == [expected]
    left = expected if "OMP_WAIT_POLICY" in environment else {"GOMP_SPINCOUNT": expected["GOMP_SPINCOUNT"]}
    assert {name: os.environ[name] for name in names if name in os.environ} == left


def test_nothing_is_set_once_the_threads_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """libgomp would not read it, and other threads may be reading the environment."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gomp_threads, "_loaded", lambda: object())
    before = dict(os.environ)
    with gomp_threads.bounded_spinning(lambda: 7):
        assert dict(os.environ) == before
