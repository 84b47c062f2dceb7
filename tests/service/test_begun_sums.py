"""Sums that begin during the computation, between ranks in threads: the bits of those behind it, and their end."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import CancelledError, DeadlineError, PeerLostError
from opbox_service.groups import BegunSum, GroupAddress, Membership, all_reduce

SIZE = 3
SHAPES = ((70, 90), (5,), (), (30, 40), (0, 3), (64,), (2, 10, 90))
"""Of several buckets of BUCKET_BYTES, with an empty array and a number."""
BUCKET_BYTES = 4096


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("opbox_service.groups.all_reduce"), "BUCKET_BYTES", BUCKET_BYTES)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(SIZE) as pool:
        yield pool


@pytest.fixture
def members(threads: ThreadPoolExecutor) -> Iterator[list[Membership]]:
    address = GroupAddress.of("127.0.0.1/8")
    ranks = [Membership(address, rank, SIZE, bytes(32)) for rank in range(SIZE)]
    list(threads.map(lambda member: member.connect([one.address for one in ranks], 120, nothing), ranks))
    yield ranks
    for member in ranks:
        member.close()


def values(rank: int) -> list[Any]:
    rng = np.random.RandomState(rank)
    arrays = [np.asarray(rng.randn(*shape), "f") for shape in SHAPES]
    arrays[1] = arrays[1].astype("e")
    arrays[5] = (arrays[5] * 100).astype("i8")
    return arrays


def likes(arrays: list[Any]) -> list[Any]:
    return [np.full_like(array, 7) for array in arrays]


def test_ranks_that_begin_early_and_late_get_the_bits_of_a_sum_behind(
    members: list[Membership], threads: ThreadPoolExecutor
) -> None:
    def behind(member: Membership) -> list[Any]:
        arrays = values(member.rank)
        outputs = likes(arrays)
        all_reduce(member, arrays, outputs, nothing)
        return outputs

    def begun(member: Membership) -> list[Any]:
        if member.rank == 1:
            return behind(member)
        final = values(member.rank)
        arrays = likes(final)
        # The last array is final first, as a network's last layer is; with rank 2 in another order.
        order = list(range(len(arrays))) if member.rank else list(reversed(range(len(arrays))))
        begun = BegunSum(member, arrays, likes(arrays), [order.index(number) + 1 for number in order], nothing)
        for calls, number in enumerate(order, 1):
            arrays[number][...] = final[number]
            if calls in begun.stops:
                begun.reached(calls)
        begun.finish(nothing)
        return list(begun.outputs)

    expected, got = (list(threads.map(work, members)) for work in (behind, begun))
    total = values(0)[0] + values(1)[0] + values(2)[0]
    for rank in range(SIZE):
        for number in range(len(SHAPES)):
            assert got[rank][number].tobytes() == expected[0][number].tobytes()
            assert got[rank][number].tobytes() == expected[rank][number].tobytes()
        assert got[rank][0].tobytes() == total.tobytes()


def test_a_computation_that_fails_ends_the_sum_on_all(members: list[Membership], threads: ThreadPoolExecutor) -> None:
    arrays = values(0)
    begun = BegunSum(members[0], arrays, likes(arrays), [9] * len(arrays), nothing)
    others = [threads.submit(all_reduce, member, values(1), likes(values(1)), nothing) for member in members[1:]]
    begun.abandon(ValueError("fc1: the operator failed"))
    for rank, future in enumerate(others, 1):
        with pytest.raises(PeerLostError, match=f"rank {rank} of 3: rank 0 has ended: its exchange was stopped: fc1: "):
            future.result()
    with pytest.raises(PeerLostError, match="this rank, 0, has ended"):
        all_reduce(members[0], arrays, likes(arrays), nothing)


@pytest.mark.parametrize("error", [CancelledError("cancelled"), DeadlineError("deadline_s")])
def test_a_stopped_call_ends_the_sum(
    members: list[Membership], threads: ThreadPoolExecutor, error: CancelledError | DeadlineError
) -> None:
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise error

    arrays = values(0)
    begun = BegunSum(members[0], arrays, likes(arrays), [1] * len(arrays), check)
    begun.reached(1)
    finishing = threads.submit(begun.finish, check)
    stopped.set()  # while it waits for the others, which have not come
    with pytest.raises(type(error)):
        finishing.result()
    others = [threads.submit(all_reduce, member, arrays, likes(arrays), nothing) for member in members[1:]]
    for future in others:
        with pytest.raises(PeerLostError, match=f"rank 0 has ended: its exchange was stopped: {error.message}"):
            future.result()


def test_the_end_of_another_rank_is_told_by_its_number(members: list[Membership], threads: ThreadPoolExecutor) -> None:
    arrays = values(0)
    begun = [BegunSum(member, arrays, likes(arrays), [1] * len(arrays), nothing) for member in members[:2]]
    members[2].close()
    for one in begun:
        one.reached(1)
        with pytest.raises(PeerLostError, match="rank 2 has ended: its session has ended"):
            one.finish(nothing)
