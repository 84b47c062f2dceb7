"""Bodies that come in parts, and calls that are answered while they run, as a client of one's own makes them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from opbox_protocol import wire
from opbox_protocol.errors import QuotaError
from opbox_service.api.body_parts import MAX_BODIES, BodyPart, BodyParts
from opbox_service.api.kept_answers import CallName
from opbox_service.buffers import Pool
from opbox_service.carriers import RawRequest
from opbox_service.routes.table import ROUTES
from tests.contract.live import TOKENS, Live, Session

X = np.arange(100_000, dtype=np.float32)


@pytest.fixture(scope="module", params=["none", "process"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live(request.param, tmp_path_factory.mktemp("parts"), OPBOX_MAX_OWNER_BUFFER_BYTES=str(1 << 22))
    yield server
    assert server.stop() == 0


@pytest.fixture
def session(live: Live) -> Iterator[Session]:
    session = live.session()
    yield session
    session.delete()


class Frame:
    """A batch that brings X and fetches it again."""

    def __init__(self, session: Session, number: int) -> None:
        commands = [{"do": "put", "id": number, "tensor": "x"}, {"do": "fetch", "id": number, "as": "y"}]
        head, buffers = wire.encode({"commands": commands}, {"x": X}, "inputs")
        self.body, self.session = b"".join([head, *buffers]), session
        self.headers = {wire.HEADER_LENGTH: str(len(head)), "Opbox-Call": f"me/{number}"}

    def send(self, begin: int, end: int, total: int | None = None, **headers: str) -> httpx.Response:
        """A part of it."""
        part = {"Opbox-Part": f"{begin}/{len(self.body) if total is None else total}"}
        client = self.session.server.clients[self.session.owner]
        body, headers = self.body[begin:end], {**self.headers, **part, **headers}
        return client.post(f"{self.session.path}/commands", content=body, headers=headers)


def values(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return wire.decode(answer.content, int(answer.headers[wire.HEADER_LENGTH]), key="outputs").tensors["y"]


def test_parts_make_a_call(session: Session) -> None:
    frame = Frame(session, 1)
    size = len(frame.body)
    for begin, end in ((0, 100_000), (100_000, 300_000)):
        answer = frame.send(begin, end)
        assert (answer.status_code, answer.json()) == (202, {"received": end})
    assert values(frame.send(300_000, size)).tobytes() == X.tobytes()
    # Whatever part of it comes again, it is the call that has run.
    assert values(frame.send(size - 10, size)).tobytes() == values(frame.send(0, 10)).tobytes() == X.tobytes()
    assert values(frame.send(0, 0)).tobytes() == X.tobytes()
    assert session.server.json("GET", session.path).header["next_seq"] == 2


def test_parts_that_come_twice_or_too_early(session: Session) -> None:
    frame = Frame(session, 2)
    size = len(frame.body)
    for begin, end, received in (
        (1000, 2000, 0),  # the first is missing
        (0, 0, 0),
        (0, 1000, 1000),
        (2000, 3000, 1000),
        (0, 1000, 1000),
        (500, 1500, 1500),
        (0, 10, 1500),
        (0, 0, 1500),
    ):
        answer = frame.send(begin, end)
        assert (answer.status_code, answer.json()) == (202, {"received": received})
    assert values(frame.send(1500, size)).tobytes() == X.tobytes()
    whole = Frame(session, 3)  # in one part
    assert values(whole.send(0, size)).tobytes() == X.tobytes()


@pytest.mark.parametrize(
    ("begin", "end", "total", "headers", "status", "sentence"),
    [
        (
            0,
            10,
            None,
            {"Opbox-Part": "0"},
            400,
            "expected the part's first byte, a slash and the bytes of the whole body",
        ),
        (0, 10, None, {"Opbox-Part": "-1/9"}, 400, "expected the part's first byte, a slash"),
        (0, 10, 9, {}, 400, "Opbox-Part: expected at most 9 bytes in all, got 10"),
        (0, 10, 1 << 40, {}, 413, "body: expected at most 67108864 bytes, got 1099511627776"),
        (0, 10, 100, {}, 400, "expected at most the body's 100 bytes, got"),
        (0, 10, 1000, {}, 400, "expected a part of the 1000 bytes"),
    ],
)
def test_wrong_parts(
    session: Session, begin: int, end: int, total: int | None, headers: dict[str, str], status: int, sentence: str
) -> None:
    frame = Frame(session, 4)
    if total == 1000:
        assert frame.send(0, 10, total).status_code == 202
        total = 1001
    answer = frame.send(begin, end, total, **headers)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_part_needs_a_number_and_a_length(live: Live, session: Session) -> None:
    path, client = f"{session.path}/commands", live.clients["ann"]
    answer = client.post(path, content=b"x", headers={"Opbox-Part": "0/10"})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "Opbox-Part: expected the call's number (Opbox-Call) with it, got none",
    )
    answer = client.post(path, content=iter([b"x"]), headers={"Opbox-Part": "0/10", "Opbox-Call": "me/5"})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "Opbox-Part: expected a Content-Length with it, got none",
    )


def test_parts_count_as_their_owners_buffers_until_their_session_ends(live: Live) -> None:
    session, bobs = live.session(), live.session("bob")
    size = 3 << 20
    assert Frame(session, 6).send(0, 1000, size).status_code == 202
    refused = Frame(session, 7).send(0, 1000, size)
    assert refused.status_code == 429
    assert "transfer buffers: expected at most 4194304 bytes" in refused.json()["error"]
    assert Frame(bobs, 6).send(0, 0, size).json() == {"received": 0}  # another's, under the same number
    bobs.delete()
    session.delete()
    session = live.session()
    assert Frame(session, 9).send(0, 1000, size).status_code == 202
    session.delete()


def test_a_part_that_stalls_is_brought_by_another_connection(live: Live, session: Session) -> None:
    """The first connection has died silently amid a part; the server still waits for its rest."""
    frame = Frame(session, 10)
    size = len(frame.body)
    assert frame.send(0, 100_000).status_code == 202
    host, port = live.url.removeprefix("http://").split(":")
    head = {**frame.headers, "Opbox-Part": f"100000/{size}", "Content-Length": str(size - 100_000), "Host": "localhost"}
    head["Authorization"] = f"Bearer {TOKENS['ann']}"
    lines = [f"POST {session.path}/commands HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    with socket.create_connection((host, int(port))) as stalled:
        stalled.sendall("\r\n".join([*lines, "", ""]).encode() + frame.body[100_000:200_000])
        until = time.monotonic() + 60
        while live.metric("opbox_requests_in_flight") < 2:  # the stalled one, and this
            assert time.monotonic() < until
        assert values(frame.send(100_000, size)).tobytes() == X.tobytes()
        stalled.sendall(bytes(1000))  # nobody's any more
        assert stalled.recv(1 << 16).startswith(b"HTTP/1.1 20"), "whoever is there after all is told how far it is"
        assert values(frame.send(0, 0)).tobytes() == X.tobytes()


def test_a_call_is_answered_while_it_runs(live: Live, session: Session) -> None:
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=np.zeros(2, np.float32)).status == 200
    slow = {"do": "invoke", "op": "_test_slow", "attrs": {"seconds": "0.5"}, "inputs": [1], "outputs": [2]}
    body = {"commands": [slow, {"do": "fetch", "id": 2, "as": "x"}]}
    path, client = f"{session.path}/commands", live.clients["ann"]
    number = {"Opbox-Call": "me/11"}
    first = client.post(path, json=body, headers={**number, "Prefer": "respond-async, wait=0"})
    assert (first.status_code, first.json()) == (202, {"running": 11})
    still = client.post(path, headers={**number, "Prefer": "wait=0", "Opbox-Part": "0/100"})
    assert (still.status_code, still.json()) == (202, {"running": 11})
    answer = client.post(path, headers={**number, "Opbox-Part": "0/100"})
    assert answer.status_code == 200
    assert answer.json()["outputs"][0]["data"] == [0.0, 0.0]
    assert live.json("GET", session.path).header["next_seq"] == 3
    # An error that comes behind such an answer is kept like any other.
    slow["outputs"], body["commands"][1]["id"] = [3], 99
    failing = {"Opbox-Call": "me/12"}
    assert client.post(path, json=body, headers={**failing, "Prefer": "wait=0"}).json() == {"running": 12}
    refused = client.post(path, headers={**failing, "Opbox-Part": "0/100"})
    assert (refused.status_code, refused.json()["type"]) == (404, "NotFoundError"), refused.text


def on_loop(test: Any) -> Any:
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 30))

    run.__name__ = test.__name__
    return run


class Store:
    """Bodies in parts, what is counted for their owner, and the buffers that are lent."""

    def __init__(self, waited_s: float = 60) -> None:
        self.bytes = 0
        self.pool = Pool(shared=False, limit=1 << 30, keep=0)
        self.parts = BodyParts(self._count, waited_s)
        self.route = ROUTES.match("POST", "/v1/forward")[0]

    def _count(self, owner: str, nbytes: int) -> None:
        self.bytes += nbytes

    def request(self) -> RawRequest:
        return RawRequest(self.route, {}, "/v1/forward", "ann", frozenset(), "id")

    def begin(self, number: int) -> Any:
        self.bytes += 100
        return self.parts.begin(self.request(), CallName(b"me", number), 100, lambda: self.pool.lease(100))


async def never() -> Any:
    await asyncio.get_running_loop().create_future()


async def write(view: memoryview, receive: Any) -> None:
    view[:] = bytes(len(view))


async def stall(view: memoryview, receive: Any) -> None:
    await never()


@on_loop
async def test_what_no_part_comes_of_is_dropped() -> None:
    store = Store(waited_s=0.01)
    body = store.begin(1)
    assert await store.parts.fill(body, BodyPart(0, 10, 100), never, write)
    while not body.dropped:
        await asyncio.sleep(0.001)
    assert (store.bytes, store.pool.lent_bytes) == (0, 0)
    assert store.parts.find(store.request(), CallName(b"me", 1), BodyPart(10, 10, 100)) is None
    assert not await store.parts.fill(body, BodyPart(10, 10, 100), never, write)


@on_loop
async def test_an_owner_has_so_many_at_a_time() -> None:
    store = Store()
    for number in range(MAX_BODIES):
        store.begin(number)
    with pytest.raises(QuotaError, match=f"expected at most {MAX_BODIES} of an owner"):
        store.begin(MAX_BODIES)
    assert store.bytes == 100 * MAX_BODIES


@on_loop
async def test_a_buffer_that_is_written_to_is_given_back_after_that() -> None:
    store = Store()
    body = store.begin(1)
    body.path = "/v1/sessions/s/commands"
    filling = asyncio.create_task(store.parts.fill(body, BodyPart(0, 10, 100), never, stall))
    await asyncio.sleep(0)
    assert body.receiving is not None
    store.parts.end_session("another")
    assert store.pool.lent_bytes
    store.parts.end_session("s")
    assert store.bytes == 0
    assert store.pool.lent_bytes
    await asyncio.wait([filling])
    assert store.pool.lent_bytes == 0
    assert type(filling.exception()).__name__ == "StalePartError"
