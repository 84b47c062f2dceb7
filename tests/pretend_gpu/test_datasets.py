"""A dataset on a GPU: its rows are gathered there, and a batch has the values that it has on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_service.embedded import EmbeddedTransport
from tests.contract.live import TOKENS, Live


def test_two_gpus_take_their_parts_from_the_first(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("OPBOX_CODE", "0")
    server = Live("process", tmp_path_factory.mktemp("rows"), OPBOX_WORKERS="1")
    pixels = np.random.RandomState(2).randint(0, 256, (64, 4500)).astype(np.uint8)
    answers = []
    for wanted in ("1", "0"):
        monkeypatch.setenv("OPBOX_DATASETS", wanted)
        connection.use(HttpTransport(server.url, TOKENS["ann"]))
        batches = mx.io.NDArrayIter(pixels, pixels[:, 0] % 10, 16)
        net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=10), name="softmax")
        mod = mx.mod.Module(net, context=[mx.gpu(0), mx.gpu(1)])
        mod.bind(batches.provide_data, batches.provide_label)
        mod.init_params(mx.init.One())
        mod.init_optimizer(optimizer_params={"learning_rate": 1e-6})
        for _ in range(2):
            for batch in batches:
                mod.forward_backward(batch)
                mod.update()
            batches.reset()
        answers.append([array.asnumpy().tobytes() for array in mod.get_params()[0].values()])
    connection.use(None)
    assert server.stop() == 0
    assert answers[0] == answers[1]


def test_rows_are_gathered_on_the_device(gpu: Any) -> None:
    engine = EmbeddedTransport()
    rows = np.random.RandomState(1).randint(0, 256, (12, 5)).astype(np.uint8)
    order = np.array([7, 0, 7, 11], np.uint8)
    rest = np.setdiff1d(np.arange(12), np.arange(3, 8)).astype(np.uint8)
    commands = [
        {"do": "dataset", "id": 1, "shape": [12, 5], "dtype": "uint8"},
        {"do": "put_rows", "id": 1, "tensor": "middle", "begin": 3},
        {"do": "put_rows", "id": 1, "tensor": "others", "rows": "rest"},
        {"do": "zeros", "ids": [2], "shape": [4, 5], "dtype": "float32"},
        {"do": "take_rows", "id": 2, "of": 1, "rows": "order", "scale": 1 / 256},
        {"do": "take_rows", "id": 3, "of": 1, "begin": 2, "end": 9, "dtype": "float16"},
        {"do": "keep_rows", "id": 1, "block_rows": 5, "blocks": [2, 0]},
        {"do": "fetch", "id": 2, "as": "gathered"},
        {"do": "fetch", "id": 3, "as": "slice"},
        {"do": "free", "ids": [1, 2, 3]},
    ]
    tensors = {"middle": rows[3:8], "others": rows[rest], "rest": rest, "order": order}
    answers = []
    for device in ("cpu", "gpu"):
        session = engine.call("POST", "/v1/sessions", {"device": device}).header["id"]
        batch = {"seq": 1, "commands": commands, "wait": True}
        answers.append(engine.call("POST", f"/v1/sessions/{session}/commands", batch, tensors).tensors)
        assert engine.call("GET", f"/v1/sessions/{session}").header["bytes"] == 0
        engine.call("DELETE", f"/v1/sessions/{session}")
    for name, expected in answers[0].items():
        assert answers[1][name].dtype == expected.dtype
        assert answers[1][name].tobytes() == expected.tobytes()
    assert answers[1]["gathered"].tolist() == (rows[order].astype(np.float32) / 256).tolist()
