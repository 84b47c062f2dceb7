"""The example programs run as they stand, on the engine embedded and through a live server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.live import TOKENS, Live

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["embedded", "http"])
def run(request: pytest.FixtureRequest) -> object:
    """Run an example; what it prints."""
    environment = {"OPBOX_URL": "", "OMP_NUM_THREADS": "1"}
    if request.param == "http":
        live: Live = request.getfixturevalue("isolating")
        environment |= {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["py"]}

    def program(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, f"examples/{name}.py", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return program


@pytest.mark.parametrize("name", ["custom_softmax", "numpy_softmax"])
def test_softmax_learns_the_digits(run, name: str) -> None:
    printed = run(name, "--epochs", "8")
    assert float(re.search(r"validation accuracy: ([\d.]+)", printed)[1]) >= 0.95


def test_tile(run) -> None:
    printed = run("tile_op")
    assert "INFO:root:arg_shape:[(2, 3)]\n, out_shape:[(2, 3, 10)]\n, aux_shape:[]" in printed
    assert "INFO:root:output_blob:['tileop_output']" in printed
    for axis in (0, 1, 2, 3, -1):
        assert f"axis {axis}: output" in printed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("moving_average_op", "moving average: [ 1.   -2."),
        ("two_outputs_op", "['parts_positive', 'parts_negative']"),
        ("learnt_weight_op", "learnt:"),
        ("weighted_loss_op", "weights 4 and 1: predicted 0.2"),
    ],
)
def test_the_others_check_themselves(run, name: str, says: str) -> None:
    assert says in run(name)
