"""Sessions of live servers in a group: sums over all ranks, waiting without holding a turn, and the end of a rank."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from opbox_service.groups import GroupAddress, Membership
from tests.contract.live import Got, Live, Session, symbol, var

SECRET = "5e" * 32


@pytest.fixture(scope="module", params=["none", "process", "two servers"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Live]]:
    """A server of one process; of two workers; or two servers. All of one thread: who waits must not hold the turn."""
    isolation = "none" if request.param == "none" else "process"
    count = 2 if request.param == "two servers" else 1
    started = [
        Live(
            isolation,
            tmp_path_factory.mktemp("groups"),
            OPBOX_THREADS="1",
            OPBOX_WORKERS="2" if request.param == "process" else "1",
            OPBOX_GROUP_HOST="127.0.0.1/8",
        )
        for _ in range(count)
    ]
    yield started
    for server in started:
        assert server.stop() == 0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def joined(session: Session, rank: int, size: int, secret: str = SECRET) -> str:
    answer = session.run({"do": "join_group", "id": 1, "rank": rank, "size": size, "secret": secret})
    assert answer.status == 200, answer.header
    address: str = answer.header["results"][0]["address"]
    return address


def on_all(threads: ThreadPoolExecutor, sessions: Sequence[Session], *commands: dict[str, Any], **tensors: Any) -> list:
    futures: list[Future[Got]] = [threads.submit(session.run, *commands, **tensors) for session in sessions]
    return [future.result() for future in futures]


def group(servers: list[Live], threads: ThreadPoolExecutor, size: int) -> list[Session]:
    """Sessions that are connected, in turn on the servers."""
    return group_of([servers[rank % len(servers)].session() for rank in range(size)], threads)


def group_of(sessions: list[Session], threads: ThreadPoolExecutor) -> list[Session]:
    """The sessions, connected as the ranks of a group."""
    size = len(sessions)
    addresses = [joined(session, rank, size) for rank, session in enumerate(sessions)]
    connected = on_all(threads, sessions, {"do": "connect_group", "id": 1, "addresses": addresses})
    assert [answer.status for answer in connected] == [200] * size, [answer.header for answer in connected]
    return sessions


REDUCE = {"do": "all_reduce", "group": 1, "arrays": [2, 3], "outputs": [4, 5]}
PUT = ({"do": "put", "id": 2, "tensor": "a"}, {"do": "put", "id": 3, "tensor": "b"})
FETCH = ({"do": "fetch", "id": 4, "as": "a"}, {"do": "fetch", "id": 5, "as": "b"})


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_ranks_get_the_same_bits(servers: list[Live], threads: ThreadPoolExecutor, size: int) -> None:
    sessions = group(servers, threads, size)
    rng = np.random.RandomState(0)
    values = [(rng.randn(5, 7).astype("f"), rng.randn(1000).astype("e")) for _ in range(size)]
    futures = [
        threads.submit(session.run, *PUT, REDUCE, *FETCH, a=a, b=b)
        for session, (a, b) in zip(sessions, values, strict=True)
    ]
    answers = [future.result() for future in futures]
    assert [answer.status for answer in answers] == [200] * size, [answer.header for answer in answers]
    total = values[0][0].copy()
    for a, _ in values[1:]:
        total += a  # in the ranks' order, as on the servers
    for answer in answers:
        assert answer.tensors["a"].tobytes() == total.tobytes()
        assert answer.tensors["b"].tobytes() == answers[0].tensors["b"].tobytes()
    halves = sum(b.astype("f") for _, b in values)
    np.testing.assert_array_equal(answers[0].tensors["b"], np.asarray(halves).astype("e"))
    for session in sessions:
        session.delete()


def test_who_waits_holds_no_turn(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = group(servers, threads, 2)
    for session in sessions:
        assert session.run(*PUT, a=np.ones(3, "f"), b=np.ones(2, "f")).status == 200
    first = threads.submit(sessions[0].run, REDUCE, *FETCH)
    for _ in range(3):  # calls of the same owner and of another one, while the first rank waits
        for owner in ("ann", "bob"):
            other = servers[0].session(owner)
            answer = other.run({"do": "put", "id": 1, "tensor": "a"}, {"do": "fetch", "id": 1, "as": "a"}, a=[1.0])
            assert answer.status == 200
            other.delete()
    assert not first.done()
    second = sessions[1].run(REDUCE, *FETCH)
    for answer in (first.result(), second):
        assert answer.tensors["a"].tolist() == [2, 2, 2]
    for session in sessions:
        session.delete()


def test_the_end_of_a_rank_is_told_to_all(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = group(servers, threads, 3)
    for session in sessions[:2]:
        assert session.run(*PUT, a=np.ones(3, "f"), b=np.ones(2, "f")).status == 200
    waiting = [threads.submit(session.run, REDUCE) for session in sessions[:2]]
    assert sessions[2].delete().status == 200
    for future in waiting:
        answer = future.result()
        assert answer.status == 424, answer.header
        assert answer.header["type"] == "PeerLostError"
        assert answer.header["detail"]["rank"] == 2
        assert "of 3: rank 2 has ended: its session has ended: start the workers again" in answer.error
    again = sessions[0].run(REDUCE)
    assert (again.status, again.header["detail"]["rank"]) == (424, 2)
    alive = sessions[0].run({"do": "fetch", "id": 2, "as": "a"})  # the session itself goes on
    assert alive.tensors["a"].tolist() == [1, 1, 1]
    for session in sessions[:2]:
        session.delete()


WIDTH = 1200
LAYERS = symbol(
    var("x"),
    var("w1"),
    var("w2"),
    ("FullyConnected", "fc1", {"num_hidden": str(WIDTH), "no_bias": "True"}, [0, 1]),
    ("FullyConnected", "fc2", {"num_hidden": str(WIDTH), "no_bias": "True"}, [3, 2]),
)
BIND = (
    {"do": "zeros", "ids": [10], "shape": [2, WIDTH], "dtype": "float32"},
    {"do": "zeros", "ids": [11, 12, 13, 14], "shape": [WIDTH, WIDTH], "dtype": "float32"},
    {
        "do": "bind",
        "id": 15,
        "graph": LAYERS,
        "args": {"x": 10, "w1": 11, "w2": 12},
        "grads": {"w1": 13, "w2": 14},
        "outputs": [16],
    },
    {"do": "forward", "executor": 15, "is_train": True},
)
BACKWARD = {"do": "backward", "executor": 15, "head_grads": [16]}
SUM = {"do": "all_reduce", "group": 1, "arrays": [13, 14], "outputs": [17, 18]}
"""Of 11 MB, so that it begins before `backward` has ended."""


def test_a_sum_in_backward_ends_with_another_rank(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = group(servers, threads, 2)
    waiting = threads.submit(sessions[0].run, *BIND, BACKWARD, SUM)
    assert sessions[1].delete().status == 200
    answer = waiting.result()
    assert (answer.status, answer.header["detail"]["rank"]) == (424, 1), answer.header
    assert answer.header["detail"]["command"] == len(BIND) + 1  # the all_reduce
    again = sessions[0].run(BACKWARD, {"do": "fetch", "id": 10, "as": "a"})  # the session goes on
    assert again.status == 200, again.header
    sessions[0].delete()


def test_a_backward_that_fails_ends_the_sum_in_it_on_all(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = group(servers, threads, 2)
    waiting = threads.submit(sessions[1].run, *BIND, BACKWARD, SUM)
    failed = sessions[0].run(*BIND, {**BACKWARD, "head_grads": []}, SUM)
    assert (failed.status, failed.header["detail"]["command"]) == (400, len(BIND)), failed.header
    answer = waiting.result()
    assert (answer.status, answer.header["detail"]["rank"]) == (424, 0), answer.header
    assert "rank 0 has ended: its exchange was stopped: head gradient of 'fc2_output' is missing" in answer.error
    for session in sessions:
        session.delete()


def test_a_waiting_rank_can_be_cancelled(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = group(servers, threads, 2)
    assert sessions[0].run(*PUT, a=np.ones(3, "f"), b=np.ones(2, "f")).status == 200
    first = threads.submit(sessions[0].run, REDUCE)
    cancelled: list[int] = []
    while 4 not in cancelled:  # not the batch before it, which has just been answered
        cancelled = servers[0].call("DELETE", f"{sessions[0].path}/commands").header["cancelled"]
    assert first.result().status == 499
    answer = sessions[1].run(*PUT, REDUCE, a=np.ones(3, "f"), b=np.ones(2, "f"))
    assert (answer.status, answer.header["detail"]["rank"]) == (424, 0)
    for session in sessions:
        session.delete()


def test_ranks_with_other_arrays_are_refused(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = group(servers, threads, 2)
    futures = [
        threads.submit(session.run, *PUT, REDUCE, a=np.ones(3 + rank, "f"), b=np.ones(2, "f"))
        for rank, session in enumerate(sessions)
    ]
    answers = [future.result() for future in futures]
    assert {answer.status for answer in answers} <= {400, 424}
    assert any("expected the same arrays on all ranks" in answer.error for answer in answers)
    for session in sessions:
        session.delete()


JOIN = {"do": "join_group", "id": 1, "rank": 0, "size": 2, "secret": SECRET}


@pytest.mark.parametrize(
    ("commands", "status", "message"),
    [
        ([{**JOIN, "rank": 2}], 400, "rank: expected one below the size 2, got 2"),
        ([{**JOIN, "size": 0}], 400, "size"),
        ([{**JOIN, "secret": "short"}], 400, "secret: expected 64 hexadecimal digits"),
        (
            [JOIN, {"do": "connect_group", "id": 1, "addresses": ["127.0.0.1:9"]}],
            400,
            "expected one for each of 2 ranks",
        ),
        (
            [JOIN, {"do": "connect_group", "id": 1, "addresses": ["127.0.0.1:9", "10.1.2.3:9"]}],
            400,
            "expected some in 127.0.0.0/8, which this server's OPBOX_GROUP_HOST names, got '10.1.2.3:9'",
        ),
        ([JOIN, {"do": "connect_group", "id": 1, "addresses": ["", "localhost:9"]}], 400, "expected IP addresses with"),
        ([JOIN, {"do": "all_reduce", "group": 1}], 400, "expected one whose ranks are connected"),
        ([{"do": "all_reduce", "group": 7}], 404, "group 7: expected one joined in this session, got nothing"),
        ([JOIN, {"do": "fetch", "id": 1, "as": "a"}], 404, "array 1: expected one of this session, got a group"),
        (
            [JOIN, {"do": "connect_group", "id": 1, "addresses": ["127.0.0.1:9", "127.0.0.1:9"], "timeout_s": 0.2}],
            504,
            "rank 0 of 2: expected all ranks within 0.2 s, rank 1 did not come",
        ),
    ],
)
def test_bad_input_is_refused(servers: list[Live], commands: list[dict[str, Any]], status: int, message: str) -> None:
    session = servers[0].session()
    answer = session.run(*commands)
    assert answer.status == status, answer.header
    assert message in answer.error
    session.delete()


def test_strangers_are_not_let_in(servers: list[Live], threads: ThreadPoolExecutor) -> None:
    sessions = [servers[rank % len(servers)].session() for rank in range(2)]
    addresses = [joined(session, rank, 2, SECRET if rank == 0 else "00" * 32) for rank, session in enumerate(sessions)]
    host, port = addresses[0].rsplit(":", 1)
    with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as noisy:
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
        answers = on_all(threads, sessions, {"do": "connect_group", "id": 1, "addresses": addresses, "timeout_s": 1.0})
        silent.close()
    assert [answer.status for answer in answers] == [504, 504]
    for session in sessions:
        session.delete()


def test_a_server_offers_no_groups_by_default(tmp_path: Any) -> None:
    server = Live("none", tmp_path)
    answer = server.session().run(JOIN)
    assert (answer.status, "OPBOX_GROUP_HOST=ADDRESS/LENGTH" in answer.error) == (501, True)
    assert server.stop() == 0


def test_ranks_listen_on_the_ports_of_the_setting(tmp_path: Any, threads: ThreadPoolExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Live("none", tmp_path, OPBOX_GROUP_HOST="127.0.0.1/8", OPBOX_GROUP_PORTS=f"{port}-{port}")
    for _ in range(2):  # the port is free again when the ranks are connected, and while they are
        sessions = [server.session() for _ in range(2)]
        addresses = [joined(sessions[0], 0, 2)]
        assert addresses == [f"127.0.0.1:{port}"]
        refused = sessions[1].run({**JOIN, "rank": 1})
        assert (refused.status, f"OPBOX_GROUP_PORTS={port}-{port}, got none" in refused.error) == (429, True)
        # The higher rank connects, so nobody calls it: any address does.
        elsewhere = Membership(GroupAddress.of("127.0.0.1/8"), 1, 2, bytes.fromhex(SECRET))
        addresses.append(elsewhere.address)
        first = threads.submit(sessions[0].run, {"do": "connect_group", "id": 1, "addresses": addresses})
        elsewhere.connect(addresses, 120, lambda: None)
        assert first.result().status == 200
        elsewhere.close()
    assert server.stop() == 0


def test_a_killed_server_ends_the_step_of_the_others(tmp_path_factory: Any, threads: ThreadPoolExecutor) -> None:
    folder = tmp_path_factory.mktemp
    servers = [Live("none", folder("killed"), OPBOX_GROUP_HOST="127.0.0.1/8") for _ in range(3)]
    sessions = group(servers, threads, 3)
    for session in sessions:
        assert session.run(*PUT, a=np.ones(3, "f"), b=np.ones(2, "f")).status == 200
    waiting = [threads.submit(session.run, REDUCE) for session in sessions[:2]]
    os.kill(servers[2].process.pid, signal.SIGKILL)
    for future in waiting:
        answer = future.result()
        assert (answer.status, answer.header["detail"]["rank"]) == (424, 2)
        assert "rank 2 has ended: its connection closed" in answer.error
    assert [server.stop() for server in servers[:2]] == [0, 0]
    servers[2].stop()


def test_code_of_a_users_ends_no_group(tmp_path: Any) -> None:
    server = Live("process", tmp_path, OPBOX_GROUP_HOST="127.0.0.1/8")
    session = server.session("py")
    assert session.run(JOIN).status == 200
    source = "import opbox as mx\n"
    answer = session.run({"do": "define", "op_type": "x", "sha256": "0" * 64, "bundle": {"source": source}})
    assert answer.status >= 400
    assert session.run({"do": "all_reduce", "group": 1}).status == 400  # it is in its group still
    assert server.stop() == 0
