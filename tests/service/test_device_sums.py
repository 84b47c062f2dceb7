"""Sums of a group by NCCL on the GPUs that are there: a rank alone, two on one GPU, and on two; none on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import nccl
from opbox_protocol.errors import UnsupportedError
from opbox_service.engine import Engine
from opbox_service.groups import DeviceSums, GroupAddress, Membership
from opbox_service.settings import Settings
from tests.conftest import missing

SHAPES = ((70, 90), (5,), (), (0, 3), (1 << 20,))


def backends(*names: str) -> list[Any]:
    """Sessions' queues on these devices; skips where one is missing, or NCCL is."""
    reason = missing("gpu")
    if reason is not None:
        pytest.skip(reason)
    try:
        queues = [backend_for(name).for_session() for name in names]
    except UnsupportedError:
        pytest.skip("needs a second GPU")
    if nccl.offer_on(queues[0]) is None:
        for queue in queues:
            queue.close()
        pytest.skip("needs the library of nvidia-nccl")
    return queues


def added_up(queues: Sequence[Any], brought: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray] | None]:
    """Each rank's sums, twice by the same communicator; None where NCCL cannot. Its group and queue have ended then."""
    size = len(queues)
    members = [Membership(GroupAddress.of("127.0.0.1/8"), rank, size, bytes(32)) for rank in range(size)]

    def add_up(member: Membership) -> list[np.ndarray] | None:
        backend, sums = queues[member.rank], DeviceSums(member)
        member.connect([one.address for one in members], 120, lambda: None)
        arrays = [backend.put(array) for array in brought[member.rank]]
        with backend.scope():
            outputs = [backend.xp.full_like(array, 7) for array in arrays]
        for _ in range(2):
            if not sums.can(backend, arrays) or not sums.sum(backend, arrays, outputs, lambda: None):
                return None
        return [backend.get(output) for output in outputs]

    with ThreadPoolExecutor(size) as threads:
        results = list(threads.map(add_up, members))
    for member, backend in zip(members, queues, strict=True):
        member.close()
        backend.close()
    return results


def values(rank: int, dtype: Any) -> list[np.ndarray]:
    rng = np.random.RandomState(rank)
    return [np.asarray(rng.randint(0, 20, shape)).astype(dtype) for shape in SHAPES]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", sorted(nccl.TYPES))
@pytest.mark.parametrize("devices", [("gpu:0",), ("gpu:0", "gpu:1")], ids=["alone", "two"])
def test_sums(devices: tuple[str, ...], dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    queues = backends(*devices)
    brought = [values(rank, kind) for rank in range(len(queues))]
    for sums in added_up(queues, brought):
        assert sums is not None
        for number, total in enumerate(sums):
            expected = sum(arrays[number].astype("f8") for arrays in brought)
            np.testing.assert_array_equal(total.astype("f8"), expected)


@pytest.mark.gpu
def test_all_ranks_have_the_same_bits() -> None:
    queues = backends("gpu:0", "gpu:1")
    brought = [[np.random.RandomState(rank).randn(100_000).astype("f")] for rank in range(2)]
    first, second = added_up(queues, brought)
    assert first is not None
    assert second is not None
    assert first[0].tobytes() == second[0].tobytes()
    np.testing.assert_array_equal(first[0], brought[0][0] + brought[1][0])


@pytest.mark.gpu
def test_two_ranks_on_one_gpu_cannot() -> None:
    queues = backends("gpu:0", "gpu:0")
    assert added_up(queues, [values(rank, np.float32) for rank in range(2)]) == [None, None]


def test_ranks_on_the_cpu_look_for_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "load_library", lambda name: pytest.fail(f"looked for {name}"))
    monkeypatch.setattr(nccl, "offer_on", lambda backend: pytest.fail("asked for NCCL"))
    engine = Engine(Settings(group_host="127.0.0.1/8"))
    path = f"/v1/sessions/{engine.call('POST', '/v1/sessions', {'device': 'cpu'})[0]['id']}/commands"
    join = {"do": "join_group", "id": 1, "rank": 0, "size": 1, "secret": "5e" * 32}
    address = engine.call("POST", path, {"commands": [join]})[0]["results"][0]["address"]
    commands = [
        {"do": "connect_group", "id": 1, "addresses": [address]},
        {"do": "put", "id": 2, "tensor": "x"},
        {"do": "all_reduce", "group": 1, "arrays": [2], "outputs": [3]},
        {"do": "fetch", "id": 3, "as": "y"},
    ]
    fetched = engine.call("POST", path, {"commands": commands}, {"x": np.arange(3, dtype="f")})[1]
    assert fetched["y"].tolist() == [0, 1, 2]
    engine.close()
