"""A server whose programs lie where only root may enter, as a clone below /root does; and other poor surroundings.

The code of sessions runs with a user id of its own, which enters none of these folders.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from opbox_ops.cpu.onednn import library as onednn
from opbox_service.worker.confine import own_packages
from tests.contract.isolation import settings
from tests.contract.live import Live

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import numpy as np
import opbox as mx

assert (mx.nd.ones((3,)) + 1).asnumpy().tolist() == [2, 2, 2]
data = np.random.RandomState(0).rand(96, 1, 12, 12).astype(np.float32)
labels = (data.mean(axis=(1, 2, 3)) > 0.5).astype(np.float32)


class Halves(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 0.5)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], mx.nd.relu(out_grad[0] * 0.5) - mx.nd.relu(out_grad[0] * -0.5))


@mx.operator.register("halves")
class HalvesProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Halves()


def network():
    net = mx.sym.Variable("data")
    for width in (4, 8):
        net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=width)
        net = mx.sym.Activation(mx.sym.BatchNorm(net), act_type="tanh")
        net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.Custom(mx.sym.Flatten(net), op_type="halves")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=2), name="softmax")


mod = mx.mod.Module(network())
mod.fit(mx.io.NDArrayIter(data, labels, 32), num_epoch=2, optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
print("trained", len(mod.get_params()[0]))
"""
MOUNTS = {
    "plain": "",
    "umask": "umask 077",
    "home": "export HOME=/proc/1/none XDG_CACHE_HOME=/proc/1/none",
    "shm": "mount --bind /proc/self/fdinfo /dev/shm",
}


def can_unshare() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that only root enters, with a Python environment, oneDNN and the four packages below it."""
    folder = tmp_path_factory.mktemp("private")
    place = folder / "clone"
    place.mkdir(mode=0o700)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(place / ".venv")], check=True)
    (site,) = (place / ".venv" / "lib").glob("python*/site-packages")
    for package in own_packages():
        shutil.copytree(package, place / "src" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    # Others' packages where they are; ours from the copy, before them.
    ours = "import sys; sys.path.insert(0, {!r}); sys.path.append({!r})"
    (site / "copied.pth").write_text(ours.format(str(place / "src"), sysconfig.get_path("platlib")) + "\n")
    library = onednn.file()
    if library is not None:
        shutil.copy(library, place / ".venv" / "lib" / library.name)
    return place


@pytest.fixture(params=list(MOUNTS))
def live(
    request: pytest.FixtureRequest, private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Live]:
    if os.geteuid() != 0 or (request.param == "shm" and not can_unshare()):
        pytest.skip("needs root, who alone enters the folder")
    python, before = private / ".venv" / "bin" / "python", MOUNTS[request.param]
    inside = f'{before or ":"} && exec {python} "$@"'
    unshare = "unshare --mount " if request.param == "shm" else ""
    shell = tmp_path / "python"
    shell.write_text(f"#!/bin/sh\nexec {unshare}sh -c '{inside}' python \"$@\"\n")
    shell.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(shell))
        patch.delenv("PYTHONPATH", raising=False)
        server = Live("process", tmp_path, **settings(OPBOX_CODE_MEMORY_BYTES=str(2 << 30)))
    yield server
    assert server.stop() == 0


def test_operators_of_ones_own_and_networks_run(live: Live, private: Path, tmp_path: Path) -> None:
    """Elementwise operators, convolutions, products, updates: what a process for code loads, it finds."""
    (worker,) = live.workers()
    assert Path(f"/proc/{worker}/cmdline").read_bytes().startswith(str(private).encode())
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    url = {"OPBOX_URL": live.url, "OPBOX_TOKEN": "py-secret-of-22-characters"}
    for code in ("1", ""):  # a process from the beginning; one that the session moves to
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **url, "OPBOX_CODE": code},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr + Path(live.log.name).read_text()
        assert "trained" in done.stdout
    for name in ("two_outputs_op.py", "moving_average_op.py"):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / name)],
            env={**os.environ, **url},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
    assert "Traceback" not in Path(live.log.name).read_text()
