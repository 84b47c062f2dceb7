"""Sessions on a GPU have its memory, and no more than it has: whatever the machine has, and however many processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opbox_ops.backend.host_memory import machine_memory
from opbox_protocol.errors import QuotaError
from opbox_service.carriers import OwnerQuota
from opbox_service.engine import Engine
from opbox_service.memory_shares import CONTEXT_BYTES
from opbox_service.settings import Settings
from tests.contract.live import Live

MIB = 1 << 20


def zeros(id: int, mib: int) -> dict[str, Any]:
    return {"do": "zeros", "ids": [id], "shape": [mib, MIB], "dtype": "int8"}


def test_a_gpu_s_memory_is_its_sessions_limit(gpu: Any) -> None:
    engine = Engine(Settings(max_device_bytes=0, max_session_bytes=1 << 50))
    try:
        assert engine.ledger.whole("cpu") == machine_memory() * 3 // 4
        assert engine.ledger.whole("gpu:0") == gpu.BYTES - min(2 * CONTEXT_BYTES, gpu.BYTES // 4)
        session = engine.sessions.create("ann", device="gpu")
        session.budget.reserve(engine.ledger.whole("gpu:0") - MIB)
        other = engine.sessions.create("bob", device="gpu:0")  # the same device by its other name
        assert session.device == other.device == "gpu:0"
        with pytest.raises(QuotaError, match="memory of all sessions"):
            other.budget.reserve(2 * MIB)
        (row,) = [row for row in engine.devices() if row["device"] == "gpu:0"]
        assert row["limit_bytes"] == engine.ledger.whole("gpu:0")
        session.budget.settle()
        # What sessions in other processes have of it is theirs.
        engine.ledger.bound("gpu:0", 0)
        quota = OwnerQuota(9, 1 << 50, beside={"gpu:0": gpu.BYTES // 2})
        engine._leave(quota.beside)
        with pytest.raises(QuotaError, match="memory of all sessions"):
            other.budget.reserve(gpu.BYTES // 2)
        engine._leave({})
        other.budget.reserve(gpu.BYTES // 2)
        other.budget.settle()
    finally:
        engine.close()


def test_more_than_a_gpu_has_cannot_be_asked_for(gpu: Any) -> None:
    for most, whole in ((1 << 50, gpu.BYTES), (gpu.BYTES // 4, gpu.BYTES // 4)):
        engine = Engine(Settings(max_device_bytes=most))
        assert engine.ledger.whole("gpu:0") == whole
        engine.close()


def used_and_limits(server: Live) -> tuple[list[int], list[int]]:
    rows = [row for row in server.json("GET", "/v1/devices").header["devices"] if row["device"] == "gpu:0"]
    return [row["used_bytes"] for row in rows], [row["limit_bytes"] for row in rows]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """Servers whose processes see a GPU of 128 MiB, one each; a real one would be the same for all."""
    servers: list[Live] = []

    def begin(workers: str, **further: str) -> Live:
        root = Path(__file__).parents[2]  # where the pretend device is, and its kernels
        reads = json.dumps([str(root), str((root / ".pretend-gpu").resolve())])
        settings = {"OPBOX_CODE_USER": "0", "OPBOX_CODE_READS": reads, "PRETEND_GPU_BYTES": str(128 * MIB), **further}
        servers.append(Live("process", tmp_path, OPBOX_WORKERS=workers, **settings))
        return servers[-1]

    yield begin
    for server in servers:
        assert server.stop() == 0


def test_workers_have_no_more_than_a_gpu_has_together(small: Callable[..., Live]) -> None:
    server = small("2")
    sessions = [server.session("ann", device="gpu") for _ in range(2)]  # one in each worker
    assert sessions[0].run(zeros(1, 40)).status == 200
    refused = sessions[0].run(zeros(2, 20))
    assert (refused.status, "memory of all" in refused.error) == (429, True), refused.header
    assert sessions[1].run(zeros(1, 40)).status == 200
    assert used_and_limits(server) == ([40 * MIB] * 2, [48 * MIB] * 2), "a quarter of 128 MiB is for contexts"


def test_owners_workers_have_no_more_than_a_gpu_has_together(small: Callable[..., Live]) -> None:
    server = small("auto")
    for owner in ("ann", "bob"):
        assert server.session(owner, device="gpu").run(zeros(1, 1)).status == 200
    _, limits = used_and_limits(server)
    assert len(limits) == 2
    assert min(limits) > 16 * MIB
    assert sum(limits) <= 72 * MIB, "a quarter is the shared worker's"


def test_a_process_for_code_has_what_sessions_elsewhere_leave(small: Callable[..., Live]) -> None:
    server = small("1", OPBOX_MAX_DEVICE_BYTES=str(120 * MIB))  # the size of the pretend device does not reach it
    assert server.session("ann", device="gpu").run(zeros(1, 70)).status == 200
    session = server.session("py", device="gpu")
    until = time.monotonic() + 30
    while (refused := session.run(zeros(1, 60))).status != 429:  # a second may pass before it is known
        assert refused.status == 200
        assert session.run({"do": "free", "ids": [1]}).status == 200
        assert time.monotonic() < until
    assert "memory of all" in refused.error, refused.header
    assert session.run(zeros(1, 40)).status == 200
