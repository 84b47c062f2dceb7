"""A forked child opens a session of its own and ends only that; its parent notices nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .test_program_ends import Sessions

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("forking_program.py")


def test_children_train_beside_their_parent(program_environment: dict[str, str], live_sessions: Sessions) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=program_environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"this array: expected one that was made in this process \(\d+\), got one of the process that it was forked "
        r"from \(\d+\): read its values there before the fork \(asnumpy\), or make it here\n",
        done.stdout,
    )
    assert live_sessions() == []
