"""What `mx.nd` does inside an operator: a session's commands, with all of their checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import (
    BadRequestError,
    ConflictError,
    MXNetError,
    NotFoundError,
    QuotaError,
    ShapeError,
    UnsupportedError,
)
from opbox_service.custom import Definitions
from opbox_service.custom.local_session import LocalSession
from opbox_service.quota import Budget, MeteredBackend

X = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture
def budget() -> Budget:
    return Budget(1 << 16)


@pytest.fixture
def local(budget: Budget) -> LocalSession:
    """Arrays 1 (of the operator's own) and, read-only, the input that `wrap` makes."""
    backend = backend_for("cpu")
    metered: Any = MeteredBackend(backend, budget)
    local = Definitions(metered, backend.random(0), "cpu", budget).local
    local.record({"do": "put", "id": 1001}, X.copy())
    return local


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        (
            {"do": "view", "id": 2002, "of": 1001, "begin": 1, "end": 4},
            ShapeError,
            "0 <= begin <= end <= 3, got 1 and 4",
        ),
        ({"do": "view", "id": 2002, "of": 1001, "begin": -2, "end": 3}, ShapeError, "0 <= begin <= end <= 3, got -2"),
        ({"do": "view", "id": 2002, "of": 1001, "at": 3}, ShapeError, "a row from 0 to 2, got 3"),
        ({"do": "view", "id": 2002, "of": 1001, "at": -1}, ShapeError, "a row from 0 to 2, got -1"),
        ({"do": "view", "id": 2002, "of": 1001, "shape": [4]}, ShapeError, "a shape of 6 elements"),
        ({"do": "view", "id": 2002, "of": 1001}, BadRequestError, "either begin and end, or at, or shape"),
        ({"do": "view", "id": 1001, "of": 1001, "at": 0}, ConflictError, "id 1001 is taken"),
        ({"do": "copy", "from": 7, "to": 2002}, NotFoundError, "array 7: expected one of this session, got nothing"),
        ({"do": "invoke", "op": "_copy", "inputs": [7], "outputs": [2002]}, NotFoundError, "array 7"),
        ({"do": "invoke", "op": "_copy", "inputs": [1001], "outputs": []}, BadRequestError, "expected 1 ids, got 0"),
        ({"do": "invoke", "op": "_copy", "inputs": [-1], "outputs": [2002]}, BadRequestError, "from 0 to 2"),
        ({"do": "update", "op": "sgd_update", "calls": [{"inputs": []}]}, BadRequestError, "1 or more items"),
        ({"do": "launch", "kernel": 1001, "grid": [1] * 3, "block": [1] * 3}, NotFoundError, "got an array"),
        ({"do": "bind", "id": 2002, "graph": {}}, UnsupportedError, "inside an operator"),
        ({"do": "forward", "executor": 1001}, NotFoundError, "executor 1001: expected one bound"),
    ],
)
def test_a_command_inside_an_operator_is_checked(
    local: LocalSession, command: dict[str, Any], kind: type[MXNetError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        local.record(command)
    np.testing.assert_array_equal(local.fetch(1001).result(), X)
    with pytest.raises(NotFoundError):
        local.array(2002)


def test_an_input_is_not_written_to_by_any_command(local: LocalSession) -> None:
    data = X.copy()
    handle = local.wrap(data, read_only=True)
    id = handle._id
    local.record({"do": "view", "id": 2001, "of": id, "at": 0})
    for target in (id, 2001):
        shape = local.describe(target)["shape"]
        for command, tensor in (
            ({"do": "write", "id": target}, np.zeros(shape, np.float32)),
            ({"do": "copy", "from": 1001, "to": target}, None),
            ({"do": "invoke", "op": "_ones", "attrs": {"shape": shape}, "outputs": [target], "into": True}, None),
            ({"do": "update", "op": "sgd_update", "attrs": {"lr": 1}, "calls": [{"inputs": [target, target]}]}, None),
        ):
            with pytest.raises(MXNetError, match="it writes to an input"):
                local.record(command, tensor)
    np.testing.assert_array_equal(data, X)


def test_arrays_made_inside_an_operator_count_until_they_are_freed(local: LocalSession, budget: Budget) -> None:
    assert budget.used == X.nbytes
    local.record({"do": "invoke", "op": "_zeros", "attrs": {"shape": (64, 64)}, "outputs": [2001]})
    assert budget.used == X.nbytes + 4 * 64 * 64
    with pytest.raises(QuotaError, match="at most 65536 bytes"):
        local.record({"do": "invoke", "op": "_zeros", "attrs": {"shape": (1000, 1000)}, "outputs": [2003]})
    local.record({"do": "view", "id": 2002, "of": 2001, "at": 5})
    local.free(2001)
    assert budget.used == X.nbytes + 4 * 64 * 64, "the view still uses it"
    local.free(2002)
    local.free(1001)
    assert budget.used == 0
    local.wrap(X)
    assert budget.used == 0, "the step's own arrays are counted where they were made"
