"""One line says what computes on the CPU, and what to install where something is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from opbox_ops.cpu.onednn.library import PACKAGE, VERSION
from tests.machine import has_compiler, needs_compiler, needs_libgomp, needs_onednn

ROOT = Path(__file__).parents[2]
SCRIPT = "from opbox_ops.cpu.description import cpu_description as d; print(d().incomplete, d().line)"
INSTALL = f"pip install --force-reinstall --no-deps {PACKAGE}=={VERSION}"


def described(**settings: str) -> tuple[bool, str]:
    """Whether something is missing, and the line, in a process of its own."""
    environment = {**os.environ, **settings}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    incomplete, _, line = done.stdout.rstrip("\n").partition(" ")
    assert "\n" not in line
    return incomplete == "True", line


@needs_onednn
@needs_compiler
def test_what_an_installation_has() -> None:
    incomplete, line = described()
    assert not incomplete
    assert re.fullmatch(r"oneDNN 3\.\d+\.\d+ \([^()]+\) and kernels in C", line)


@needs_onednn
def test_a_missing_library() -> None:
    incomplete, line = described(OPBOX_ONEDNN="/nowhere/libdnnl.so.3")
    assert incomplete
    assert line.startswith("kernels in C and NumPy; " if has_compiler() else "NumPy; ")
    assert f"oneDNN, which is faster, is missing: {INSTALL}" in line


@needs_onednn
@pytest.mark.parametrize("content", [b"", b"no library"], ids=["empty", "text"])
def test_a_library_that_cannot_be_loaded(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "libdnnl.so.3"
    file.write_bytes(content)
    incomplete, line = described(OPBOX_ONEDNN=str(file))
    assert incomplete
    assert f"oneDNN, which is faster, cannot be loaded ({file}: " in line
    assert INSTALL in line


@pytest.mark.parametrize("kernels", [True, False], ids=["with kernels", "without"])
@needs_onednn
def test_without_libgomp(kernels: bool, tmp_path: Path) -> None:
    """oneDNN is linked with it, so that installing oneDNN again would change nothing."""
    (tmp_path / "libgomp.so.1").touch()
    incomplete, line = described(LD_LIBRARY_PATH=str(tmp_path), OPBOX_DISABLE="" if kernels else "c-kernels")
    assert incomplete
    uses = "oneDNN needs and kernels in C need for several threads" if kernels and has_compiler() else "oneDNN needs"
    assert f"libgomp, which {uses}, is missing (on Debian: apt-get install libgomp1)" in line
    assert "pip install" not in line


def test_as_a_program_it_prints_what_is_missing_alone() -> None:
    """`make demo` and `make test` end their installation with it."""
    command = [sys.executable, "-m", "opbox_ops.cpu.description"]
    for settings, expected in (
        ({"OPBOX_ONEDNN": "/nowhere"}, "The CPU computes by "),
        ({"OPBOX_COMPUTE_LEVEL": "reference"}, ""),
    ):
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
        assert done.stdout.startswith(expected)
        assert bool(done.stdout) == bool(expected)


def test_without_a_compiler(tmp_path: Path) -> None:
    incomplete, line = described(PATH=str(tmp_path))
    assert incomplete
    assert "kernels in C, which are faster, need a C compiler" in line


@needs_compiler
def test_without_a_folder() -> None:
    incomplete, line = described(OPBOX_CACHE_DIR="not/absolute")
    assert incomplete
    assert "OPBOX_CACHE_DIR" in line


@needs_libgomp
@pytest.mark.parametrize("setting", [{"OPBOX_DISABLE": "c-kernels"}, {"OPBOX_COMPUTE_LEVEL": "reference"}], ids=str)
def test_what_the_user_switched_off_is_not_missing(setting: dict[str, str]) -> None:
    incomplete, line = described(**setting)
    assert not incomplete
    assert "NumPy" in line
    assert "install" not in line


def test_the_distribution_asks_for_it() -> None:
    dependencies = tomllib.loads((ROOT / "ops" / "pyproject.toml").read_text())["project"]["dependencies"]
    marker = "platform_machine == 'x86_64' and sys_platform == 'linux'"
    assert f"{PACKAGE}=={VERSION}; {marker}" in dependencies
