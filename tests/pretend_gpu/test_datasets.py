"""A dataset on a GPU: its rows are gathered there, and a batch has the values that it has on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_service.embedded import EmbeddedTransport


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
