"""mypy and pyright (as basedpyright, which needs no node of the system's) on right and wrong programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def mypy(program: Path, folder: Path) -> dict[int, str]:
    """mypy's errors by line; `folder` holds its cache."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--output", "json", "--cache-dir", str(folder), str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"MYPYPATH": "client:protocol:ops:service"},
        check=False,
    )
    assert done.stdout or not done.returncode, done.stderr
    errors = [json.loads(line) for line in done.stdout.splitlines()]
    return {error["line"]: error["message"] for error in errors if error["file"].endswith(program.name)}


def pyright(program: Path, folder: Path) -> dict[int, str]:
    """pyright's errors by line, with its standard rules."""
    settings = {
        "include": [str(program)],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT / name) for name in ("client", "protocol", "ops", "service")],
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--outputjson",
            "--project",
            str(folder),
            "--pythonpath",
            sys.executable,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == 1, done.stdout
    errors = (diagnostic for diagnostic in answer["generalDiagnostics"] if diagnostic["severity"] == "error")
    return {error["range"]["start"]["line"] + 1: error["message"] for error in errors}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_right_program_is_right(checker: Callable[[Path, Path], dict[int, str]], tmp_path: Path) -> None:
    assert checker(HERE / "right.py", tmp_path) == {}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_every_mistake_is_found(checker: Callable[[Path, Path], dict[int, str]], tmp_path: Path) -> None:
    program = HERE / "wrong.py"
    lines = program.read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "  # " in line}
    assert len(wrong) == 22
    mistakes = checker(program, tmp_path)
    assert {number: lines[number - 1] for number in wrong - set(mistakes)} == {}
    assert {number: message for number, message in mistakes.items() if number not in wrong} == {}
