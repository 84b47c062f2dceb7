"""Running the examples as programs, on the engine embedded and through a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["EXAMPLES", "ROOT", "run"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*command: str | Path, timeout: float = 240, status: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What a Python program prints; it must end with `status`."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "OPBOX_URL": "", "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr
