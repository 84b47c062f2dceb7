"""The image is built, looked into, and serves a client, which trains; then it stops when it is told to.

VARIANT and COMPILER in the environment say which image: cpu by default, cuda, or one with g++ for the emulator.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .engine import Engine, engine

pytestmark = [pytest.mark.image, pytest.mark.timeout(0)]

ROOT = Path(__file__).parents[2]
START_S = 120
VARIANT, COMPILER = os.environ.get("VARIANT") or "cpu", os.environ.get("COMPILER", "")
LIBRARIES = {
    "cpu": {"onednn-cpu-gomp"},
    "cuda": {"cupy-cuda13x", "onednn-cpu-gomp", "nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13"},
}
LOOK = """
import importlib.metadata, json, os, shutil
from opbox_ops.cpu.description import cpu_description
materials = json.load(open("/opt/opbox/sbom.cdx.json"))
print("\\n---")
print(json.dumps({
    "uid": os.getuid(),
    "computes": cpu_description()._asdict(),
    "compilers": [name for name in ("g++", "gcc", "cc", "nvcc", "clang") if shutil.which(name)],
    "writable": [path for path in ("/opt/opbox", "/usr", "/etc") if os.access(path, os.W_OK)],
    "state": os.access("/var/lib/opbox", os.W_OK),
    "cubins": len(os.listdir(os.environ["OPBOX_CUBINS"])),
    "format": materials["bomFormat"],
    "listed": {part["name"].lower().replace("_", "-"): part["version"] for part in materials["components"]},
    "installed": {d.name.lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()},
}))
"""
TRAINS = """
import numpy as np
import opbox as mx
data = np.random.default_rng(0).normal(size=(256, 8)).astype("f")
label = (data.sum(axis=1) > 0).astype("f")
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
mod = mx.mod.Module(net)
mod.fit(mx.io.NDArrayIter(data, label, 32), num_epoch=8, optimizer_params={"learning_rate": 0.5})
print("accuracy", dict(mod.score(mx.io.NDArrayIter(data, label, 32), "acc"))["accuracy"])
"""


GPU = """
import opbox as mx
try:
    mx.nd.ones((2, 2), mx.gpu(0)).asnumpy()
except mx.MXNetError as error:
    print(f"status {error.status}: {error}")
"""
KERNEL = """
import opbox as mx
source = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'
x = mx.nd.ones((4,))
mx.rtc.CudaModule(source).get_kernel("twice", "float *x").launch([x], mx.cpu(), (1, 1, 1), (4, 1, 1))
print("sum", float(x.asnumpy().sum()))
"""


@pytest.fixture(scope="module")
def image() -> Engine:
    built = engine()
    built.build({"VARIANT": VARIANT, "COMPILER": COMPILER})
    return built


def test_it_holds_what_it_must_and_no_more(image: Engine) -> None:
    look = json.loads(image.output("python3", "-c", LOOK))
    assert look["uid"] == 10001
    assert "kernels in C" in look["computes"]["line"]
    assert not look["computes"]["incomplete"], look["computes"]["line"]
    assert look["compilers"] == (["g++", "gcc", "cc"] if COMPILER else [])
    assert look["writable"] == []
    assert look["state"] is True
    assert look["format"] == "CycloneDX"
    ours = {"opbox", "opbox-service", "opbox-ops", "opbox-protocol"}
    assert ours | LIBRARIES[VARIANT] <= look["installed"].keys()
    assert (look["cubins"] > 0) == (VARIANT == "cuda")
    assert look["installed"].items() <= look["listed"].items()


@pytest.mark.skipif(not COMPILER, reason="the image has no compiler: make test-image COMPILER=g++")
def test_kernels_of_users_run_where_there_is_a_compiler(image: Engine) -> None:
    assert image.output("python3", "-c", f"print('\\n---')\n{KERNEL}").strip() == "sum 8.0"


def test_it_serves_a_client_and_stops(image: Engine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    variables = {"OPBOX_PORT": str(port), "OPBOX_HOST": "127.0.0.1", "OPBOX_TOKEN": token}
    with image.started("opbox", "serve", variables=variables) as server:
        wait_for_health(server, port)
        environment = {**os.environ, "OPBOX_URL": f"http://127.0.0.1:{port}", "OPBOX_TOKEN": token}
        trained = client(TRAINS, environment)
        assert float(re.findall(r"accuracy ([\d.]+)", trained)[0]) > 0.9  # a line separates them; 0.5 is chance
        # Nothing here gives it a GPU.
        lack = "there is no NVIDIA driver here" if VARIANT == "cuda" else "CuPy is not installed"
        assert re.match(rf"status 501: device 'gpu:0' is not available: {lack}.*\n$", client(GPU, environment))
    assert server.returncode == 0


def client(program: str, environment: dict[str, str]) -> str:
    """What a program prints that uses the server."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_health(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the image's own HEALTHCHECK passes."""
    text = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
    [command] = re.findall(r"HEALTHCHECK[^\n]*\\\n  CMD (\[.*\])", text)
    check = [sys.executable, *json.loads(command)[1:]]
    deadline = time.monotonic() + START_S
    while subprocess.run(
        check, env={**os.environ, "OPBOX_PORT": str(port)}, capture_output=True, check=False
    ).returncode:
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline, "no health within the time"
        time.sleep(0.5)
