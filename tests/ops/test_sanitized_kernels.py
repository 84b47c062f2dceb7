"""The kernels in C read and write nothing beyond their arrays: they run under gcc's sanitizers of addresses and of
undefined behaviour, at sizes that fill no vector, block or tile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import needs_vectors

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests/ops/sanitized_program.py"
SANITIZE = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
KERNELS = 13
"""Kernels that the program compiles at least. One more measures how long a thread's pause is, unless GOMP_SPINCOUNT is
set."""


def libraries() -> list[str]:
    """The sanitizers' libraries, which a process has to load before all others; [] without them."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return []
    names = ("libasan.so", "libubsan.so")
    ask = [subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True) for name in names]
    paths = [done.stdout.strip() for done in ask]
    return paths if all(map(os.path.isabs, paths)) else []


def run(folder: Path, program: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program whose kernels are compiled with sanitizers, by a `gcc` that comes first in its PATH."""
    (folder / "bin").mkdir(parents=True)
    gcc = folder / "bin/gcc"
    gcc.write_text(f'#!/bin/sh\nexec {shutil.which("gcc")} "$@" {SANITIZE}\n')
    gcc.chmod(0o755)
    settings = {
        "PATH": f"{gcc.parent}:{os.environ['PATH']}",
        "LD_PRELOAD": " ".join(libraries()),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it has until its end
        "OPBOX_CACHE_DIR": str(folder / "cache"),
        "OPBOX_C_KERNELS": "now",
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, str(program)]
    return subprocess.run(command, env={**os.environ, **settings}, cwd=ROOT, capture_output=True, text=True)


pytestmark = [
    needs_vectors,
    pytest.mark.skipif(not libraries(), reason="needs gcc and its libraries libasan and libubsan"),
]


@pytest.mark.timeout(900)  # gcc compiles each kernel with its sanitizers: 100 s on two quiet cores
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stderr[-8000:]
    last = done.stdout.splitlines()[-1]
    assert last.startswith("compiled "), done.stdout
    assert int(last.split()[1]) >= KERNELS, done.stdout


def test_a_kernel_that_reads_beyond_its_array_is_seen(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np\n"
        "from opbox_ops.cpu.runtime import c_compiler\n"
        "text = 'double opbox_last(const double *x, long n) { return x[n]; }'\n"
        "import ctypes\n"
        "last = c_compiler.compiled_function(text, 'opbox_last')\n"
        "last.restype, last.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_long]\n"
        "x = np.ones(100)\n"
        "last(x.ctypes.data, x.size)\n"
    )
    done = run(tmp_path / "run", program)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-4000:]
