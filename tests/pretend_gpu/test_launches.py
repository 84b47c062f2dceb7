"""Every kernel that an operator launches at a large size has blocks for all processors of a GPU, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .launch_reasons import REASONS, UNKNOWN, Launch

ROOT = Path(__file__).parents[2]


def launches(*options: str) -> dict[str, dict[str, Any]]:
    """What `launches` prints of each call, in a process of its own, whose kernels are not compiled."""
    command = [sys.executable, "-m", "tests.pretend_gpu.launches", "--json", *options]
    environment = {**os.environ, "PRETEND_GPU_ONLY_LAUNCHES": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["call"]: line for line in lines}


PARTS = 6
"""As many as there are slices of the suite, so that each runs one of them (tests/slices.py)."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_has_blocks_for_all_processors(gpu: Any, part: int) -> None:
    calls = launches("--part", str(part), str(PARTS))
    operators = {call["operator"] for call in calls.values()}
    assert len(operators) > 30
    faults: dict[tuple[str, str], str] = {}
    for name, call in calls.items():
        for fields in call["launches"]:
            launch = Launch(**fields)
            if launch.fault:
                faults.setdefault((call["operator"], launch.kernel), f"{name}: {launch.fault}")
    unlisted = [f"{key}: {fault}" for key, fault in faults.items() if key not in REASONS]
    assert not unlisted, "\n".join(["launched with too few blocks, or too long loops:", *unlisted])
    mended = [key for key in REASONS if key[0] in operators and key not in faults]
    assert not mended, f"launched with blocks enough by now: take them out of REASONS: {mended}"
    unknown = {call["operator"]: call["reason"] for call in calls.values() if call["reason"]}
    assert unknown.keys() == UNKNOWN.keys() & operators, unknown


@pytest.mark.parametrize(
    ("blocks", "threads", "elements", "fault"),
    [
        (132, 256, 1 << 20, ""),
        (131, 256, 1 << 20, "131 of 132 processors have a block"),
        (1, 256, 4096, ""),
        (1, 256, 4097, "1 of 132 processors have a block"),
        (132, 1, 132 * 4097, "a thread has 4,097 elements"),
    ],
)
def test_what_counts_as_few_blocks(blocks: int, threads: int, elements: int, fault: str) -> None:
    assert Launch("op", "kernel", blocks, threads, elements).fault == fault


def test_launches_are_those_of_kernels_that_run(gpu: Any) -> None:
    for call in launches("--only", "^softmax_cross_entropy$").values():
        operators = {launch["operator"] for launch in call["launches"]}
        assert operators == {"softmax_cross_entropy", "_backward_softmax_cross_entropy"}
        assert all(launch["elements"] > 0 and launch["threads"] > 0 for launch in call["launches"])
