"""Requests of a legal user that take long: another user's steps go on beside them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from opbox_protocol import wire
from tests.attack.attack import MIB, Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import symbol, var

__all__ = ["ATTACKS"]

OWNER = "bob"
WAIT_S = 0.25
"""The longest that the other user may wait for a step, whatever one user asks for."""
LIMIT_S = 300.0
DEFAULTS = {f"OPBOX_MAX_{name}": "" for name in ("BODY_BYTES", "HEADER_BYTES", "NODES", "SESSION_BYTES")}
TWO = np.ones(2, np.float32)


def chain(nodes: int) -> dict[str, Any]:
    return symbol(var("x"), *(("_copy", f"n{i}", {}, [i]) for i in range(nodes - 1)))


def posts(box: Box, path: str, *bodies: bytes, header_length: int | None = None) -> Outcome:
    """Send all bodies at once; the statuses of the answers."""
    client = box.live.clients[OWNER]
    client.timeout = LIMIT_S
    headers = {} if header_length is None else {wire.HEADER_LENGTH: str(header_length)}
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda body=body: statuses.append(client.post(path, content=body, headers=headers).status_code)
        )
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    answered = len(statuses) == len(bodies) and all(status in (200, 400, 413, 429) for status in statuses)
    return Outcome(answered, f"answered {', '.join(map(str, statuses))}")


def backward(box: Box) -> Outcome:
    tensors = {"x": TWO, "head_grad:n99997_output": TWO}
    head, buffers = wire.encode({"graph": chain(99_999)}, tensors, "inputs")
    return posts(box, "/v1/backward", b"".join([head, *buffers]), header_length=len(head))


def again(times: int) -> Callable[[Box], Outcome]:
    """A graph of 60,000 nodes, each time another: the worker's collector has much to look at."""

    def attack(box: Box) -> Outcome:
        outcomes = []
        for number in range(times):
            graph = symbol(var("x"), *(("_copy", f"m{number}_{i}", {}, [i]) for i in range(59_999)))
            head, buffers = wire.encode({"graph": graph}, {"x": TWO}, "inputs")
            outcomes.append(posts(box, "/v1/forward", b"".join([head, *buffers]), header_length=len(head)))
        return Outcome(all(outcome.safe for outcome in outcomes), ", ".join(outcome.says for outcome in outcomes))

    return attack


def traced(box: Box) -> Outcome:
    body = {"graph": chain(30_000), "shapes": {"x": [2]}, "trace": True}
    return posts(box, "/v1/infer_shape", json.dumps(body).encode())


def json_values(box: Box) -> Outcome:
    return posts(box, "/v1/forward", b'{"graph":[' + b"1234567," * (198 * MIB // 8) + b"1]}")


def json_in_parallel(box: Box) -> Outcome:
    body = b'{"graph":["' + b"a" * (60 * MIB) + b'",' + b'{"a":1},' * 400_000 + b"1]}"
    return posts(box, "/v1/forward", body, body, body)


def tensors(box: Box) -> Outcome:
    names = [f"x{i}" for i in range(8000)]
    graph = symbol(*map(var, names), ("add_n", "y", {"num_args": "8000"}, list(range(8000))))
    head, buffers = wire.encode({"graph": graph}, dict.fromkeys(names, TWO), "inputs")
    return posts(box, "/v1/forward", b"".join([head, *buffers]), header_length=len(head))


def numbers(box: Box) -> Outcome:
    tensor = {"name": "x", "shape": [1_900_000], "datatype": "FP32", "data": [0.1234567] * 1_900_000}
    body = {"graph": symbol(var("x"), ("_copy", "y", {}, [0])), "inputs": [tensor]}
    return posts(box, "/v1/forward", json.dumps(body).encode())


ATTACKS = [
    Attack(name, does, run, DEFAULTS, grows=1024 * MIB, keeps=512 * MIB, waits_s=WAIT_S, limit_s=LIMIT_S)
    for name, does, run in (
        ("large-backward", "backward of a chain of 99,999 nodes", backward),
        ("large-graphs", "eight graphs of 60,000 nodes", again(8)),
        ("large-trace", "the trace of a chain of 30,000 nodes", traced),
        ("large-json", "198 MB of JSON", json_values),
        ("large-json-at-once", "three times 63 MB of JSON at a time", json_in_parallel),
        ("many-tensors", "8,000 tensors", tensors),
        ("many-numbers", "1.9 million numbers in JSON, there and back", numbers),
    )
]
