"""The tree of errors: what a class's status is, and the JSON form in both directions."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import opbox as mx
from opbox_protocol import errors
from opbox_protocol.errors import MXNetError, error_from_json, error_to_json

STATUSES = {
    "AuthenticationError": 401,
    "BadRequestError": 400,
    "ConflictError": 409,
    "DTypeError": 422,
    "DeadlineError": 504,
    "ForbiddenError": 403,
    "GoneError": 410,
    "GraphError": 400,
    "InternalError": 500,
    "LimitError": 413,
    "EncodingError": 415,
    "MXNetError": 500,
    "ModelNotReadyError": 400,
    "NotFoundError": 404,
    "NotReadyError": 503,
    "OutOfMemoryError": 507,
    "ParamError": 400,
    "PositionError": 422,
    "PeerLostError": 424,
    "QuotaError": 429,
    "StorageError": 507,
    "CancelledError": 499,
    "ShapeError": 422,
    "UnderdeterminedError": 422,
    "UnknownModelError": 404,
    "UnknownOperatorError": 400,
    "UnsupportedError": 501,
    "UserCodeError": 422,
    "ValueShapeError": 422,
    "WorkerDiedError": 503,
}
KINDS = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}


def test_every_class_is_in_the_table_and_public() -> None:
    local = {"WireError", "TransportError", "FileError", "MissingFileError", "DeniedFileError", "DamagedFileError"}
    assert set(KINDS) == set(STATUSES) | local
    assert set(errors.__all__) == set(KINDS) | {"STATUSES", "error_from_json", "error_to_json"}


@pytest.mark.parametrize(("name", "status"), STATUSES.items())
def test_an_error_survives_the_way_to_a_client(name: str, status: int) -> None:
    sent = KINDS[name]("data: expected 4 axes, got 2", node="conv", detail={"command": 3})
    got_status, body = error_to_json(sent)
    assert got_status == status
    got = error_from_json(got_status, {**body, "request_id": "r1"})
    assert type(got) is KINDS[name]
    assert (str(got), got.status, got.node, got.detail) == (str(sent), status, "conv", {"command": 3})
    assert (sent.request_id, got.request_id) == (None, "r1")


@pytest.mark.parametrize("name", KINDS)
def test_a_script_that_catches_mxnets_error_catches_all(name: str) -> None:
    for root in (mx.MXNetError, mx.base.MXNetError, RuntimeError):
        with pytest.raises(root):
            raise KINDS[name]("no")
    assert mx.errors is errors


def test_a_class_of_another_package_travels_as_the_nearest_of_ours() -> None:
    class RaggedError(errors.ShapeError):
        """An operator package's own."""

    assert error_to_json(RaggedError("ragged"))[1]["type"] == "ShapeError"
    assert error_to_json(errors.WireError("cut off")) == (
        400,
        {"error": "cut off", "type": "BadRequestError", "node": None, "detail": {}},
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "too odd", "type": "OddError"}, "too odd"),
        ({"error": "too odd", "type": ["ShapeError"], "detail": "none"}, "too odd"),
        ({}, "the server gave no reason"),
    ],
)
def test_a_type_that_this_client_does_not_know(body: dict[str, Any], message: str) -> None:
    error = error_from_json(418, body)
    assert type(error) is MXNetError
    assert (str(error), error.status) == (message, 418)


def test_an_error_that_is_none_of_ours_travels_without_its_text() -> None:
    status, body = error_to_json(KeyError("/secret/path"))
    assert (status, body["type"]) == (500, "InternalError")
    assert "secret" not in str(body)
    assert error_to_json(MemoryError())[0] == errors.OutOfMemoryError.status


def test_the_users_traceback_is_a_note() -> None:
    error = error_from_json(422, {"error": "forward: no", "type": "UserCodeError", "detail": {"traceback": "line 3"}})
    assert error.__notes__ == ["In the operator's code:\nline 3"]


def test_a_node_is_named_once() -> None:
    error = errors.ShapeError("weight: expected (10, 20), got (10, 21)")
    error.at("fc1", "FullyConnected", "train.py:12").at("outer", "Custom")
    assert str(error) == "fc1 (FullyConnected, train.py:12): weight: expected (10, 20), got (10, 21)"
    assert error.node == "fc1"
    assert error.args == (str(error),)
