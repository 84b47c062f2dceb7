"""The image of a session that moves to a process for its code has nothing of what was in memory before the session."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from opbox_service.engine import Engine
from opbox_service.session.moving import write_image
from opbox_service.settings import Settings
from tests.contract.live import symbol, var
from tests.poison import FRESH, needs_compiler, poisoned, shows_poison

X = np.linspace(1, 2, 1000, dtype=np.float32).reshape(10, 100)
NET = symbol(
    var("x"),
    var("w"),
    ("Dropout", "d", {"p": "0.5"}, [0]),
    ("elemwise_mul", "y", {}, [2, 1]),
    ("sum", "total", {"axis": "1"}, [3]),
)
BIND = {"do": "bind", "graph": NET, "args": {"x": 1, "w": 2}, "grads": {"w": 3}}
BEGIN: list[dict[str, Any]] = [
    {"do": "put", "id": 1, "tensor": "x"},
    {"do": "put", "id": 2, "tensor": "x"},
    {"do": "zeros", "ids": [3], "shape": [10, 100], "dtype": "float32"},
    {**BIND, "id": 10, "outputs": [20]},  # does not run
    {**BIND, "id": 11, "outputs": [21]},
    {"do": "forward", "executor": 11, "is_train": True},
    {"do": "dataset", "id": 30, "shape": [50, 100], "dtype": "float32"},
    {"do": "put_rows", "id": 30, "tensor": "x", "begin": 5},
]


@needs_compiler
def test_it_shows_no_memory_that_nothing_was_written_to() -> None:
    with poisoned(FRESH):
        engine = Engine(Settings())
        try:
            id = engine.call("POST", "/v1/sessions", {"code": False}, owner="ann")[0]["id"]
            engine.call("POST", f"/v1/sessions/{id}/commands", {"commands": BEGIN, "wait": True}, {"x": X}, owner="ann")
            fd = write_image(*engine.sessions.get("ann", id).image())
            with open(fd, "rb") as file:
                image = os.pread(file.fileno(), os.fstat(fd).st_size, 0)
        finally:
            engine.close()
    assert X.tobytes() in image
    assert not shows_poison(image)
