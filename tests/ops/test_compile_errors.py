"""A kernel that does not compile: the compiler's words are logged once, NumPy computes, and the tests fail."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from ctypes import c_void_p
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opbox_ops.cpu.algorithms import blocked_product, short_rows, winograd
from opbox_ops.cpu.runtime import c_compiler, processor
from opbox_ops.cpu.runtime.c_kernel import CKernel
from opbox_ops.expression import swept
from opbox_ops.expression.c_source import c_source
from opbox_ops.nn import layer_norm_rows, lrn_channels
from tests.machine import needs_compiler, needs_vectors
from tests.switches import set_c_kernels

from .test_swept import example

ROOT = Path(__file__).parents[2]
BROKEN = "void opbox_broken(void) { return nonsense; }"

pytestmark = [needs_compiler, pytest.mark.broken_kernel]


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_command_and_words_are_logged_once_a_text(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("opbox_broken", "opbox_broken", "opbox_other"):
        assert c_compiler.compiled_function(BROKEN, name) is None
    assert c_compiler.compiled_functions(BROKEN, {"opbox_broken": [], "opbox_other": []}) is None
    alone, in_threads = errors(caplog)
    assert "-march=native" in alone
    assert "-fopenmp" in in_threads
    for message in (alone, in_threads):
        assert "error: " in message
        assert "nonsense" in message


def test_a_function_that_the_text_lacks_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    assert c_compiler.compiled_function("int answer(void) { return 42; }", "opbox_missing") is None
    (message,) = errors(caplog)
    assert "opbox_missing" in message


def test_what_cannot_be_linked_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    text = "void elsewhere(void); void here(void) { elsewhere(); } void *opbox_place = elsewhere;"
    assert c_compiler.compiled_function(text, "here") is None
    assert c_compiler.compiled_function(text, "opbox_place") is None
    (message,) = errors(caplog)
    assert "elsewhere" in message


def test_the_background_says_so_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    set_c_kernels(monkeypatch, "1")
    kernel = CKernel(f"{BROKEN}\n", "opbox_broken", [c_void_p], hot=1)
    assert kernel.ready(2) is None
    end = time.monotonic() + 60
    while not errors(caplog) and time.monotonic() < end:
        time.sleep(0.01)
    (message,) = errors(caplog)
    assert "nonsense" in message
    assert kernel.ready(2) is None


def test_an_embedded_program_goes_on_and_is_told(tmp_path: Path) -> None:
    """Without logging of its own Python prints errors; the numbers are NumPy's."""
    script = f"""if True:
        from opbox_ops.nn import lrn_channels
        lrn_channels.TEXT += {BROKEN!r}
        import opbox as mx
        print(mx.nd.LRN(mx.nd.ones((1, 2, 3, 3)), nsize=3, alpha=0.5, beta=0.75, knorm=1).asnumpy().sum())
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(18 * (1 + 0.5 / 3 * 2) ** -0.75)
    if processor.has_vectors():
        assert done.stderr.count("a C kernel does not compile") == 1
        assert "nonsense" in done.stderr


@pytest.mark.skipif(not processor.has_vectors(), reason="a processor with neither AVX-512 nor AVX2")
def test_a_text_for_vectors_is_not_compiled_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "flags", lambda: frozenset({"sse2", "avx"}))
    monkeypatch.setattr(c_compiler, "_compile", lambda *_: pytest.fail("compiled"))
    assert blocked_product.blocked_product() is None
    assert winograd.winograd() is None
    assert layer_norm_rows.layer_norm_rows() is None
    assert lrn_channels.lrn_channels() is None
    assert short_rows.short_rows() is None


def test_the_text_of_a_formula(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a graph has made: it is asked for once, and NumPy's numbers are there all the same."""
    monkeypatch.setattr(swept, "c_source", lambda *of: replace(c_source(*of), text=c_source(*of).text + BROKEN))
    set_c_kernels(monkeypatch, "now")
    for _ in range(2):
        kernel, arrays, out = example()
        kernel.bind(out.shape, arrays, [out], {})()
        np.testing.assert_array_equal(out, arrays[0] * arrays[1] + arrays[2])
    (message,) = errors(caplog)
    assert "nonsense" in message


PLANTED = """
import sys
import pytest
from opbox_ops.nn import lrn_channels
lrn_channels.TEXT += "void opbox_broken(void) { return nonsense; }"
sys.exit(pytest.main(["-p", "no:cacheprovider", "-n", "0", "-rfs", "tests/ops/test_lrn_channels.py", "-k", "bits"]))
"""


@needs_vectors
def test_a_syntax_error_in_a_kernel_fails_its_tests() -> None:
    """They are not skipped, and one of them says what the compiler did."""
    done = subprocess.run([sys.executable, "-c", PLANTED], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "skipped" not in done.stdout
    assert "a C kernel does not compile" in done.stdout
    assert "nonsense" in done.stdout


ELSEWHERE = f"""
from opbox_ops.cpu.runtime import c_compiler

def test_whose_numbers_are_right():
    assert c_compiler.compiled_function({BROKEN!r}, "opbox_broken") is None
"""


def test_a_test_that_passes_by_numpy_fails_too(tmp_path: Path) -> None:
    file = tmp_path / "test_elsewhere.py"
    file.write_text(ELSEWHERE)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run([*command, f"--rootdir={ROOT}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "nonsense" in done.stdout
