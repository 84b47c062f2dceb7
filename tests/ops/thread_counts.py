"""What a script computes with one thread, and with several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["assert_same_bits"]


def assert_same_bits(script: str) -> bytes:
    """Assert that the script prints something, and the same whatever the number of threads; return it.

    Each run is a process of its own, as libgomp reads the number at its start.
    """
    outputs = []
    for threads in ("1", "2", "3", "5", "8"):
        settings = {**os.environ, "OMP_NUM_THREADS": threads}
        command, root = [sys.executable, "-c", script], Path(__file__).parents[2]
        outputs.append(subprocess.run(command, env=settings, cwd=root, capture_output=True, check=True).stdout)
    assert outputs[0]
    assert outputs[1:] == [outputs[0]] * 4
    return outputs[0]
