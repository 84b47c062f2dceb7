"""Softmax and its gradients by C kernels: the bits are NumPy's, and NumPy computes where there are none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.cpu.algorithms import softmax_rows as row_kernels
from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.expression import numpy_loops
from tests.machine import needs_compiler
from tests.switches import set_c_kernels

from .one_call import call_graph, run_call
from .thread_counts import assert_same_bits

SHAPES = [(1, 1), (3, 1), (1, 7), (5, 7), (128, 10), (9, 16), (33, 130), (2, 5000), (1, 9001), (3000, 3), (4, 3, 5)]
SOFTMAX = [
    ("softmax", {}),
    ("softmax", {"temperature": 2.5}),
    ("softmax", {"axis": 0}),
    ("softmin", {}),
    ("log_softmax", {}),
    ("log_softmax", {"temperature": 0.3}),
    ("SoftmaxActivation", {}),
]
OUTPUT: list[dict[str, Any]] = [
    {},
    {"grad_scale": -0.7, "normalization": "batch"},
    {"use_ignore": True, "ignore_label": 1, "normalization": "valid"},
    {"smooth_alpha": 0.1, "out_grad": True},
    {"smooth_alpha": 0.1, "use_ignore": True, "ignore_label": 0, "grad_scale": 3.3, "normalization": "valid"},
    {"multi_output": True, "use_ignore": True, "ignore_label": 2, "normalization": "null"},
    {"preserve_shape": True, "normalization": "valid"},
    {"ignore_label": 1e30, "use_ignore": True},
]


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(folder))
    row_kernels.kernels_for.cache_clear()


def numbers(shape: tuple[int, ...], dtype: str, seed: int, wild: bool = False) -> Any:
    """Numbers, with NaN, infinities and both zeros among them where `wild`."""
    rng = np.random.default_rng(seed)
    array = np.asarray(rng.normal(size=shape) * 4, dtype)
    if wild:
        places = rng.permutation(array.size)[: array.size // 9]
        array.reshape(-1)[places] = rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype), places.size)
    return array


def both(monkeypatch: pytest.MonkeyPatch, op: str, attrs: dict[str, Any], arrays: dict[str, Any]) -> int:
    """Compare the bits by NumPy and by kernels, in forward and backward; return how often kernels computed."""
    calls = 0
    find = row_kernels.row_kernels

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        kernels = find(*arguments)
        calls += kernels is not None
        return kernels

    monkeypatch.setattr("opbox_ops.nn.softmax.row_kernels", counted)
    monkeypatch.setattr("opbox_ops.loss.softmax_output.row_kernels", counted)
    results = []
    for mode in ("0", "now"):
        set_c_kernels(monkeypatch, mode)
        row_kernels.kernels_for.cache_clear()
        graph = call_graph(op, attrs, list(arrays))
        results.append(run_call(graph, arrays, ["data"], lambda k, out: numbers(out.shape, out.dtype.name, 5)))
        assert mode == "now" or calls == 0
    for name, expected in results[0].items():
        got = results[1][name]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=name)
        real = ~np.isnan(expected)
        assert got[real].tobytes() == expected[real].tobytes(), name
    return calls


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "attrs"), SOFTMAX)
def test_softmax_has_numpys_bits(op: str, attrs: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in SHAPES:
        for wild in (False, True):
            calls = both(monkeypatch, op, attrs, {"data": numbers(shape, dtype, len(shape), wild)})
            assert calls == (0 if attrs.get("axis") == 0 and len(shape) + shape[-1] > 3 else 2), shape


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("attrs", OUTPUT, ids=str)
def test_softmax_output_has_numpys_bits(attrs: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in SHAPES:
        rows = shape[:-1] if attrs.get("preserve_shape") else shape[:1]
        classes = shape[-1] if attrs.get("preserve_shape") else int(np.prod(shape[1:]))
        if len(shape) > 2 and not attrs.get("preserve_shape"):
            continue
        rng = np.random.default_rng(3)
        label = rng.integers(-1, classes + 1, rows).astype(dtype) + rng.choice([0, 0.25], rows).astype(dtype)
        label.reshape(-1)[:2] = [np.nan, 1e30][: label.size]
        for wild in (False, True):
            arrays = {"data": numbers(shape, dtype, 2, wild), "label": label}
            assert both(monkeypatch, "SoftmaxOutput", attrs, arrays) == (1 if attrs.get("ignore_label") == 1e30 else 2)


@needs_compiler
def test_softmax_output_with_positions_and_with_more_labels_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data, label = numbers((2, 4, 3), "float32", 0), np.arange(6, dtype="float32").reshape(2, 3) % 4
    assert both(monkeypatch, "SoftmaxOutput", {"multi_output": True}, {"data": data, "label": label}) == 0
    label = np.arange(8, dtype="float32").reshape(2, 4)
    attrs = {"normalization": "valid", "ignore_label": 5}
    assert both(monkeypatch, "SoftmaxOutput", attrs, {"data": data, "label": label}) == 2


@needs_compiler
@pytest.mark.parametrize("stored", [False, True])
def test_the_background_makes_kernels(stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After enough calls; at once where they are on the disk."""
    kernels = row_kernels.RowKernels(np.dtype("float32"))
    if stored:
        set_c_kernels(monkeypatch, "now")
        assert row_kernels.RowKernels(np.dtype("float32")).ready(1)
    else:
        monkeypatch.setattr(row_kernels, "HOT", 1)
    set_c_kernels(monkeypatch, "1")
    end = time.monotonic() + 60
    while not kernels.ready(1) and time.monotonic() < end:
        time.sleep(0.01)
    assert kernels.ready(1)


def test_few_calls_make_no_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path))
    set_c_kernels(monkeypatch, "1")
    monkeypatch.setattr(c_compiler, "_compile", lambda *arguments: pytest.fail("compiled"))
    wanted: list[Any] = []
    monkeypatch.setattr(c_compiler, "request", wanted.append)
    kernels = row_kernels.RowKernels(np.dtype("float32"))
    texts: list[str] = []
    monkeypatch.setattr(row_kernels, "kernel_text", lambda *name, **macros: texts.append("int no_kernel;") or texts[-1])
    assert not any(kernels.ready(1280) for _ in range(100))
    assert len(texts) == 1, "a text is put together once, not in each call"
    (load,) = wanted
    load()
    assert not any(kernels.ready(1280) for _ in range(2000))
    assert len(wanted) == 2


@pytest.mark.broken_kernel
@pytest.mark.parametrize("case", ["switched off", "no compiler", "it fails", "sums differ"])
def test_without_kernels_numpy_computes(case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_c_kernels(monkeypatch, "0" if case == "switched off" else "now")
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path))
    program = tmp_path / "cc"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    if case in ("no compiler", "it fails"):
        compiler = None if case == "no compiler" else (str(program), "")
        monkeypatch.setattr(c_compiler, "_compiler", lambda: compiler)
        monkeypatch.setattr(c_compiler, "_function", c_compiler._function.__wrapped__)
    if case == "sums differ":
        monkeypatch.setattr(numpy_loops, "loop_of", lambda name, work: None)
        monkeypatch.setattr(row_kernels, "summing_loop", numpy_loops.summing_loop.__wrapped__)
    data = numbers((3, 5), "float32", 0)
    assert row_kernels.row_kernels(np, data, data) is None
    out = run_call(call_graph("softmax", {}, ["data"]), {"data": data}, [], None)["out:0"]
    powers = np.exp(data.astype("float64"))
    np.testing.assert_allclose(out, powers / powers.sum(axis=1, keepdims=True), rtol=1e-6)


def test_what_is_no_row_in_memory_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    set_c_kernels(monkeypatch, "now")
    data = numbers((4, 6), "float32", 0)
    assert row_kernels.row_kernels(np, data, data[:, ::2]) is None
    assert row_kernels.row_kernels(np, data.T) is None
    assert row_kernels.row_kernels(np, data[:0]) is None
    assert row_kernels.row_kernels(np, data, data.astype("float64")) is None
    assert row_kernels.row_kernels(np, data.astype("float16")) is None
    assert row_kernels.row_kernels(np, data.astype(">f4")) is None
    assert row_kernels.row_kernels(object(), data) is None


BITS = """
import os, sys
os.environ["OPBOX_C_KERNELS"] = "now"
import numpy as np
from opbox_ops.cpu.algorithms.softmax_rows import kernels_for
results = []
for dtype, shape in (("float32", (700, 100)), ("float64", (90, 1001))):
    kernels = kernels_for(np.dtype(dtype))
    assert kernels.ready(10**6)
    rows, size = shape
    data = np.random.default_rng(0).normal(size=shape).astype(dtype)
    out, gdata = np.empty_like(data), np.empty_like(data)
    sums, powers, room = np.empty(rows, dtype), np.empty(shape, dtype), np.empty(shape, dtype)
    for log in (False, True):
        kernels.softmax(data, out, sums, powers if log else None, rows, size, 0.7)()
        kernels.softmax_gradient(data, out, gdata, room, rows, size, 0.7, log)()
        results += [out.tobytes().hex(), gdata.tobytes().hex()]
sys.stdout.write("".join(results))
"""


@needs_compiler
def test_bits_do_not_depend_on_threads() -> None:
    assert_same_bits(BITS)
