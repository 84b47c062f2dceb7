"""The programs give MXNet's answers, embedded and over HTTP, when their one import of mxnet is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat.record import NOT_RUN
from tests.contract.live import TOKENS, Live

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted((HERE / "programs").glob("*.py"))
TOLERANCE = 1e-4
"""Of numbers after some steps of float32: both round, in other orders."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a program that calls a server, whose token may upload code."""
    live = Live("process", tmp_path_factory.mktemp("server"))
    yield {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["py"]}
    assert live.stop() == 0


def answer(program: Path, folder: Path, environment: dict[str, str]) -> Any:
    """What the program prints last when one import is changed."""
    text = program.read_text()
    assert text.count("import mxnet as mx\n") == 1
    script = folder / program.name
    script.write_text(text.replace("import mxnet as mx\n", "import opbox as mx\n"))
    # Warnings that tests make errors of are the program's own affair.
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")} | environment
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return without_link_lines(json.loads(done.stdout.splitlines()[-1]))


def without_link_lines(answered: Any) -> Any:
    """What a program tells, without the line that `fit` logs at the end over HTTP, which MXNet has no like of."""
    if isinstance(answered, dict):
        return {key: without_link_lines(value) for key, value in answered.items()}
    if isinstance(answered, list):
        return [one for one in answered if not (isinstance(one, str) and one.startswith("Link: "))]
    return answered


def check_equal(answered: Any, recorded: Any, where: str) -> None:
    """Assert that two answers have one structure, the same names and nearly the same numbers."""
    if isinstance(recorded, dict):
        assert sorted(answered) == sorted(recorded), where
        for key, value in recorded.items():
            check_equal(answered[key], value, f"{where}[{key!r}]")
    elif isinstance(recorded, list) and not all(isinstance(value, float | int) for value in recorded):
        assert len(answered) == len(recorded), where
        for index, value in enumerate(recorded):
            check_equal(answered[index], value, f"{where}[{index}]")
    elif isinstance(recorded, str | bool) or recorded is None:
        assert answered == recorded, where
    else:
        np.testing.assert_allclose(answered, recorded, rtol=TOLERANCE, atol=TOLERANCE, err_msg=where)


@pytest.mark.parametrize("engine", ["embedded", "http"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_gives_mxnets_answer(
    program: Path, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = request.getfixturevalue("server") if engine == "http" else {}
    name = "custom_softmax" if program.stem in NOT_RUN else program.stem
    recorded = json.loads((HERE / "recorded" / f"{name}.json").read_text())
    check_equal(answer(program, tmp_path, environment), recorded, program.stem)


def test_there_are_35_programs() -> None:
    assert len(PROGRAMS) >= 35


def test_every_program_is_recorded() -> None:
    recorded = {path.stem for path in (HERE / "recorded").glob("*.json")}
    assert recorded == {path.stem for path in PROGRAMS} - set(NOT_RUN)
