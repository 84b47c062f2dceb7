"""The files of kernels in C: they compile as they are, for each set of instructions, and without a warning."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from opbox_ops import cpu
from opbox_ops.cpu.runtime.kernel_build import UNITS, Unit
from opbox_ops.cpu.runtime.kernel_text import kernel_text
from tests.machine import needs_compiler

FOLDER = Path(cpu.__file__).with_name("kernels")
PROCESSORS = {"AVX2": "haswell", "AVX-512": "skylake-avx512", "AMX": "sapphirerapids"}
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-Wno-unused-parameter"]
"""Fields of a structure that are left out are zeros, which is meant. A function for a matrix unit does not read its
parameters without one."""


@needs_compiler
@pytest.mark.parametrize("processor", PROCESSORS)
def test_files_compile_without_a_warning(processor: str) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc") or "clang"
    if subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True).stdout[:6] != "x86_64":
        pytest.skip("a compiler for another processor than x86-64")
    for unit in (*UNITS, Unit("threads.c")):
        if unit.needs_unit and processor != "AMX":
            continue
        options = ["-std=gnu11", "-fopenmp", f"-march={PROCESSORS[processor]}", "-fsyntax-only", *WARNINGS]
        options += [f"-D{macro}={value}" for macro, value in unit.definitions]
        done = subprocess.run([compiler, *options, str(FOLDER / unit.file)], capture_output=True, text=True)
        assert done.returncode == 0, f"{unit} for {processor}:\n{done.stderr}"


def test_a_text_has_each_header_once_and_needs_no_other_file() -> None:
    text = kernel_text("unit_steps.c")
    assert '#include "' not in text
    assert "#pragma once" not in text
    assert text.count("} Share;") == 1
    assert kernel_text("winograd.c", TAPS=3) == "#define TAPS 3\n" + kernel_text("winograd.c")


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.c"):
        kernel_text("nowhere.c")
