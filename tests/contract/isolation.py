"""A server whose sessions bring code that does mischief, and a session beside them that trains."""

from __future__ import annotations

import glob
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox.operator.definition import Definition
from opbox_service.worker import landlock
from tests.contract import mischief
from tests.contract.live import SCOPES, TOKENS, Got, Live, Session, symbol, var

X = np.arange(6, dtype=np.float32)
SECRET = "a-secret-of-the-tests"
OWN_USER = os.geteuid() == 0
KEPT_OUT = pytest.mark.skipif(
    not OWN_USER and not landlock.abi(), reason="needs root, or a kernel with Landlock, to keep files apart"
)


def settings(**further: str) -> dict[str, str]:
    every = ["run", "upload-python", "upload-cuda"]
    tokens = [{"name": name, "token": TOKENS[name], "scopes": every} for name in ("py", "cuda", "bob")]
    tokens += [{"name": name, "token": TOKENS[name], "scopes": SCOPES[name]} for name in ("ann", "monitor")]
    return {
        "OPBOX_TOKENS": json.dumps(tokens),
        "OPBOX_CODE_SPARES": "1",
        "OPBOX_CODE_DEADLINE_S": "3",
        "OPBOX_CODE_MEMORY_BYTES": str(1 << 30),
        "OPBOX_CODE_FILE_BYTES": str(64 << 20),
        "SECRET_OF_THE_TESTS": SECRET,
        **further,
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for all: whatever a test does to its session, the next test's is well."""
    live = Live("process", tmp_path_factory.mktemp("isolation"), **settings())
    yield live
    workers, folders = live.code_workers(), own_folders(live)
    assert live.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not [folder for folder in folders if os.path.exists(folder)]


def own_folders(server: Live) -> list[str]:
    return glob.glob(f"/tmp/opbox-code-{server.process.pid}-*")


def definition(cls: type, op_type: str) -> tuple[str, dict[str, Any]]:
    """The hash of an operator's source, and the command that brings it."""
    bundle = Definition("Custom", op_type, cls).source()
    return bundle.sha256, {
        "do": "define",
        "op": "Custom",
        "op_type": op_type,
        "sha256": bundle.sha256,
        "bundle": bundle.json(),
    }


def step(what: str, value: object = "") -> list[Mapping[str, Any]]:
    """Commands that bring the operator and run it once."""
    code, define = definition(mischief.MischiefProp, "mischief")
    attrs = {"op_type": "mischief", "__code__": code, "what": what, "value": str(value)}
    return [
        {"do": "put", "id": 1, "tensor": "x"},
        define,
        {"do": "invoke", "op": "Custom", "attrs": attrs, "inputs": [1], "outputs": [2]},
        {"do": "fetch", "id": 2, "as": "y"},
    ]


def run(server: Live, what: str, value: object = "", owner: str = "py") -> tuple[Session, Got]:
    session = server.session(owner)
    return session, session.run(*step(what, value), x=X)


def tells_the_line(answer: Got, what: str) -> bool:
    """Whether the error names the line, in the traceback too, where a mischief's method went wrong."""
    text, first = inspect.getsourcelines(getattr(mischief.Mischief, what))
    frames = re.findall(r'File "mischief.py", line (\d+), in (\w+)', answer.header["detail"]["traceback"])
    line, name = frames[-1]
    within = first < int(line) < first + len(text) and f"def {name}(" in "".join(text)
    return within and f"at mischief.py:{line} in {name}" in answer.error


def is_well(server: Live, owner: str = "py") -> None:
    """A new session works at once."""
    session, answer = run(server, "nothing", owner=owner)
    assert answer.status == 200, answer.header
    np.testing.assert_array_equal(answer.tensors["y"], X + 1)
    assert session.delete().status == 200


NET = symbol(
    var("x"),
    var("w"),
    var("b"),
    ("FullyConnected", "fc", {"num_hidden": "16"}, [0, 1, 2]),
    ("Activation", "act", {"act_type": "tanh"}, [3]),
    ("sum", "total", {}, [4]),
)


def train(session: Session, steps: int, until: Callable[[], bool] = lambda: True) -> list[np.ndarray]:
    """Plain gradient descent; the weights after each step, as many as it takes."""
    rng = np.random.default_rng(7)
    arrays = {"x": rng.normal(size=(32, 24)), "w": rng.normal(size=(16, 24)), "b": np.zeros(16)}
    single = {name: value.astype(np.float32) for name, value in arrays.items()}
    zeros = {f"g{name}": np.zeros_like(value) for name, value in single.items()}
    ids = {name: i for i, name in enumerate((*single, *zeros), 1)}
    puts = [{"do": "put", "id": id, "tensor": name} for name, id in ids.items()]
    bind = {
        "do": "bind",
        "id": 20,
        "graph": NET,
        "args": {name: ids[name] for name in single},
        "grads": {name: ids[f"g{name}"] for name in ("w", "b")},
        "grad_req": {"x": "null"},
        "outputs": [21],
    }
    answer = session.run(
        *puts, bind, {"do": "put", "id": 30, "tensor": "one"}, one=np.ones(1, np.float32), **single, **zeros
    )
    assert answer.status == 200, answer.header
    calls = [{"inputs": [ids["w"], ids["gw"]]}, {"inputs": [ids["b"], ids["gb"]]}]
    weights = []
    while len(weights) < steps or not until():
        answer = session.run(
            {"do": "forward", "executor": 20, "is_train": True},
            {"do": "backward", "executor": 20, "head_grads": [30]},
            {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.01"}, "calls": calls},
            {"do": "fetch", "id": ids["w"], "as": "w"},
        )
        assert answer.status == 200, answer.header
        weights.append(answer.tensors["w"].copy())
    return weights
