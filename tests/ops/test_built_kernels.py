"""Kernels that are compiled with the distribution: what a library has, which is loaded, and what a stale one does."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opbox_ops.cpu.algorithms import blocked_product, column_sums, norm_sweeps, recurrent_cells, short_rows, unit_steps
from opbox_ops.cpu.algorithms import winograd as winograd_functions
from opbox_ops.cpu.algorithms.softmax_rows import RowKernels
from opbox_ops.cpu.runtime import c_compiler, gomp_threads, processor
from opbox_ops.cpu.runtime.built_kernels import BuiltKernels, built_kernels
from opbox_ops.cpu.runtime.kernel_build import INSTRUCTION_SETS, UNITS, Unit, build, build_compiler, symbol, whole
from opbox_ops.cpu.runtime.kernel_text import kernel_text
from opbox_ops.expression import vector_loops
from opbox_ops.nn import layer_norm_rows, lrn_channels, max_pooling
from tests.machine import needs_vectors

TWO_UNITS = [Unit("column_sums.c"), Unit("norm_numbers.c", threads=False)]
COLUMN_SUMS = kernel_text("column_sums.c")
OWN = [one for one in INSTRUCTION_SETS if processor.flags() >= one.flags][:1]

needs_gcc = pytest.mark.skipif(build_compiler() is None, reason="no GCC for x86-64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler, place = build_compiler(), tmp_path_factory.mktemp("built")
    assert compiler is not None
    assert build(compiler, place, OWN, TWO_UNITS) == {}
    return place


def test_every_text_that_is_asked_for_is_built() -> None:
    texts = {unit.text for unit in UNITS}
    modules = blocked_product, layer_norm_rows, lrn_channels, norm_sweeps, recurrent_cells, short_rows, unit_steps
    asked = {whole(module.TEXT, threads=True) for module in modules}
    asked |= {whole(text, threads=True) for text in max_pooling.TEXTS.values()}
    asked |= {whole(RowKernels(np.dtype(dtype))._text, threads=True) for dtype in ("float32", "float64")}
    asked |= {
        whole(f"#define TAPS {taps}\n{winograd_functions.TEXT}", threads=True) for taps in winograd_functions.KERNELS
    }
    asked |= {whole(text, threads=False) for text in (vector_loops.TEXT, gomp_threads.PAUSES)}
    assert asked <= texts
    files = {path.name for path in (Path(column_sums.__file__).parents[1] / "kernels").glob("*.c")}
    assert {unit.file for unit in UNITS} == files - {"threads.c"}


@needs_gcc
@needs_vectors
@pytest.mark.parametrize("threads", [1, 3])
def test_a_library_computes_in_one_thread_until_it_gets_more(folder: Path, threads: int) -> None:
    library = built_kernels(folder)
    assert library is not None
    function = library.function(whole(COLUMN_SUMS, threads=True), "opbox_column_sums")
    assert function is not None
    function.restype, function.argtypes = None, column_sums.new_kernel()._types
    shared = c_compiler.shared_threads()
    if threads > 1 and shared is not None:
        library.use_threads(shared)
    x, out = np.random.default_rng(0).normal(size=(3000, 700)).astype(np.float32), np.empty(700, np.float32)
    function(x.ctypes.data, out.ctypes.data, *x.shape)
    expected = c_compiler.compiled_function(COLUMN_SUMS, "opbox_column_sums", threads=True)
    assert expected is not None
    other = np.empty_like(out)
    expected.restype, expected.argtypes = None, function.argtypes
    expected(x.ctypes.data, other.ctypes.data, *x.shape)
    np.testing.assert_array_equal(out, other)


@needs_gcc
@needs_vectors
def test_a_library_of_other_sources_is_not_used_and_a_log_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (path,) = folder.iterdir()
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    library = BuiltKernels(copy)
    changed = whole(f"{COLUMN_SUMS}\n", threads=True)
    assert library.function(changed, "opbox_column_sums") is None
    assert not caplog.records, "any text may be compiled"
    for _ in range(2):
        assert library.function(Unit("window_sums.c").text, "opbox_window_sums") is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{copy} was built of other sources than these" in record.getMessage()


@pytest.mark.parametrize("file", ["libnowhere.so.1", "libc.so.6"], ids=["none", "of other functions"])
def test_without_libgomp_there_are_no_threads(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert gomp_threads.load_threads(lambda: 1000, (file,)) is None


def test_a_symbol_names_its_text() -> None:
    one, other = symbol("int one;", "f"), symbol("int other;", "f")
    assert one != other
    assert one.startswith("f_")


def test_the_best_library_of_the_processor_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr("ctypes.CDLL", lambda path: loaded.append(Path(path)))
    for one in INSTRUCTION_SETS:
        (tmp_path / one.file).touch()
    for one in INSTRUCTION_SETS:
        monkeypatch.setattr(processor, "flags", lambda flags=one.flags: flags | {"sse2"})
        assert built_kernels.__wrapped__(tmp_path) is not None
    assert [path.name for path in loaded] == ["amx.so", "avx512.so", "avx2.so"]
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"sse2", "avx"}))
    assert built_kernels.__wrapped__(tmp_path) is None


def test_a_library_that_cannot_be_loaded_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for one in INSTRUCTION_SETS:
        (tmp_path / one.file).write_text("no library")
    monkeypatch.setattr(processor, "flags", lambda: INSTRUCTION_SETS[-1].flags)
    assert built_kernels.__wrapped__(tmp_path) is None
    assert "Install opbox-ops anew" in caplog.text


@needs_gcc
def test_what_does_not_compile_is_reported(tmp_path: Path) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho bad option >&2\nexit 1\n")
    compiler.chmod(0o700)
    failures = build(str(compiler), tmp_path / "built", INSTRUCTION_SETS, TWO_UNITS)
    assert failures == dict.fromkeys(("amx", "avx512", "avx2"), "bad option")
    assert not list((tmp_path / "built").iterdir())


def test_without_gcc_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_compiler() is None


def test_a_build_needs_no_package() -> None:
    """It runs before the distribution's dependencies are there."""
    program = "import sys, runpy; sys.argv = ['setup.py', '--version']; runpy.run_path('setup.py')\n"
    program += "print(*(name for name in ('numpy', 'opbox_ops', 'pydantic') if name in sys.modules))"
    ops = Path(column_sums.__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=ops, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
