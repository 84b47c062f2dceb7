"""Sums of a group on pretend GPUs by a pretend NCCL: ranks of one process, what it cannot add up, and every bad end."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import nccl
from opbox_protocol.errors import CancelledError, DeadlineError, MXNetError, OutOfMemoryError, PeerLostError
from opbox_service.engine import Engine
from opbox_service.groups import DeviceSums, GroupAddress, Membership
from opbox_service.settings import Settings

SECRET = "5e" * 32
TYPES = [*sorted(set(nccl.TYPES) - {"bfloat16"}), "bfloat16"]


@pytest.fixture
def library(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The pretend NCCL, with nothing wrong yet; afterwards no communicator of it is left."""
    monkeypatch.setenv("PRETEND_NCCL_FOLDER", str(tmp_path))
    module: Any = importlib.import_module("pretend_gpu.libraries.nccl_library")
    module.faults.reset()
    nccl._library.cache_clear()
    assert not module.live
    yield module
    module.faults.reset()
    nccl._library.cache_clear()
    assert not module.live


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Workers:
    """Sessions of one engine in a group, each on a device."""

    def __init__(self, engine: Engine, threads: ThreadPoolExecutor, devices: Sequence[str]) -> None:
        self.engine, self.threads = engine, threads
        self.ids = [engine.call("POST", "/v1/sessions", {"device": device})[0]["id"] for device in devices]
        addresses = []
        for rank, id in enumerate(self.ids):
            join = {"do": "join_group", "id": 1, "rank": rank, "size": len(devices), "secret": SECRET}
            addresses.append(self.run(id, [join])[0]["results"][0]["address"])
        connect = {"do": "connect_group", "id": 1, "addresses": addresses}
        for future in [threads.submit(self.run, id, [connect]) for id in self.ids]:
            future.result()

    def run(self, id: str, commands: list[dict[str, Any]], tensors: dict[str, Any] | None = None) -> Any:
        return self.engine.call("POST", f"/v1/sessions/{id}/commands", {"commands": commands}, tensors or {})

    def begin(self, rank: int, arrays: Sequence[np.ndarray]) -> Future[list[np.ndarray]]:
        """Let a rank put arrays, add them up with the others, and fetch the sums."""
        return self.threads.submit(self._add_up, self.ids[rank], arrays)

    def _add_up(self, id: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs, outputs = ([first + k for k in range(len(arrays))] for first in (10, 110))
        puts = [{"do": "put", "id": id, "tensor": f"x{id}"} for id in inputs]
        fetches = [{"do": "fetch", "id": id, "as": f"y{id}"} for id in outputs]
        total = {"do": "all_reduce", "group": 1, "arrays": inputs, "outputs": outputs}
        named = {f"x{id}": array for id, array in zip(inputs, arrays, strict=True)}
        free = {"do": "free", "ids": [*inputs, *outputs]}
        fetched = self.run(id, [*puts, total, *fetches, free], named)[1]
        return [fetched[f"y{id}"] for id in outputs]

    def sums(self, values: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
        """What each rank gets, of what each brings."""
        return [future.result() for future in [self.begin(rank, arrays) for rank, arrays in enumerate(values)]]

    def leave(self) -> None:
        for id in self.ids:
            self.engine.call("DELETE", f"/v1/sessions/{id}")


Start = Callable[..., Workers]


@pytest.fixture
def start(library: Any, threads: ThreadPoolExecutor) -> Iterator[Start]:
    """Starts workers on devices, with settings of their engine; their sessions end with the test."""
    engines: list[Engine] = []

    def begin(*devices: str, **settings: Any) -> Workers:
        engine = Engine(Settings(max_device_bytes=1 << 30, group_host="127.0.0.1/8", **settings))
        engines.append(engine)
        return Workers(engine, threads, devices)

    yield begin
    for engine in engines:
        engine.close()


def values(rank: int, dtype: Any = "f") -> list[np.ndarray]:
    rng = np.random.RandomState(rank)
    return [(rng.randint(0, 20, shape)).astype(dtype) for shape in ((5, 7), (3,), (0, 2), (40, 30))]


def expect(got: list[list[np.ndarray]], brought: Sequence[Sequence[np.ndarray]]) -> None:
    """Every rank has the sums; they are of small integers, and so exact in any order."""
    for sums in got:
        for number, total in enumerate(sums):
            assert total.dtype == brought[0][number].dtype
            expected = sum(arrays[number].astype("f8") for arrays in brought)
            np.testing.assert_array_equal(total.astype("f8"), expected)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait for an event that shows in no other way; pytest's limit ends it."""
    while not condition():
        time.sleep(0.001)


@pytest.mark.parametrize("dtype", TYPES)
def test_ranks_of_one_process_add_up_on_their_gpus(gpu: Any, library: Any, start: Start, dtype: str) -> None:
    workers = start("gpu:0", "gpu:1")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    brought = [values(rank, kind) for rank in range(2)]
    with gpu.recorded() as calls:
        for _ in range(2):
            expect(workers.sums(brought), brought)
    assert calls["ncclAllReduce"] == 4  # two ranks, twice; three arrays are one launch
    streams = {detail for kind, detail in calls.events if kind == "ncclAllReduce"}
    assert len(streams) == 2
    assert streams <= gpu.state.non_blocking  # the sessions' own
    assert len(library.live) == 2  # the second sum has used those of the first
    workers.leave()
    assert not library.live


def test_no_rank_is_done_while_another_adds_up(library: Any, start: Start) -> None:
    """It might end its session, and so the communicator from which the other one still reads."""
    workers = start("gpu:0", "gpu:1")
    library.faults.delays[1] = threading.Event()
    brought = [values(rank) for rank in range(2)]
    first, second = (workers.begin(rank, arrays) for rank, arrays in enumerate(brought))
    wait_for(lambda: [one for one in list(library.live.values()) if one.rank == 0 and one.done])
    leaving = workers.threads.submit(
        lambda: (first.result(), workers.engine.call("DELETE", f"/v1/sessions/{workers.ids[0]}"))
    )
    assert not leaving.done()
    library.faults.delays[1].set()
    expect([first.result(), second.result()], brought)
    leaving.result()


def test_a_rank_alone_has_a_communicator(library: Any, start: Start) -> None:
    workers = start("gpu:0")
    brought = [values(0)]
    expect(workers.sums(brought), brought)
    assert len(library.live) == 1


def test_a_session_on_two_gpus_has_a_communicator_on_one(library: Any, start: Start) -> None:
    """Sums of its other GPU's arrays go through memory, on all ranks."""
    workers = start("gpu:0", "gpu:1")
    brought = [values(rank) for rank in range(2)]
    expect(workers.sums(brought), brought)
    member, backend = DeviceSums(Any), backend_for("gpu:1")
    member._communicator = next(one for one in library.live.values() if one.device == 0)  # type: ignore[assignment]
    assert not member.can(backend, brought[0])
    assert member.can(backend_for("gpu:0"), brought[0])


# -- what goes through memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [("gpu:0", "gpu:0"), ("gpu:0", "gpu:1", "gpu:1"), ("gpu:0", "cpu")])
def test_ranks_without_gpus_of_their_own_add_up_in_memory(library: Any, start: Start, devices: tuple[str, ...]) -> None:
    workers = start(*devices)
    brought = [values(rank) for rank in range(len(devices))]
    for _ in range(2):
        expect(workers.sums(brought), brought)
        assert not library.live


def test_the_setting_forbids_nccl(library: Any, start: Start) -> None:
    workers = start("gpu:0", "gpu:1", group_nccl=False)
    brought = [values(rank) for rank in range(2)]
    expect(workers.sums(brought), brought)
    assert not library.live


@pytest.mark.usefixtures("no_libraries")
def test_no_library(library: Any, start: Start) -> None:
    workers = start("gpu:0", "gpu:1")
    brought = [values(rank) for rank in range(2)]
    expect(workers.sums(brought), brought)
    assert not library.live


def test_an_old_library(library: Any, start: Start) -> None:
    library.faults.version = 21304
    workers = start("gpu:0", "gpu:1")
    brought = [values(rank) for rank in range(2)]
    expect(workers.sums(brought), brought)
    assert not library.live


@pytest.mark.parametrize("other", ["none", "another version"])
def test_a_rank_with_another_library(library: Any, start: Start, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    offered = nccl.offer_on

    def offer_on(backend: Any) -> nccl.NcclOffer | None:
        own = offered(backend)
        if backend.device.id == 0 or own is None:
            return own
        return None if other == "none" else replace(own, version=own.version + 1)

    monkeypatch.setattr(nccl, "offer_on", offer_on)
    workers = start("gpu:0", "gpu:1")
    brought = [values(rank) for rank in range(2)]
    for _ in range(2):
        expect(workers.sums(brought), brought)
        assert not library.live


def test_a_type_that_nccl_lacks(library: Any, start: Start) -> None:
    workers = start("gpu:0", "gpu:1")
    for kind, communicators in (("f", 2), ("int16", 2), ("f", 2)):
        brought = [[*values(rank), values(rank, kind)[0]] for rank in range(2)]
        expect(workers.sums(brought), brought)
        assert len(library.live) == communicators


def test_a_barrier_looks_for_no_library(library: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "offer_on", lambda backend: pytest.fail("asked for NCCL"))
    assert start("gpu:0", "gpu:1").sums([[], []]) == [[], []]


def test_arrays_that_do_not_come_from_the_gpu(library: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have agreed to add them up, and must not take what this rank sends next for them."""

    def refuse(backend: Any, array: Any) -> Any:
        raise MemoryError("no memory for the arrays")

    backend = backend_for("gpu:0").for_session()
    backend.close()
    monkeypatch.setattr(type(backend), "get", refuse)
    workers = start("gpu:0", "cpu")
    first, second = (workers.begin(rank, values(rank)) for rank in range(2))
    with pytest.raises(PeerLostError, match="rank 0 has ended: its arrays do not come: no memory for the arrays"):
        second.result()
    with pytest.raises(OutOfMemoryError):
        first.result()


# -- bad ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["in the sum", "at its beginning"])
def test_a_cancelled_rank_ends_the_sum_of_the_other(library: Any, start: Start, when: str) -> None:
    """Nobody gets what rank 1 sends, or hears that it is there: both would wait for ever."""
    workers = start("gpu:0", "gpu:1")
    (library.faults.mute if when == "in the sum" else library.faults.unborn).add(1)
    brought = [values(rank) for rank in range(2)]
    first, second = (workers.begin(rank, arrays) for rank, arrays in enumerate(brought))
    if when == "in the sum":
        wait_for(lambda: [one.threads for one in list(library.live.values())].count([]) == 0 and len(library.live) == 2)
    else:
        wait_for(lambda: len(library.live) == 2)
    workers.engine.call("DELETE", f"/v1/sessions/{workers.ids[0]}/commands")
    with pytest.raises(CancelledError):
        first.result()
    with pytest.raises(PeerLostError, match="rank 1 of 2: rank 0 has ended: its exchange was stopped: ") as lost:
        second.result()
    assert lost.value.detail["rank"] == 0
    assert not library.live  # though the sessions go on
    again = workers.begin(0, brought[0])
    with pytest.raises(PeerLostError, match="this rank, 0, has ended"):
        again.result()


def test_the_end_of_a_session_in_a_sum_is_told_to_the_other(library: Any, start: Start) -> None:
    workers = start("gpu:0", "gpu:1")
    library.faults.mute.add(1)
    brought = [values(rank) for rank in range(2)]
    first, second = (workers.begin(rank, arrays) for rank, arrays in enumerate(brought))
    wait_for(lambda: [bool(one.threads) for one in list(library.live.values())] == [True, True])
    workers.engine.call("DELETE", f"/v1/sessions/{workers.ids[1]}")
    with pytest.raises(PeerLostError, match="rank 0 of 2: rank 1 has ended"):
        first.result()
    with pytest.raises(MXNetError):
        second.result()
    assert not library.live


def test_an_error_of_nccls_names_the_rank(library: Any, start: Start) -> None:
    workers = start("gpu:0", "gpu:1")
    library.faults.statuses[1] = 2
    first, second = (workers.begin(rank, values(rank)) for rank in range(2))
    with pytest.raises(MXNetError, match=r"NCCL: the communicator answered 2 \(system error\): NCCL_DEBUG=WARN"):
        second.result()
    with pytest.raises(PeerLostError, match="rank 1 has ended: its sum on the GPU failed: NCCL: the communicator"):
        first.result()
    assert not library.live


@pytest.mark.parametrize("function", ["ncclGetUniqueId", "ncclCommInitRankConfig", "ncclAllReduce"])
def test_a_call_that_nccl_refuses(library: Any, start: Start, function: str) -> None:
    workers = start("gpu:0", "gpu:1")
    library.faults.refused[function] = 2
    futures = [workers.begin(rank, values(rank)) for rank in range(2)]
    errors = [future.exception() for future in futures]
    assert any(f"NCCL: {function} answered 2" in str(error) for error in errors)
    assert all(isinstance(error, MXNetError) for error in errors)
    assert not library.live


@pytest.fixture
def members(threads: ThreadPoolExecutor) -> Iterator[list[Membership]]:
    address = GroupAddress.of("127.0.0.1/8")
    ranks = [Membership(address, rank, 2, bytes(32)) for rank in range(2)]
    list(threads.map(lambda member: member.connect([one.address for one in ranks], 120, lambda: None), ranks))
    yield ranks
    for member in ranks:
        member.close()


def test_a_deadline_ends_a_sum_for_which_a_rank_does_not_come(
    library: Any, members: list[Membership], threads: ThreadPoolExecutor
) -> None:
    library.faults.unborn.add(1)
    late = threading.Event()

    def check() -> None:
        if late.is_set():
            raise DeadlineError("expected an answer within 1 s")

    def add_up(member: Membership) -> bool:
        backend = backend_for(f"gpu:{member.rank}").for_session()
        with backend.scope():
            array, output = (backend.xp.zeros(4, "f") for _ in range(2))
        try:
            return DeviceSums(member).sum(backend, [array], [output], check if member.rank == 0 else lambda: None)
        finally:
            backend.close()

    first, second = (threads.submit(add_up, member) for member in members)
    wait_for(lambda: len(library.live) == 2)
    late.set()
    with pytest.raises(DeadlineError):
        first.result()
    with pytest.raises(PeerLostError, match="rank 0 has ended: its exchange was stopped: expected an answer within"):
        second.result()


def test_a_rank_that_has_left_runs_its_endings_at_once(members: list[Membership]) -> None:
    calls: list[int] = []
    members[0].when_left(lambda: calls.append(1))
    members[0].close()
    assert calls == [1]
    members[0].when_left(lambda: calls.append(2))
    assert calls == [1, 2]
    with pytest.raises(PeerLostError, match="this rank, 0, has ended: its session has ended"):
        members[0].look()
    with pytest.raises(PeerLostError, match="rank 0 has ended: its session has ended"):
        members[1].look(60)
