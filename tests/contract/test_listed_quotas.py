"""Lists that all workers answer leave the quotas of batches that run meanwhile alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.contract.live import SCOPES, SLOW, TOKENS, Got, Live

MIB = 1 << 20


def test_a_list_of_sessions_lifts_no_quota(start: Callable[..., Live], tmp_path: Path) -> None:
    tokens = [{"name": name, "token": token, "scopes": SCOPES[name]} for name, token in TOKENS.items()]
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps({"tokens": tokens, "owners": {"ann": {"memory_bytes": 64 * MIB}}}))
    server = start("process", OPBOX_TOKENS="", OPBOX_TOKENS_FILE=str(file))
    session = server.session()
    commands: list[dict[str, Any]] = [
        {"do": "put", "id": 1, "tensor": "x"},
        {"do": "bind", "id": 2, "graph": SLOW, "args": {"x": 1}, "outputs": [3]},
        {"do": "forward", "executor": 2},
        {"do": "zeros", "ids": [4], "shape": [65, MIB], "dtype": "int8"},
    ]
    answers: list[Got] = []
    running = threading.Thread(target=lambda: answers.append(session.run(*commands, x=np.ones(4, np.float32))))
    running.start()
    while running.is_alive():  # the third command takes more than a second
        assert server.json("GET", "/v1/sessions").status == 200
        running.join(0.1)
    (refused,) = answers
    assert (refused.status, "memory of all your sessions" in refused.error) == (429, True)
