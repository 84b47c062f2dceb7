"""openapi-typescript makes types of the document: a right program passes and runs, wrong lines are refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.contract.live import TOKENS, Live

pytestmark = pytest.mark.clients

FOLDER = Path(__file__).with_name("typescript")
ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".clients" / "node_modules"
NODE = "node"
OPTIONS = ["--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--skipLibCheck"]


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, env={**os.environ, **env})


@pytest.fixture(scope="module")
def project(document: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs, the generated types, and the tools."""
    if shutil.which(NODE) is None:
        pytest.skip("no node on this machine (on Debian: apt-get install nodejs npm)")
    if not TOOLS.is_dir():
        pytest.skip("no TypeScript tools in .clients: make clients gets them from npm, which it could not reach")
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "node_modules").symlink_to(TOOLS)
    for name in ("package.json", "program.ts", "wrong.ts"):
        shutil.copy(FOLDER / name, folder)
    # Without the option a field of a request that has a default would have to be sent.
    make = [str(TOOLS / ".bin" / "openapi-typescript"), "--default-non-nullable=false"]
    done = run(*make, str(document), "-o", "opbox.d.ts", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_right_program_passes_and_runs(project: Path, server: Live) -> None:
    compiled = run(str(TOOLS / ".bin" / "tsc"), *OPTIONS, "program.ts", cwd=project)
    assert compiled.returncode == 0, compiled.stdout
    done = run(NODE, "program.js", cwd=project, OPBOX_URL=server.url, OPBOX_TOKEN=TOKENS["ann"], NODE_USE_ENV_PROXY="0")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["shapes"] == [[3]]
    assert answer["outputs"] == [{"name": "y_output", "shape": [3], "datatype": "FP32", "data": [1, 4, 9]}]
    assert answer["batch"][0]["data"] == [1, 2, 3]
    assert "did you mean FullyConnected?" in answer["error"]


def test_wrong_lines_are_refused(project: Path) -> None:
    lines = (FOLDER / "wrong.ts").read_text(encoding="utf-8").splitlines()
    expected = {number for number, line in enumerate(lines, 1) if "// error" in line}
    done = run(str(TOOLS / ".bin" / "tsc"), *OPTIONS, "--noEmit", "wrong.ts", cwd=project)
    refused = {int(number) for number in re.findall(r"^wrong\.ts\((\d+),", done.stdout, re.M)}
    assert refused == expected, done.stdout
