"""OpenBLAS's threads sleep soon after their work, in every process of opbox's, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from opbox_protocol.idle_threads import TICKS

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
PLAIN = {name: value for name, value in os.environ.items() if name != VARIABLE}

IDLE = """
import time
import numpy as np
a = np.ones((160, 160), np.float32)
a @ a  # starts the threads
start = time.thread_time(), time.process_time()
for _ in range(10):
    a @ a
    time.sleep(0.05)
own, all_threads = time.thread_time() - start[0], time.process_time() - start[1]
print(all_threads - own)
"""


def output(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=PLAIN | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def seconds(beginning: str, **environment: str) -> float:
    """Processor seconds of NumPy's threads beside the main one, over ten products with pauses of 50 ms.

    The least of three: a machine that is busy with other things adds to it.
    """
    script = f"{beginning}\n{IDLE}"
    return min(float(output(script, OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="2", **environment)) for _ in range(3))


def takes_half(beginning: str, other: str, **environment: str) -> bool:
    """Return whether threads take less than half of the time of another beginning's, in one of ten comparisons.

    Other programs take the cores from threads that look for work, which then seem to look for less of it.
    """
    return any(seconds(beginning) < seconds(other, **environment) / 2 for _ in range(10))


@pytest.mark.parametrize("package", ["opbox", "opbox_service"])
def test_it_is_set_before_numpy_is_imported(package: str) -> None:
    script = f"""
import builtins, os, sys
imported = builtins.__import__
def watched(name, *rest):
    if name == "numpy" and "numpy" not in sys.modules:
        print(os.environ.get("{VARIABLE}"))
    return imported(name, *rest)
builtins.__import__ = watched
import {package}
import numpy
"""
    assert output(script).splitlines()[0] == str(TICKS)


def test_the_users_own_choice_stands() -> None:
    assert output(f"import os, opbox; print(os.environ['{VARIABLE}'])", **{VARIABLE: "20"}) == "20"


two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one core NumPy's products have one thread")


@two_cores
def test_threads_without_work_take_no_core() -> None:
    """With OpenBLAS's own choice its threads look for work through half of the pauses between the products."""
    assert takes_half("import opbox", "import opbox", **{VARIABLE: "26"})


@two_cores
def test_an_embedded_engine_has_them_sleep_where_numpy_came_first() -> None:
    numpy_first = "import numpy as np\nnp.ones((512, 512)) @ np.ones((512, 512))\nimport opbox\n"
    engine = "from opbox_service.embedded import engine\nengine()"
    assert takes_half(numpy_first + engine, numpy_first)


@two_cores
def test_threads_of_pythons_are_not_disturbed() -> None:
    script = """
import threading
import numpy as np
import opbox
from opbox_protocol.idle_threads import IdleThreads
from opbox_service.blas_threads import restart_blas_threads
ended = threading.Event()
threading.Thread(target=ended.wait).start()
print(restart_blas_threads(), IdleThreads.too_late)
ended.set()
"""
    assert output(script) == "False True"
