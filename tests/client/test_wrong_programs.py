"""What newcomers' wrong programs end in: an error of MXNet's class, one sentence, and the program's own lines."""

from __future__ import annotations

import builtins
import linecache
from pathlib import Path
from typing import Any

import pytest

from opbox import connection
from opbox.http import HttpTransport
from opbox.user_frames import is_ours, without_our_frames
from opbox_protocol import errors
from tests.contract.live import TOKENS

from .wrong_programs import PREAMBLE, PROGRAMS

MAX_LINES = 12
"""Maximum number of lines of a report: heading, two frames of the program's with their marks, the sentence, what was
left out."""


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_wrong_program_ends_in_a_sentence(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    program = PROGRAMS[name]
    script = tmp_path / "program.py"
    script.write_text(program.text, encoding="utf-8")
    linecache.checkcache(str(script))
    if engine == "http" and "CustomOp" in program.text:
        connection.use(HttpTransport(request.getfixturevalue("live").url, TOKENS["py"]))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(PREAMBLE, namespace)
    code = compile(f"{program.text}\nmx.nd.waitall()\n", str(script), "exec")
    with pytest.raises(Exception) as caught:
        exec(code, namespace)

    error = caught.value
    for kind in program.kinds.split():
        assert isinstance(error, getattr(errors, kind, None) or getattr(builtins, kind))
    sentence = str(error)
    for fragment in program.fragments:
        assert fragment in sentence
        sentence = sentence[sentence.index(fragment) :]
    assert len(str(error).splitlines()) == 1
    tb = caught.tb.tb_next  # from the program's line on
    report = without_our_frames(error, tb)
    assert report is not None, "expected a line of opbox's own on the way"
    lines = report.splitlines()
    assert len(lines) <= MAX_LINES
    files = [line.split('"')[1] for line in lines if line.startswith("  File ")]
    assert files[0] == str(script)
    assert not any(is_ours(file) for file in files)
