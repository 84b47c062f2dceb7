"""A compiler takes no more time than it may, and nothing that it has started stays behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from opbox_ops.compiler_process import run_compiler
from opbox_ops.cpu.runtime import c_compiler
from tests.machine import needs_compiler

ENDLESS = "#if __INCLUDE_LEVEL__ < 150\n#include LOOP\n#include LOOP\n#endif\n"
"""Includes itself 2^150 times: the compiler needs little memory for it, and no end of time."""
PATIENCE_S = 60.0
PROGRAM = """
import sys
from opbox_ops.compiler_process import run_compiler
run_compiler(sys.argv[2:], folder=sys.argv[1], seconds=1000)
"""


def endless(folder: Path) -> list[str]:
    """The command that compiles such a text."""
    text = folder / "loop.c"
    text.write_text(ENDLESS)
    compiler = shutil.which("gcc") or shutil.which("cc") or "clang"
    return [compiler, "-x", "c", f'-DLOOP="{text}"', "-c", str(text), "-o", str(folder / "loop.o")]


def compilers(folder: Path) -> list[psutil.Process]:
    """The processes that work in this folder: a driver, and what it has started."""
    processes = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:
            continue
    return processes


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@needs_compiler
def test_what_takes_too_long_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_compiler(endless(tmp_path), folder=tmp_path, seconds=0.5)
    wait_for(lambda: not compilers(tmp_path))  # they are killed; the last of them may be ending still


@needs_compiler
def test_it_ends_with_the_process_that_runs_it(tmp_path: Path) -> None:
    """Even where that is killed: nobody is left to end it."""
    server = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path), *endless(tmp_path)])
    wait_for(lambda: len(compilers(tmp_path)) >= 2)  # the driver, and the compiler itself
    server.kill()
    server.wait()
    wait_for(lambda: not compilers(tmp_path))


@needs_compiler
def test_its_files_are_in_its_folder(tmp_path: Path) -> None:
    target = tmp_path / "a.so"
    command = [shutil.which("cc") or "gcc", "-v", "-shared", "-x", "c", "-", "-o", str(target)]
    done = run_compiler(command, text=b"int x;", folder=tmp_path, seconds=PATIENCE_S)
    assert done.returncode == 0
    assert target.exists()
    assert f"{tmp_path}/".encode() in done.stderr.replace(str(target).encode(), b"")


def test_status_output_and_environment() -> None:
    script = "import os, sys; print(os.environ['WORD'], sys.stdin.read()); sys.exit(3)"
    done = run_compiler(
        [sys.executable, "-c", script], text=b"text", folder="/", seconds=PATIENCE_S, environment={"WORD": "word"}
    )
    assert (done.returncode, done.stdout) == (3, b"word text\n")
    with pytest.raises(FileNotFoundError):
        run_compiler(["/no/such/compiler"], folder="/", seconds=PATIENCE_S)


@needs_compiler
def test_kernels_in_c_are_compiled_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_CACHE_DIR", str(tmp_path))
    function = c_compiler.compiled_function(f"int number_{os.getpid()}(void) {{ return 7; }}", f"number_{os.getpid()}")
    assert function() == 7
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".so"]
