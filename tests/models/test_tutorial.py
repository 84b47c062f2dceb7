"""The programs of docs/tutorials/models.md, as they stand there: saved, served and called as it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import index, loaded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "models.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
SAVING = next(code for kind, code in BLOCKS if kind == "python" and "save_checkpoint" in code)
MAKING = next(code for kind, code in BLOCKS if not kind and code.startswith("mkdir"))
CURLS = [code for kind, code in BLOCKS if not kind and code.startswith("curl")]
ZEROS = ", ".join(["0"] * 784)
EXPORT = """
args, aux = mod.get_params()
import os
os.makedirs("models/resnet")
mx.onnx.export_model(net, [args, aux], [(1, 784)], onnx_file_path="models/resnet/resnet50.onnx")
"""


def python(program: str, folder: Path, **environment: str) -> str:
    """What a program prints, run by this Python."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")} | environment
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the page's models: the saved one, and the same as an ONNX file."""
    folder = tmp_path_factory.mktemp("tutorial")
    subprocess.run(["sh", "-c", MAKING], cwd=folder, check=True)
    python(SAVING + EXPORT, folder)
    live = Live("process", folder, OPBOX_MODELS=str(folder / "models"))
    loaded(live)
    yield live
    assert live.stop() == 0


def test_its_files_are_served(tutorial: Live) -> None:
    assert index(tutorial) == {("digits", "1"): ("READY", ""), ("resnet", "1"): ("READY", "")}


def test_the_page_has_two_requests_by_curl() -> None:
    assert [re.search(r"/(infer|backward) ", code)[1] for code in CURLS] == ["infer", "backward"]  # type: ignore[index]


@pytest.mark.parametrize("number", [0, 1])
def test_curl(tutorial: Live, number: int, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    code = CURLS[number].replace("[0, 0, …]", f"[{ZEROS}]").replace("fc1_weight", "fc_weight")
    env = {**os.environ, "OPBOX_URL": tutorial.url, "OPBOX_TOKEN": TOKENS["ann"], "NO_PROXY": "*"}
    done = subprocess.run(["sh", "-c", code.replace("curl", "curl -sS", 1)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outputs = {one["name"]: one for one in json.loads(done.stdout)["outputs"]}
    if number == 0:
        np.testing.assert_allclose(outputs["softmax_output"]["data"], np.full(10, 0.1), atol=1e-6)
    else:
        assert outputs["grad:data"]["shape"] == [1, 784]
        assert outputs["grad:fc_weight"]["shape"] == [10, 784]


def test_the_client_and_the_command(tutorial: Live, tmp_path: Path) -> None:
    program = next(code for kind, code in BLOCKS if kind == "python" and ".model(" in code)
    program = program.replace("http://gpu-box:8000", tutorial.url)
    before = f"import numpy as np, opbox as mx\ntoken, images = {TOKENS['ann']!r}, np.zeros((2, 784), np.float32)\n"
    assert python(before + program + "print(probabilities.shape)", tmp_path).strip() == "(2, 10)"
    listed = python(
        "from opbox.cli import main; main(['models'])", tmp_path, OPBOX_URL=tutorial.url, OPBOX_TOKEN=TOKENS["ann"]
    )
    assert listed.startswith("2 models; 2 ready")
    shown = next(code for _, code in BLOCKS if code.startswith("$ opbox models")).splitlines()
    assert listed.splitlines()[1].split() == shown[2].split()
    row = next(line for line in listed.splitlines() if line.startswith("digits"))
    assert row.split()[:6] == shown[3].split()[:6]
