"""What a process with a session's own code says of its session is not believed: only what fits the model is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.device_time import DeviceTimes
from opbox_service.routes.sessions import SessionState
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from opbox_service.worker.code_worker import CodeWorker
from opbox_service.worker.code_workers import CodeWorkers

OPENED = {"id": "a" * 32, "device": "cpu", "ttl_s": 600.0, "limits": {"bytes": 1000}}
HONEST = {
    **OPENED,
    "idle_s": 1.0,
    "created": 5.0,
    "next_seq": 3,
    "objects": 2,
    "bytes": 64,
    "peak_bytes": 80,
    "steps": 7,
}


class Process:
    """A process that answers whatever its code likes."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    async def call(self, request: RawRequest, deadline_s: float) -> RawResponse:
        return RawResponse(200, [self.text])


def listed(text: bytes) -> dict[str, Any]:
    route, parameters = ROUTES.match("GET", "/v1/admin/sessions")
    request = RawRequest(route, parameters, route.path, "boss", frozenset({"admin"}), "r")
    workers = CodeWorkers(
        Settings(), DeviceTimes(), root=False, siblings=list, books=Books(Settings(), Accounts(Settings()))
    )
    process = cast("CodeWorker", Process(text))
    return dict(asyncio.run(workers._state(request, "ann", process, OPENED)))


def test_an_honest_process_is_quoted() -> None:
    row = listed(json.dumps({"sessions": [HONEST]}).encode())
    assert (row["owner"], row["steps"], row["bytes"]) == ("ann", 7, 64)
    assert set(row) == {*SessionState.model_fields, "owner"}


def test_a_session_cannot_pass_for_another() -> None:
    row = listed(json.dumps({"sessions": [{**HONEST, "id": "b" * 32, "owner": "bob", "device": "x" * 9999}]}).encode())
    assert (row["id"], row["owner"], row["device"]) == (OPENED["id"], "ann", "cpu")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"sessions": []}',
        b'{"sessions": [5]}',
        b"[" * 9999,
        json.dumps({"sessions": [{"steps": {}}]}).encode(),
    ],
)
def test_what_fits_no_session_is_replaced_by_what_is_known(answer: bytes) -> None:
    row = listed(answer)
    assert (row["id"], row["owner"], row["steps"], row["bytes"]) == (OPENED["id"], "ann", 0, 0)


def test_more_than_a_session_has_is_left_out() -> None:
    row = listed(json.dumps({"sessions": [{**HONEST, "further": "x" * 10_000}]}).encode())
    assert "further" not in row
