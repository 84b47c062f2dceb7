"""What a wish needs of its owner's quotas, how it is stored, and the sentences that refuse it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..owner_terms import LARGER_QUOTA
from .documents import Refused, SessionWish, kind_of
from .quota_pools import Shortage

__all__ = ["WISH_FIELDS", "needs_of", "no_device", "quota_refusal", "row_of", "wish_of"]

WISH_FIELDS = 6
"""Number of a wish's fields in the state."""


def row_of(wish: SessionWish) -> list[Any]:
    """Return a wish as JSON."""
    return [wish.id, wish.owner, wish.device, wish.bytes, wish.after, list(wish.avoid)]


def wish_of(row: list[Any]) -> SessionWish:
    """Return the wish that a row begins with."""
    id, owner, device, nbytes, after, avoid = row[:WISH_FIELDS]
    return SessionWish(id, owner, device, nbytes, after, tuple(avoid))


def needs_of(wish: SessionWish) -> dict[str, float]:
    """Return what a session needs of its owner's quotas; of time and undeclared memory, any."""
    return {"sessions": 1, "memory_bytes": wish.bytes, "worker_seconds": 0}


def quota_refusal(shortage: Shortage) -> Refused:
    """Return the answer to a wish whose owner has all of a quota."""
    reason = (
        f"{shortage.quota}: expected at most {shortage.limit:g} of an owner on all nodes together, got "
        f"{shortage.used:g} in use and more: end a session of yours, or {LARGER_QUOTA}"
    )
    return Refused(429, reason)


def no_device(wish: SessionWish, largest: int, devices: Iterable[str]) -> Refused:
    """Return the answer to a wish that no node which takes sessions could ever have.

    Args:
        wish: refused.
        largest: bytes of the largest device of its kind; 0: there is none.
        devices: names of all nodes' devices.
    """
    if not largest:
        has = ", ".join(sorted({kind_of(device) for device in devices})) or "none"
        reason = (
            f"device: expected one that a node of the cluster has ({has}), got {wish.device!r}, which no node that "
            "takes sessions has: ask for another, or join a node that has it"
        )
    else:
        reason = (
            f"bytes: expected at most {largest}, as the largest {wish.device} of the nodes that take sessions has, got "
            f"{wish.bytes}: ask for less, or join a node with more"
        )
    return Refused(503, reason)
