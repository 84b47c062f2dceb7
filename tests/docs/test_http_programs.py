"""The programs of docs/tutorials/http.md, in curl, JavaScript and Go, run and print what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.live import TOKENS, Live

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "http.md"
PROGRAMS = {
    language: textwrap.dedent(code)
    for language, code in re.findall(r"^    ```(\w+)\n(.*?)^    ```", PAGE.read_text("utf-8"), re.M | re.S)
}
RUN = {
    "sh": ("curl", "program.sh", ["sh", "program.sh"]),
    "javascript": ("node", "program.mjs", ["node", "program.mjs"]),
    "go": ("go", "program.go", ["go", "run", "program.go"]),
}
"""The tool that a language needs, the name of its program, the command that runs it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("none", tmp_path_factory.mktemp("server"))
    yield live
    assert live.stop() == 0


def test_the_page_has_these_programs() -> None:
    assert set(PROGRAMS) == set(RUN)


@pytest.mark.parametrize("language", RUN)
def test_a_program_runs(language: str, server: Live, tmp_path: Path) -> None:
    tool, name, command = RUN[language]
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine")
    (tmp_path / name).write_text(PROGRAMS[language], encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    env |= {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS["ann"], "NO_PROXY": "*"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1,4,9"
