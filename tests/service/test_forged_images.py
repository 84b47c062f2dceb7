"""Images of sessions that move: any array goes, and a forged image is answered by a sentence, with no session left."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opbox_protocol.errors import MXNetError, error_to_json
from opbox_service.engine import Engine
from opbox_service.session.moving import write_image
from opbox_service.settings import Settings
from tests.contract.live import symbol, var
from tests.forged_checkpoints import mutations
from tests.fuzzing import FUZZ

OWNER = "ann"
NET = symbol(var("x"), var("w"), ("Dropout", "d", {"p": "0.5"}, [0]), ("elemwise_mul", "y", {}, [2, 1]))
BIND: dict[str, Any] = {
    "do": "bind",
    "id": 10,
    "graph": NET,
    "args": {"x": 1, "w": 2},
    "grads": {"w": 3},
    "outputs": [4],
}
BEGIN: list[dict[str, Any]] = [
    {"do": "put", "id": 1, "tensor": "x"},
    {"do": "put", "id": 2, "tensor": "w"},
    {"do": "put", "id": 5, "tensor": "half"},
    {"do": "zeros", "ids": [3], "shape": [2, 4], "dtype": "float32"},
    BIND,
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "view", "id": 6, "of": 2, "begin": 1, "end": 2},
    {"do": "dataset", "id": 20, "shape": [3, 2], "dtype": "float32"},
    {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": [3]}, "inputs": [], "outputs": [7]},
]
FURTHER: list[dict[str, Any]] = [
    {"do": "backward", "executor": 10, "head_grads": [1]},
    {"do": "forward", "executor": 10, "is_train": True},
    {"do": "invoke", "op": "_random_uniform", "attrs": {"shape": [3]}, "inputs": [], "outputs": [100]},
    *({"do": "fetch", "id": id, "as": str(id)} for id in (1, 2, 3, 4, 5, 6, 7)),
    {**BIND, "id": 11, "outputs": [102]},
    {"do": "forward", "executor": 11, "is_train": True},
    {"do": "take_rows", "id": 101, "of": 20, "begin": 0, "end": 1},
    {"do": "free", "ids": [1, 2, 3, 10, 20]},
]
X = np.arange(8, dtype=np.float32).reshape(2, 4)
TENSORS = {"x": X, "w": X + 1, "half": X.astype(ml_dtypes.bfloat16)}
CHECKED = 99999
"""Forgeries in a run of the tests, of about 5,000: two seconds."""


def run(engine: Engine, id: str, *commands: Any) -> dict[str, np.ndarray]:
    body = {"commands": [*commands], "wait": True}
    return engine.call("POST", f"/v1/sessions/{id}/commands", body, TENSORS, owner=OWNER)[1]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    one = Engine(Settings(max_rank=8, max_session_bytes=8 << 20, max_nodes=100, deadline_s=5))
    yield one
    one.close()


def image_of(engine: Engine) -> tuple[str, bytes]:
    """A session's number, and the bytes of its image."""
    id = engine.call("POST", "/v1/sessions", {"code": False}, owner=OWNER)[0]["id"]
    run(engine, id, *BEGIN)
    fd = write_image(*engine.sessions.get(OWNER, id).image())
    try:
        return id, os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def adopt(engine: Engine, data: bytes) -> str:
    """Have the engine go on with an image; the session's number."""
    fd = os.memfd_create("image")
    try:
        os.write(fd, data)
        return engine.adopt(OWNER, None, fd).id
    finally:
        os.close(fd)


def test_a_session_goes_on_as_it_was_with_arrays_of_bfloat16(engine: Engine) -> None:
    id, data = image_of(engine)
    expected = run(engine, id, *FURTHER[:-4])
    engine.call("DELETE", f"/v1/sessions/{id}", owner=OWNER)
    fetched = run(engine, adopt(engine, data), *FURTHER[:-4])
    engine.call("DELETE", f"/v1/sessions/{id}", owner=OWNER)
    assert fetched["5"].dtype == ml_dtypes.bfloat16
    for name, values in expected.items():
        np.testing.assert_array_equal(fetched[name], values, err_msg=name)


def test_no_forged_image_is_a_fault_of_the_server(engine: Engine) -> None:
    id, data = image_of(engine)
    engine.call("DELETE", f"/v1/sessions/{id}", owner=OWNER)
    (length,) = struct.unpack_from("<Q", data)
    header, payload = json.loads(data[8 : 8 + length]), data[8 + length :].ljust(64, b"\0")
    every = [(f"cut to {size}", data[:size]) for size in (0, 7, 8, 100, 8 + length, len(data) - 60)]
    every += [(f"a header of {size}", struct.pack("<Q", size) + data[8:]) for size in (0, 1, 1 << 40, (1 << 64) - 1)]
    for label, forged in mutations(header):
        text = json.dumps(forged).encode()
        # The blocks stay where they were: the header ends at a multiple of 64 bytes.
        text = text.ljust(len(text) + -(8 + len(text)) % 64)
        every.append((label, struct.pack("<Q", len(text)) + text + payload[-(8 + length) % 64 :]))
    sampled = every[:10] + random.Random(FUZZ).sample(every[10:], min(len(every) - 10, CHECKED * FUZZ))
    faults = []
    for label, forged in sampled:
        try:
            adopted = adopt(engine, forged)
        except Exception as error:
            if not (isinstance(error, MXNetError) and error_to_json(error)[0] != 500):
                faults.append(f"{label}: {type(error).__name__}: {error}")
            if len(engine.sessions):
                faults.append(f"{label}: {len(engine.sessions)} sessions are left")
            continue
        for command in FURTHER if not label.startswith(("awaited", "next")) else ():  # what is awaited never comes
            try:
                run(engine, adopted, command)
            except Exception as error:
                if not (isinstance(error, MXNetError) and error_to_json(error)[0] < 500):
                    faults.append(f"{label}: {command['do']}: {type(error).__name__}: {error}")
        engine.sessions.get(OWNER, adopted).close("the test")
        engine.sessions._sessions.clear()
    assert not faults, "\n".join([f"{len(faults)} faults", *faults[:40]])
