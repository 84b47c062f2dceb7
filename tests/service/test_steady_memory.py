"""Thousands of training steps of a small net leave the server's resident memory flat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opbox.http import HttpTransport
from tests import slices
from tests.contract.live import FC, TOKENS, Live

WARM, STEPS = 2_000, slices.amount("steps that leave memory flat")
ALLOWED = 2 << 20
"""Bytes: allocators round up and metrics grow a little; one leaked array a step is 2 KB, over 8 MB in all."""


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_thousands_of_steps_leave_memory_flat(isolation: str, tmp_path: Path) -> None:
    server = Live(isolation, tmp_path)
    try:
        transport = HttpTransport(server.url, TOKENS["ann"])
        path = f"/v1/sessions/{transport.call('POST', '/v1/sessions', {}).header['id']}/commands"
        x, w, b = np.ones((16, 32), np.float32), np.ones((4, 32), np.float32), np.ones(4, np.float32)
        puts = [{"do": "put", "id": i, "tensor": t} for i, t in ((1, "x"), (2, "w"), (3, "b"), (5, "w"), (6, "b"))]
        bind = {
            "do": "bind",
            "id": 7,
            "graph": FC,
            "args": {"x": 1, "w": 2, "b": 3},
            "grads": {"w": 5, "b": 6},
            "outputs": [8],
        }
        transport.call("POST", path, {"seq": 1, "commands": [*puts, bind]}, {"x": x, "w": w, "b": b})
        heads = np.ones((16, 4), np.float32)

        def step(seq: int) -> None:
            commands = [
                {"do": "write", "id": 1, "tensor": "x"},
                {"do": "put", "id": 100 + seq, "tensor": "heads"},
                {"do": "forward", "executor": 7, "is_train": True},
                {"do": "backward", "executor": 7, "head_grads": [100 + seq]},
                {"do": "update", "op": "sgd_update", "attrs": {"lr": 1e-3}, "calls": [{"inputs": [2, 5]}]},
                {"do": "invoke", "op": "elemwise_add", "inputs": [8, 8], "outputs": [100_000 + seq]},
                {"do": "fetch", "id": 100_000 + seq, "as": "y"},
                {"do": "free", "ids": [100 + seq, 100_000 + seq]},
            ]
            wait = seq % 10 == 0
            commands = [command for command in commands if wait or command["do"] != "fetch"]
            transport.call("POST", path, {"seq": seq, "commands": commands, "wait": wait}, {"x": x, "heads": heads})

        for seq in range(2, 2 + WARM):
            step(seq)
        pids = [server.process.pid, *server.workers()]
        before = [resident(pid) for pid in pids]
        for seq in range(2 + WARM, 2 + WARM + STEPS):
            step(seq)
        grown = [resident(pid) - was for pid, was in zip(pids, before, strict=True)]
        assert max(grown) < ALLOWED, f"resident memory grew by {grown} bytes"
        transport.close()
    finally:
        server.stop()
