"""The examples run as they stand: on the engine embedded; curl session and demo against a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*command, **environment):
    """What a program prints; it must end well."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OPBOX_URL": "", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_mlp():
    printed = run(sys.executable, str(EXAMPLES / "mlp.py"), "--epochs", "8")
    assert "Epoch[7] Validation-accuracy=" in printed
    assert "samples/sec" in printed
    assert float(re.search(r"validation accuracy: ([\d.]+)", printed)[1]) > 0.9


def test_two_lstm_infer_shape():
    printed = run(sys.executable, str(EXAMPLES / "two_lstm_infer_shape.py"))
    assert (
        "INFO:root:rnn_outputs_shape:([(128, 49, 75), (1024, 75), (1024,), (1024, 256), (1024,), (1024, 256), (1024,), "
        "(1024, 256), (1024,)], [(128, 512)], [])"
    ) in printed


def test_makeloss_regression():
    printed = run(sys.executable, str(EXAMPLES / "makeloss_regression.py"))
    assert "fullyconnected0_weight: gradient" in printed
    assert re.search(r"y = (2\.0|1\.9)\d x1 \+ -(3\.0|2\.9)\d x2 \+ 0\.[45]\d", printed)


def test_read_mxnet_checkpoint():
    printed = run(sys.executable, str(EXAMPLES / "read_mxnet_checkpoint.py"))
    assert "bn1_moving_mean" in printed
    assert float(re.search(r"did not train on: ([\d.]+)", printed)[1]) > 0.88


@pytest.fixture(scope="module")
def server():
    sys.path.insert(0, str(EXAMPLES))
    try:
        from lenet_demo import server as own
    finally:
        sys.path.remove(str(EXAMPLES))
    with own("none") as (url, token):
        yield {"OPBOX_URL": url, "OPBOX_TOKEN": token}


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_session(server):
    printed = run("sh", str(EXAMPLES / "curl_session.sh"), **server)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    shapes, forward, backward, bound, step, deleted = lines
    assert dict(zip(shapes["arg_names"], shapes["arg_shapes"], strict=True)) == {
        "data": [2, 3],
        "fc_weight": [2, 3],
        "fc_bias": [2],
    }
    assert forward["outputs"][0]["data"] == [8, 23, 8, 27.5]
    grads = {one["name"]: one["data"] for one in backward["outputs"] if one["name"].startswith("grad:")}
    assert grads["grad:fc_bias"] == [2, 2]
    assert grads["grad:fc_weight"] == [5, 7, 9, 5, 7, 9]
    assert grads["grad:data"] == [1.5, 0.5, -0.5] * 2
    assert bound["outputs"] == []
    assert step["outputs"][0]["data"] == pytest.approx([0.5, -0.7, -1.9, 0, -0.2, -0.4], abs=1e-6)
    assert set(deleted) == {"deleted"}


def test_the_demo(server):
    program = str(EXAMPLES / "lenet_demo.py")
    arguments = ("--url", server["OPBOX_URL"], f"--token={server['OPBOX_TOKEN']}")
    printed = run(sys.executable, program, *arguments)
    assert float(re.search(r"validation accuracy +([\d.]+)", printed)[1]) >= 0.97
    assert float(re.search(r"requests per training step +([\d.]+)", printed)[1]) <= 1.05


def test_the_demos_server_has_no_processes_for_code(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from lenet_demo import server as own

    before = set(psutil.Process().children())
    with own(code=False):
        (process,) = set(psutil.Process().children()) - before
        modules = {part for child in process.children() for part in child.cmdline() if part.startswith("opbox_service")}
        assert modules == {"opbox_service.worker.process"}


def test_the_demo_says_when_it_has_not_learned(server):
    program = str(EXAMPLES / "lenet_demo.py")
    arguments = (
        "--url",
        server["OPBOX_URL"],
        f"--token={server['OPBOX_TOKEN']}",
        "--learning-rate",
        "0",
        "--epochs",
        "1",
    )
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "stayed below 0.97" in done.stderr
