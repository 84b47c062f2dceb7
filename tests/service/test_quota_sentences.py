"""What a refusal for want of room recommends can be done: routes that there are, settings that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from opbox_protocol.errors import QuotaError
from opbox_service.engine import Engine
from opbox_service.environment import check_environment
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings

MIB = 1 << 20


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine_of_test = Engine(
        Settings(
            max_sessions=3,
            max_session_bytes=8 * MIB,
            max_owner_bytes=12 * MIB,
            max_device_bytes=16 * MIB,
            max_session_objects=4,
            max_waiting=2,
        )
    )
    yield engine_of_test
    engine_of_test.close()


def open_session(engine: Engine, owner: str) -> str:
    id: str = engine.call("POST", "/v1/sessions", {}, owner=owner)[0]["id"]
    return id


def zeros(engine: Engine, id: str, owner: str, mebibytes: int, *ids: int) -> None:
    command = {"do": "zeros", "ids": list(ids) or [1], "shape": [mebibytes, MIB], "dtype": "int8"}
    engine.call("POST", f"/v1/sessions/{id}/commands", {"commands": [command]}, owner=owner)


def sessions(engine: Engine) -> None:
    for _ in range(4):
        open_session(engine, "ann")


def session_memory(engine: Engine) -> None:
    zeros(engine, open_session(engine, "ann"), "ann", 9)


def owners_memory(engine: Engine) -> None:
    for _ in range(2):
        zeros(engine, open_session(engine, "ann"), "ann", 7)


def memory_of_all(engine: Engine) -> None:
    for owner in ("ann", "bob", "eve"):
        zeros(engine, open_session(engine, owner), owner, 7)


def objects(engine: Engine) -> None:
    zeros(engine, open_session(engine, "ann"), "ann", 0, *range(1, 6))


def waiting(engine: Engine) -> None:
    id = open_session(engine, "ann")
    for seq in (2, 3, 4):
        engine.call("POST", f"/v1/sessions/{id}/commands", {"seq": seq, "commands": [], "wait": False}, owner="ann")


REFUSED: dict[Any, str] = {
    sessions: "sessions: expected at most 3 of an owner, got one more: end one of yours (DELETE /v1/sessions/{id}; "
    "GET /v1/sessions lists them), or try again when one has expired",
    session_memory: "session memory: expected at most 8388608 bytes, got 0 in use and 9437184 more: free arrays, or "
    "ask the server's administrator for a larger quota (owners in OPBOX_TOKENS_FILE)",
    owners_memory: "memory of all your sessions: expected at most 12582912 bytes, got N in use and N more: free "
    "arrays, or ask the server's administrator for a larger quota (owners in OPBOX_TOKENS_FILE)",
    memory_of_all: "memory of all sessions: expected at most 16777216 bytes, got N in use and N more: free arrays, try "
    "again when others have freed theirs, or ask the server's administrator for more (OPBOX_MAX_DEVICE_BYTES)",
    objects: "session: expected at most 4 arrays, executors and kernels, got 0 and 5 more: free some, or ask the "
    "server's administrator for more (OPBOX_MAX_SESSION_OBJECTS)",
    waiting: "session: expected at most 2 batches waiting for seq 1, got one more with seq 4: send the batch with "
    "seq 1 first",
}


@pytest.mark.parametrize("provoke", REFUSED, ids=lambda provoke: provoke.__name__)
def test_a_refusal_names_what_can_be_done(engine: Engine, provoke: Any) -> None:
    with pytest.raises(QuotaError) as refused:
        provoke(engine)
    sentence = refused.value.message
    if " N " in REFUSED[provoke]:  # budgets draw from one another in pieces
        sentence = re.sub(r"got \d+ in use and \d+ more", "got N in use and N more", sentence)
    assert re.sub(r"^.*?: (?=memory of|session memory|session: )", "", sentence) == REFUSED[provoke]
    check_environment(re.findall(r"OPBOX_\w+", sentence))
    paths = {(route.method, route.path) for route in ROUTES}
    assert paths.issuperset(re.findall(r"(GET|DELETE) (/v1[^\s;,)]*)", sentence))
