"""Memory adds up: what all sessions of all owners take together is never more than there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend.host_memory import machine_memory
from opbox_protocol.errors import GoneError, QuotaError
from opbox_service.engine import Engine
from opbox_service.executor.plan import OBJECT_BYTES
from opbox_service.quota import GRAIN, Allocation, Budget, Ledger
from opbox_service.settings import Settings
from tests.contract.isolation import run, settings
from tests.contract.live import Live, symbol, var
from tests.load.attacks import begin, readers, sessions, temporaries, waiting

MIB = 1 << 20


@pytest.fixture(params=["none", "process"], scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(
        request.param,
        tmp_path_factory.mktemp("memory"),
        OPBOX_MAX_SESSION_BYTES=str(100 * MIB),
        OPBOX_MAX_OWNER_BYTES=str(150 * MIB),
        OPBOX_MAX_DEVICE_BYTES=str(200 * MIB),
        OPBOX_MAX_OWNER_BUFFER_BYTES=str(40 * MIB),
        OPBOX_STALL_S="1",
    )
    yield live
    assert live.stop() == 0


def zeros(id: int | None, mib: int) -> dict[str, Any]:
    return {"do": "invoke", "op": "_zeros", "attrs": {"shape": [mib * MIB // 4]}, "outputs": [id]}


def test_quotas_of_sessions_do_not_add_up_to_more_than_there_is(server: Live) -> None:
    sessions = [server.session("ann"), server.session("ann"), server.session("bob")]
    assert sessions[0].run(zeros(1, 90)).status == 200
    full = sessions[0].run(zeros(2, 20))
    assert (full.status, "session memory" in full.error) == (429, True)
    owner = sessions[1].run(zeros(1, 90))
    assert (owner.status, "all your sessions" in owner.error) == (429, True)
    assert sessions[1].run(zeros(1, 30)).status == 200
    device = sessions[2].run(zeros(1, 90))
    assert (device.status, "all sessions" in device.error) == (429, True)
    assert sessions[0].delete().status == 200
    assert sessions[2].run(zeros(1, 90)).status == 200
    for session in sessions[1:]:
        assert session.delete().status == 200


def test_what_a_command_takes_meanwhile_is_counted_and_given_back(server: Live) -> None:
    session = server.session()
    assert session.run(zeros(1, 40)).status == 200
    joined = {"do": "invoke", "op": "Concat", "attrs": {"num_args": 2, "dim": 0}, "inputs": [1, 1], "outputs": [None]}
    refused = session.run(joined)
    assert (refused.status, "bytes" in refused.error) == (429, True)
    for _ in range(10):
        assert session.run(zeros(None, 50)).status == 200
    assert server.json("GET", session.path).header["bytes"] == 40 * MIB
    session.delete()


def test_batches_that_wait_are_counted(server: Live) -> None:
    session = server.session()
    session.seq = 1  # the first never comes
    x = np.zeros(30 * MIB // 4, np.float32)
    put = {"do": "put", "id": 1, "tensor": "x"}
    assert [session.run(put, wait=False, x=x).status for _ in range(4)] == [202, 202, 202, 429]
    assert server.json("GET", session.path).header["bytes"] == 90 * MIB
    session.delete()
    fresh = server.session()
    assert fresh.run(zeros(1, 90)).status == 200
    fresh.delete()


def test_an_owner_s_buffers_leave_room_for_others(server: Live) -> None:
    slow = begin(server, f"POST /v1/forward HTTP/1.1\r\nContent-Length: {39 * MIB}\r\n")
    time.sleep(0.5)
    x = np.zeros(4 * MIB // 4, np.float32)
    put = {"do": "put", "id": 1, "tensor": "x"}
    refused = server.session("ann").run(put, x=x)
    assert (refused.status, "transfer buffers" in refused.error) == (429, True)
    assert refused.http["retry-after"]
    assert server.session("bob").run(put, x=x).status == 200
    slow.close()
    until = time.monotonic() + 10
    while server.session("ann").run(put, x=x).status != 200:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_the_buffers_of_all_owners_are_bounded_together(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_MAX_BUFFER_BYTES=str(40 * MIB))
    slow = begin(server, f"POST /v1/forward HTTP/1.1\r\nContent-Length: {28 * MIB}\r\n")
    session, put = server.session("bob"), {"do": "put", "id": 1, "tensor": "x"}
    time.sleep(0.5)
    refused = session.run(put, x=np.zeros(14 * MIB // 4, np.float32))
    assert (refused.status, "of all bodies and unread answers" in refused.error) == (503, True), refused.header
    session.seq -= 1
    assert session.run(put, x=np.zeros(4 * MIB // 4, np.float32)).status == 200
    alone = server.session("ann").run(put, x=np.zeros(MIB, np.float32))
    assert (alone.status, "of an owner's bodies" in alone.error) == (429, True), "three quarters are one owner's"
    slow.close()


def test_a_server_takes_less_than_it_is_told_where_there_is_less(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_MAX_DEVICE_BYTES=str(1 << 50), OPBOX_DEVICES='["cpu"]')
    (cpu,) = server.json("GET", "/v1/devices").header["devices"]
    assert cpu["limit_bytes"] < cpu["memory_bytes"] < 1 << 50
    assert "OPBOX_MAX_DEVICE_BYTES: expected at most" in Path(server.log.name).read_text()


def test_processes_for_code_are_bounded_together(start: Callable[..., Live]) -> None:
    limits = {"OPBOX_MAX_CODE_BYTES": str(700 * MIB), "OPBOX_CODE_DEADLINE_S": "120"}
    server = start("process", **settings(**limits, OPBOX_CODE_MEMORY_BYTES=str(4096 * MIB)))
    small = server.session("py")
    assert small.run({"do": "put", "id": 1, "tensor": "x"}, x=np.ones(4)).status == 200
    large, answer = run(server, "memory_of_children")  # what code takes by itself is seen when it has it
    assert "held the most memory" in answer.error, answer.header
    assert large.run({"do": "describe", "id": 1}).status == 410
    assert small.run({"do": "fetch", "id": 1, "as": "x"}).status == 200


def test_arrays_of_processes_for_code_are_admitted(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_MAX_CODE_BYTES=str(250 * MIB))
    first, second = (server.session("py", code=True) for _ in range(2))
    assert first.run(zeros(1, 50)).status == 200
    refused = second.run(zeros(1, 50))
    assert (refused.status, refused.error.partition(":")[0]) == (429, "memory of all sessions"), refused.header
    assert second.run(zeros(1, 20)).status == 200
    more = server.call("POST", "/v1/sessions", {"code": True}, owner="py")
    assert (more.status, "sessions that may bring code" in more.error) == (429, True), more.header
    without = server.session("py", code=False)
    assert without.run(zeros(1, 20)).status == 200
    assert first.run(zeros(2, 38)).status == 429
    assert second.delete().status == 200
    # 80 MiB of the process, 50 and 38 of arrays: 82 are left, whether the process was measured behind them or not.
    assert first.run(zeros(2, 38)).status == 200
    assert server.session("py", code=True).run(zeros(1, 1)).status == 200
    assert first.run({"do": "describe", "id": 1}).status == 200, "nobody's process was ended"


def test_a_client_that_does_not_read_is_cut_off(server: Live) -> None:
    session = server.session("bob")
    assert session.run(zeros(1, 36)).status == 200
    body = b'{"commands":[{"do":"fetch","id":1,"as":"x"}]}'
    head = (
        f"POST {session.path}/commands HTTP/1.1\r\nAccept: application/octet-stream\r\nContent-Length: {len(body)}\r\n"
    )
    reader = begin(server, head, body, owner="bob")
    time.sleep(4)
    size = 0
    try:
        while part := reader.recv(1 << 20):
            size += len(part)
    except ConnectionError:
        pass
    assert size < 36 * MIB
    reader.close()
    session.seq += 1
    assert session.run({"do": "fetch", "id": 1, "as": "x"}).status == 200
    session.delete()


def test_nothing_stays_of_what_was_refused(server: Live) -> None:
    workers = server.workers()
    for attack, status, words in (
        (lambda: temporaries(server, 40, 8), 429, "session memory"),
        (lambda: sessions(server, 3, 70), 429, "all your sessions"),
        (lambda: waiting(server, 5, 30), 429, "session memory"),
        (lambda: readers(server, 20, 4, 0.5), 200, ""),
    ):
        answer = attack()
        assert (answer.status, words in answer.header.get("error", "")) == (status, True), answer.header
        until = time.monotonic() + 30
        while server.metric("opbox_buffer_bytes"):
            assert time.monotonic() < until
            time.sleep(0.1)
        fresh = server.session()
        assert fresh.run(zeros(1, 90)).status == 200
        assert fresh.delete().status == 200
    assert server.workers() == workers
    assert server.metric("opbox_worker_restarts_total") == 0


def test_a_plan_counts_with_its_objects() -> None:
    """A graph of many nodes on a small array: nearly all that its executor takes is objects of Python."""
    rows = [var("x"), *(("sort", f"n{i}", {}, [i]) for i in range(600))]
    zeros = {"do": "zeros", "ids": [1], "shape": [2], "dtype": "float32"}
    bind = {"do": "bind", "graph": symbol(*rows), "args": {"x": 1}}
    engine = Engine(Settings(max_session_bytes=3 * MIB))
    try:
        path = "/v1/sessions/" + engine.call("POST", "/v1/sessions")[0]["id"]
        engine.call("POST", f"{path}/commands", {"commands": [zeros, {**bind, "id": 2}]})
        nbytes = engine.call("GET", path)[0]["bytes"]
        assert 600 * OBJECT_BYTES < nbytes < 3 * MIB
        with pytest.raises(QuotaError, match="session memory: expected at most"):
            engine.call("POST", f"{path}/commands", {"commands": [{**bind, "id": id} for id in (3, 4)]})
        engine.call("POST", f"{path}/commands", {"commands": [{"do": "free", "ids": [2, 3]}]})
        assert engine.call("GET", path)[0]["bytes"] == 8
    finally:
        engine.close()


def test_budgets_draw_from_each_other_and_give_all_back() -> None:
    ledger = Ledger(10 * GRAIN, 8 * GRAIN)
    owner = ledger.of("ann", "cpu")
    first, second = Budget(6 * GRAIN, owner), Budget(6 * GRAIN, owner)
    allocation = Allocation(first, 5 * GRAIN)
    with pytest.raises(QuotaError, match="all your sessions"):
        second.take(4 * GRAIN)
    second.take(2 * GRAIN)
    assert second.available <= GRAIN
    with second.settling():
        second.reserve(GRAIN // 2)
        assert second.reserved == GRAIN // 2
    assert (second.reserved, second.used) == (0, 2 * GRAIN)
    other = Budget(8 * GRAIN, ledger.of("bob", "cpu"))
    with pytest.raises(QuotaError, match="all sessions"):
        other.reserve(4 * GRAIN)
    allocation.drop()
    second.close()
    assert owner.used == 0
    other.reserve(7 * GRAIN)
    other.keep(7 * GRAIN)
    assert (other.used, other.reserved) == (7 * GRAIN, 0)
    other.close()
    assert ledger.of("bob", "cpu").used == 0
    assert machine_memory() > 64 * MIB


def test_what_an_ended_session_still_gives_back_is_not_taken_off_twice() -> None:
    ledger = Ledger(10 * GRAIN, 8 * GRAIN)
    owner = ledger.of("ann", "cpu")
    ended, other = Budget(6 * GRAIN, owner), Budget(6 * GRAIN, owner)
    ended.take(2 * GRAIN)
    other.take(3 * GRAIN)
    ended.close()
    counted = owner.used
    ended.give(2 * GRAIN)  # a batch that was on its way into the session when it ended
    assert owner.used == counted >= 3 * GRAIN
    with pytest.raises(GoneError, match="got one that has ended"):
        ended.take(1)
    other.close()
    assert owner.used == 0
