"""Operators in programs that are no script: in a zipapp, behind `python -c`, from standard input."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import zipapp
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opbox.operator import program_text
from tests.contract.live import TOKENS, Live

OPERATORS = """
import opbox as mx

FACTOR = 2


class Thrice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * FACTOR + in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 3)


@mx.operator.register("thrice")
class ThriceProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Thrice()
"""
CALL = """
import opbox as mx
print(mx.nd.Custom(mx.nd.ones((2,)), op_type="thrice").asnumpy().tolist())
"""
PROGRAM = OPERATORS + CALL


def archive(folder: Path, **files: str) -> str:
    source = folder / "source"
    source.mkdir()
    for name, text in files.items():
        (source / f"{name}.py").write_text(text)
    zipapp.create_archive(source, folder / "program.pyz")
    return str(folder / "program.pyz")


def written(folder: Path, text: str) -> Path:
    (folder / "program").write_text(text)
    return folder / "program"


WAYS: dict[str, Callable[[Path], tuple[list[str], dict[str, Any]]]] = {
    "a zipapp": lambda folder: ([archive(folder, __main__=PROGRAM)], {}),
    "a module in a zipapp": lambda folder: ([archive(folder, __main__="import mine" + CALL, mine=OPERATORS)], {}),
    "python -c": lambda folder: (["-c", PROGRAM], {}),
    "python -c among other options": lambda folder: (["-W", "ignore", "-X", "utf8", "-Bc", PROGRAM, "-c", "x"], {}),
    "a redirected file": lambda folder: ([], {"program": written(folder, PROGRAM)}),
    "a redirected file, by name": lambda folder: (["-"], {"program": written(folder, PROGRAM)}),
}


def run(
    live: Live, arguments: list[str], program: Path | None = None, **further: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python, with a file as its standard input, if there is one."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    env |= {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["py"]}
    command = [sys.executable, *arguments]
    with contextlib.ExitStack() as stack:
        if program is not None:
            further["stdin"] = stack.enter_context(program.open())
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False, **further)


@pytest.mark.parametrize("way", WAYS)
def test_operators_work_as_in_a_script(live: Live, tmp_path: Path, way: str) -> None:
    arguments, further = WAYS[way](tmp_path)
    ended = run(live, arguments, **further)
    assert ended.stdout == "[3.0, 3.0]\n", ended.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROGRAM, r"it came by a pipe on standard input"),
        (f"exec({OPERATORS!r}){CALL}", "it was run from a string"),
    ],
    ids=["a pipe", "exec"],
)
def test_what_is_nowhere_is_said(live: Live, text: str, reason: str) -> None:
    ended = run(live, [], input=text)
    sentence = ended.stderr.splitlines()[-2]
    assert sentence == (
        f"opbox.operator.bundle.SourceError: operator class 'ThriceProp': its source cannot be read ({reason}): write "
        "it in a script, a module or a notebook cell, or put it into a file and name that with "
        "mx.operator.bundle(path)"
    ), ended.stderr


def test_code_of_another_text_is_not_taken_for_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `exec` in a program of `python -c` makes: both are "<string>"."""
    program = "def f(x):\n    return x + 1\n"
    monkeypatch.setattr(program_text, "main_program", lambda: ("<string>", program))
    own: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "<string>", "exec", dont_inherit=True), own)
    assert program_text.text_of("<string>", own, own["f"].__code__) == program
    other: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program.replace("1", "2"), "<string>", "exec", dont_inherit=True), other)
    assert program_text.text_of("<string>", other, other["f"].__code__) == ""
