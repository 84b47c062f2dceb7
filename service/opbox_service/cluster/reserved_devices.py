"""ReservedDevices: devices that take nothing but the wish that they wait for, as many others have overtaken it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .documents import SessionWish

__all__ = ["ReservedDevices"]

DEVICES_PER_RESERVED = 64
"""One device of so many, at least one and at most MAX_RESERVED, may be reserved for wishes that many overtook."""
MAX_RESERVED = 16


class ReservedDevices:
    """Which device is reserved for which wish.

    Example:
        >>> reserved = ReservedDevices()
        >>> reserved.add(SessionWish("1" * 32, "ann"), "a", "cpu")
        >>> reserved.at("a", "cpu").owner, reserved.of("1" * 32)
        ('ann', ('a', 'cpu'))
    """

    def __init__(self) -> None:
        self._devices: dict[str, tuple[str, str]] = {}
        self._wishes: dict[tuple[str, str], SessionWish] = {}

    def __contains__(self, wish_id: object) -> bool:
        return wish_id in self._devices

    def __len__(self) -> int:
        return len(self._devices)

    def is_full(self, devices: int) -> bool:
        """Whether no more may be reserved of so many devices."""
        return len(self._devices) >= min(max(devices // DEVICES_PER_RESERVED, 1), MAX_RESERVED)

    def add(self, wish: SessionWish, node: str, device: str) -> None:
        """Reserve a device for a wish."""
        self._devices[wish.id] = node, device
        self._wishes[node, device] = wish

    def of(self, wish_id: str) -> tuple[str, str] | None:
        """The node and the device that are reserved for a wish."""
        return self._devices.get(wish_id)

    def at(self, node: str, device: str) -> SessionWish | None:
        """The wish for which a device is reserved."""
        return self._wishes.get((node, device)) if self._wishes else None

    def remove(self, wish_id: str) -> tuple[str, str] | None:
        """Reserve nothing more for a wish; return what was."""
        place = self._devices.pop(wish_id, None)
        if place is not None:
            del self._wishes[place]
        return place

    def remove_node(self, node: str, devices: Sequence[str]) -> list[SessionWish]:
        """Reserve nothing more on a node; return the wishes for which something was."""
        wishes = [wish for device in devices if (wish := self.at(node, device)) is not None]
        for wish in wishes:
            self.remove(wish.id)
        return wishes

    def state(self) -> list[list[str]]:
        """All of it, as JSON."""
        return [[id, *place] for id, place in self._devices.items()]

    def restore(self, rows: Sequence[Sequence[Any]], wishes: Mapping[str, SessionWish]) -> None:
        """Take a state; the wishes by id."""
        for id, node, device in rows:
            self.add(wishes[id], node, device)
