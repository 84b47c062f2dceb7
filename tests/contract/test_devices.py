"""Devices over HTTP: a small network trained on each, beside numpy's own arithmetic; their number and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live

GRAPH = {
    "nodes": [
        {"op": "null", "name": "x", "inputs": []},
        {"op": "null", "name": "w", "inputs": []},
        {
            "op": "FullyConnected",
            "name": "fc",
            "attrs": {"num_hidden": "3", "no_bias": "True"},
            "inputs": [[0, 0], [1, 0]],
        },
        {"op": "null", "name": "label", "inputs": []},
        {"op": "LinearRegressionOutput", "name": "out", "inputs": [[2, 0], [3, 0]]},
    ],
    "arg_nodes": [0, 1, 3],
    "heads": [[4, 0]],
}
STEPS, RATE = 5, 0.1
COUNT = "import opbox as mx; print(mx.context.num_gpus())"
MEMORY = "import opbox as mx; print(*mx.context.gpu_memory_info({number}))"


def expected(x: np.ndarray, w: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The weight after gradient descent on half the squared error, the gradient divided by the outputs of a sample."""
    w = w.astype(np.float64)
    for _ in range(STEPS):
        w = w - RATE * ((x @ w.T - label) / 3).T @ x
    return w


def test_training_steps(server: Live, device: str) -> None:
    rng = np.random.default_rng(3)
    x, w, label = (rng.normal(size=shape).astype(np.float32) for shape in ((8, 5), (3, 5), (8, 3)))
    session = server.session("ann", device="cpu" if device == "cpu" else "gpu:0")
    ids = {"x": 1, "w": 2, "label": 3, "gw": 4}
    bind = {
        "do": "bind",
        "id": 5,
        "graph": GRAPH,
        "args": {name: ids[name] for name in ("x", "w", "label")},
        "grads": {"w": 4},
        "outputs": [6],
    }
    step = [
        {"do": "forward", "executor": 5, "is_train": True},
        {"do": "backward", "executor": 5},
        {"do": "update", "op": "sgd_update", "attrs": {"lr": str(RATE)}, "calls": [{"inputs": [2, 4]}]},
    ]
    puts = [{"do": "put", "id": id, "tensor": name} for name, id in ids.items()]
    fetches = [{"do": "fetch", "id": 2, "as": "w"}, {"do": "describe", "id": 2}]
    answer = session.run(*puts, bind, *step * STEPS, *fetches, x=x, w=w, label=label, gw=np.zeros_like(w))
    assert answer.status == 200, answer.header
    assert answer.header["results"][-1]["device"].startswith(device)
    # Five steps of sums of eight products in float32.
    np.testing.assert_allclose(answer.tensors["w"], expected(x, w, label), rtol=1e-5, atol=1e-6)
    session.delete()


def printed(server: Live, program: str) -> subprocess.CompletedProcess[str]:
    environment = {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS["ann"], "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


@pytest.fixture
def named(start: Callable[..., Live], device: str) -> Live:
    """A server whose settings name the device."""
    return start("process", OPBOX_DEVICES=json.dumps(["cpu" if device == "cpu" else "gpu:0"]))


def test_gpus_that_a_server_names_are_counted(named: Live, device: str) -> None:
    assert printed(named, COUNT).stdout.strip() == ("1" if device == "gpu" else "0")


def test_the_memory_of_a_gpu_is_the_devices(named: Live, device: str) -> None:
    if device == "gpu":
        free, total = map(int, printed(named, MEMORY.format(number=0)).stdout.split())
        assert 0 < free <= total
    answer = printed(named, MEMORY.format(number=99))
    assert answer.returncode == 1
    assert "MXNetError: gpu_memory_info: expected a GPU" in answer.stderr
