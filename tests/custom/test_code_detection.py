"""Which programs get a session that takes code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opbox.session_opening import open_session

ASK = "import opbox as mx\nfrom opbox.operator.code_detection import will_bring_code\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print(will_bring_code())", False),
        ("class A(mx.operator.NumpyOp):\n    pass\nprint(will_bring_code())", True),
        ("mx.operator.register('a')(getattr(mx.operator, 'Custom' 'OpProp'))\nprint(will_bring_code())", True),
        ("print(will_bring_code())\ndef later():\n    return mx.rtc.CudaModule", True),
        ("import sys; sys.ps1 = '>>> '\nprint(will_bring_code())", False),
    ],
)
def test_a_script(tmp_path: Path, text: str, expected: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(ASK + text + "\n")
    for forced, answer in (("", expected), ("0", False), ("1", True)):
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OPBOX_CODE": forced},
        )
        assert done.stdout.split() == [str(answer)]


@pytest.mark.parametrize(("setting", "asked"), [("0", [False]), ("1", [True])])
def test_what_a_session_is_asked_for(monkeypatch: pytest.MonkeyPatch, setting: str, asked: list[bool]) -> None:
    monkeypatch.setenv("OPBOX_CODE", setting)
    headers: list[dict[str, object]] = []

    class Engine:
        in_process = False

        def call(self, method: str, path: str, header: dict[str, object]) -> SimpleNamespace:
            headers.append(header)
            return SimpleNamespace(header={"id": "1"})

    engine: Any = Engine()
    open_session(engine, ["cpu"])
    assert [header["code"] for header in headers] == asked
