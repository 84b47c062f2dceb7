"""Sums of sessions of several processes on pretend GPUs, by a pretend NCCL, and a process that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import Live, Session
from tests.contract.test_groups import FETCH, PUT, REDUCE, group_of, on_all

RANKS = 3
BY_NCCL, IN_MEMORY = (2, 1, 0), (0, 1, 2)
"""The ranks in the order in which the pretend NCCL adds them up, and in that of the sum in memory."""


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(RANKS) as pool:
        yield pool


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """Start a server on RANKS pretend GPUs."""
    servers: list[Live] = []

    def begin(isolation: str = "none", **settings: str) -> Live:
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        settings |= {"OPBOX_GROUP_HOST": "127.0.0.1/8", "PRETEND_GPU_DEVICES": str(RANKS)}
        servers.append(Live(isolation, folder, PRETEND_NCCL_FOLDER=str(tmp_path), **settings))
        return servers[-1]

    yield begin
    for server in servers:
        server.stop()


def workers(servers: list[Live], threads: ThreadPoolExecutor) -> list[Session]:
    """Sessions in a group, each on a GPU of its own, in turn on the servers."""
    return group_of(
        [servers[rank % len(servers)].session(device=f"gpu:{rank}") for rank in range(RANKS)],
        threads,
    )


def expect(sessions: list[Session], threads: ThreadPoolExecutor, order: tuple[int, ...]) -> None:
    """Each rank gets the sum in this order, bit for bit."""
    values = [np.random.RandomState(rank).randn(4000).astype("f") for rank in range(RANKS)]
    total = values[order[0]].copy()
    for rank in order[1:]:
        total += values[rank]
    for _ in range(2):
        futures = [
            threads.submit(session.run, *PUT, REDUCE, *FETCH, {"do": "free", "ids": [2, 3, 4, 5]}, a=value, b=value)
            for session, value in zip(sessions, values, strict=True)
        ]
        for future in futures:
            answer = future.result()
            assert answer.status == 200, answer.header
            assert answer.tensors["a"].tobytes() == answer.tensors["b"].tobytes() == total.tobytes()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_sessions_of_several_processes(
    serve: Callable[..., Live], threads: ThreadPoolExecutor, tmp_path: Path, isolation: str
) -> None:
    """Of three servers, or of the worker processes of one."""
    servers = [serve() for _ in range(RANKS)] if isolation == "none" else [serve("process", OPBOX_WORKERS=str(RANKS))]
    sessions = workers(servers, threads)
    expect(sessions, threads, BY_NCCL)
    assert list(tmp_path.glob("pretend-nccl-*"))
    for session in sessions:
        assert session.delete().status == 200
    assert not list(tmp_path.glob("pretend-nccl-*"))  # the communicators have ended


@pytest.mark.parametrize(
    ("setting", "logged"),
    [
        ({"OPBOX_GROUP_NCCL": "0"}, ""),
        ({"PRETEND_NCCL_VERSION": "22804"}, "expected one NCCL on all ranks, got 22703 on rank 0 and 22804 on rank 1"),
        ({"PRETEND_NCCL_VERSION": "21304"}, "as there is no NCCL (expected version 21400 or a later one, got 21304)"),
    ],
)
def test_one_server_without_the_others_nccl(
    serve: Callable[..., Live], threads: ThreadPoolExecutor, tmp_path: Path, setting: dict[str, str], logged: str
) -> None:
    servers = [serve(), serve(**setting)]
    expect(workers(servers, threads), threads, IN_MEMORY)
    assert logged in Path(servers[1].log.name).read_text()
    assert not list(tmp_path.glob("pretend-nccl-*"))


def test_a_killed_server_ends_the_sum_of_the_others(
    serve: Callable[..., Live], threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """What rank 2 sends reaches nobody, so the sum lasts until its process is killed."""
    servers = [serve(PRETEND_NCCL_MUTE="2") for _ in range(RANKS)]
    sessions = workers(servers, threads)
    put = on_all(threads, sessions, *PUT, a=np.ones(3, "f"), b=np.ones(2, "f"))
    assert [answer.status for answer in put] == [200] * RANKS
    waiting = [threads.submit(session.run, REDUCE) for session in sessions]
    while not all(list(tmp_path.glob(f"pretend-nccl-*/sum-1-{rank}")) for rank in (0, 1)):
        time.sleep(0.01)
    os.kill(servers[2].process.pid, signal.SIGKILL)
    for future in waiting[:2]:
        answer = future.result()
        assert (answer.status, answer.header["detail"]["rank"]) == (424, 2), answer.header
        assert "rank 2 has ended: its connection closed" in answer.error
    assert isinstance(waiting[2].exception(), Exception)
    alive: Any = sessions[0].run({"do": "fetch", "id": 2, "as": "a"})  # the sessions themselves go on
    assert alive.tensors["a"].tolist() == [1, 1, 1]
