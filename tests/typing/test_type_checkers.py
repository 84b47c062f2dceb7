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


Errors = dict[str, dict[int, str]]
"""Messages by line by file."""
PROGRAMS = ("right.py", "wrong.py")


def mypy(folder: Path) -> Errors:
    """mypy's errors in both programs, in one run, as it reads all packages for each; `folder` holds its cache."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--no-error-summary"]
    done = subprocess.run(
        [*command, "--output", "json", "--cache-dir", str(folder), *(str(HERE / name) for name in PROGRAMS)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"MYPYPATH": "client:protocol:ops:service"},
        check=False,
    )
    assert done.stdout or not done.returncode, done.stderr
    errors: Errors = {name: {} for name in PROGRAMS}
    for error in map(json.loads, done.stdout.splitlines()):
        if (name := Path(error["file"]).name) in errors:
            errors[name][error["line"]] = error["message"]
    return errors


def pyright(folder: Path) -> Errors:
    """pyright's errors in both programs, with its standard rules."""
    settings = {
        "include": [str(HERE / name) for name in PROGRAMS],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT / name) for name in ("client", "protocol", "ops", "service")],
        "pythonVersion": "3.11",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(folder)]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, cwd=ROOT, check=False
    )
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == len(PROGRAMS), done.stdout
    errors: Errors = {name: {} for name in PROGRAMS}
    for error in answer["generalDiagnostics"]:
        if error["severity"] == "error":
            errors[Path(error["file"]).name][error["range"]["start"]["line"] + 1] = error["message"]
    return errors


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_right_program_is_right_and_every_mistake_is_found(checker: Callable[[Path], Errors], tmp_path: Path) -> None:
    lines = (HERE / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "  # " in line}
    assert len(wrong) == 22
    errors = checker(tmp_path)
    assert errors["right.py"] == {}
    mistakes = errors["wrong.py"]
    assert {number: lines[number - 1] for number in wrong - set(mistakes)} == {}
    assert {number: message for number, message in mistakes.items() if number not in wrong} == {}
