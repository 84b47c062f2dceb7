"""Transfer buffers: reused, bounded, given back."""

from __future__ import annotations

import os

import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.buffers import Pool, map_shared, size_class


@pytest.mark.parametrize("nbytes", [0, 1, 65_536, 65_537, 100_000, 1 << 20, (1 << 26) + 192, (1 << 30) + 1])
def test_size_classes_waste_little(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size <= max(1 << 16, nbytes * 1.26)


def test_the_last_buffer_is_used_again() -> None:
    pool = Pool(shared=False, limit=1 << 24, keep=1 << 24)
    first = pool.lease(100_000)
    segment = first.segment
    first.release()
    first.release()
    again = pool.lease(100_100)
    assert again.segment is segment
    assert len(again.view) == 100_100
    assert pool.lease(100_000).segment is not segment


def test_more_than_the_limit_is_refused() -> None:
    pool = Pool(shared=False, limit=1 << 20, keep=1 << 20)
    lease = pool.lease(900_000)
    with pytest.raises(NotReadyError, match="at most 1048576 bytes"):
        pool.lease(900_000)
    lease.release()
    pool.lease(900_000).release()
    assert pool.lent_bytes == 0


def test_idle_buffers_are_bounded_in_bytes() -> None:
    pool = Pool(shared=True, limit=1 << 30, keep=1 << 20)
    leases = [pool.lease(1 << 19) for _ in range(4)]
    for lease in leases:
        lease.release()
    assert len(pool.sweep()) == 2
    assert pool.sweep() == [], "the others have not long been idle"
    large = pool.lease(1 << 22)
    large.release()
    assert len(pool.sweep()) == 1, "larger than what is kept: not kept"


def test_idle_buffers_are_bounded_in_time() -> None:
    pool = Pool(shared=True, limit=1 << 30, keep=1 << 20, keep_s=-1.0)
    leases = [pool.lease(1 << 19) for _ in range(2)]
    for lease in leases:
        lease.release()
    assert len(pool.sweep()) == 2
    assert pool.sweep() == []


def test_another_process_maps_the_same_memory() -> None:
    pool = Pool(shared=True, limit=1 << 20, keep=1 << 20)
    lease = pool.lease(70_000)
    assert lease.segment.fd is not None
    there = map_shared(os.dup(lease.segment.fd))
    lease.view[:3] = b"abc"
    assert bytes(there[:3]) == b"abc"
    pool.close()
    lease.release()
    assert lease.segment.fd is None
    assert bytes(there[:3]) == b"abc"
