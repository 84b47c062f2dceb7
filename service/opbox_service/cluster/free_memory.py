"""FreeMemory: the devices of all nodes, ordered by free memory."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from .documents import kind_of

__all__ = ["DevicePlace", "FreeMemory"]

_Heap: TypeAlias = "list[tuple[int, str, str]]"


class DevicePlace(NamedTuple):
    """A device of a node, and its free bytes."""

    node: str
    device: str
    free: int


class FreeMemory:
    """Finds devices with enough free memory without looking at all of them.

    A heap for each kind of device ("gpu") or name ("gpu:1") that was looked for has an entry for each change; an entry
    that is out of date is dropped when it comes to the top. A change and a look-up take the logarithm of the number of
    devices.

    Example:
        >>> memory = FreeMemory()
        >>> memory.set("a", "gpu:0", free=5, total=8)
        >>> memory.best("gpu", 4)
        [DevicePlace(node='a', device='gpu:0', free=5)]
    """

    def __init__(self) -> None:
        self._free: dict[tuple[str, str], int] = {}
        self._total: dict[tuple[str, str], int] = {}
        self._by_free: dict[str, _Heap] = {}
        self._by_total: dict[str, _Heap] = {}
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._total)

    def set(self, node: str, device: str, free: int, total: int) -> None:
        """Set a device's free bytes and those that it has at all."""
        key = node, device
        if self._total.get(key) != total:
            self._names.update((device, kind_of(device)))
            self._total[key] = total
            self._push(self._by_total, self._total, key)
        if self._free.get(key) != free:
            self._free[key] = free
            self._push(self._by_free, self._free, key)

    def remove(self, node: str, device: str) -> None:
        """Forget a device."""
        self._free.pop((node, device), None)
        self._total.pop((node, device), None)

    def free(self, node: str, device: str) -> int:
        """Free bytes of a device; 0 of one that is not there."""
        return self._free.get((node, device), 0)

    def largest(self, device: str) -> int:
        """Bytes of the largest device of this kind or name, be they free or not; 0 without one."""
        heap = self._heap(self._by_total, self._total, device)
        while heap and self._total.get(heap[0][1:]) != -heap[0][0]:
            heappop(heap)
        return -heap[0][0] if heap else 0

    def best(self, device: str, nbytes: int, count: int = 1, avoid: Collection[str] = ()) -> list[DevicePlace]:
        """Return up to `count` devices of this kind or name with at least so many free bytes, those with most first.

        Args:
            device: "gpu", or "gpu:1".
            nbytes: that have to be free.
            count: how many to return.
            avoid: names of nodes to pass over.
        """
        heap = self._heap(self._by_free, self._free, device)
        entries: _Heap = []
        places: list[DevicePlace] = []
        while heap and len(places) < count and -heap[0][0] >= nbytes:
            entry = heappop(heap)
            free, node, name = entry
            if self._free.get((node, name)) != -free or (entries and entries[-1] == entry):
                continue
            entries.append(entry)
            if node not in avoid:
                places.append(DevicePlace(node, name, -free))
        for entry in entries:
            heappush(heap, entry)
        return places

    def _heap(self, heaps: dict[str, _Heap], now: dict[tuple[str, str], int], device: str) -> _Heap:
        """The heap of a kind or name, with all devices when it is looked for first."""
        heap = heaps.get(device)
        if heap is None:
            if device not in self._names:
                return []
            heap = heaps[device] = [
                (-nbytes, node, name) for (node, name), nbytes in now.items() if device in (name, kind_of(name))
            ]
            heapify(heap)
        return heap

    @staticmethod
    def _push(heaps: dict[str, _Heap], now: dict[tuple[str, str], int], key: tuple[str, str]) -> None:
        node, device = key
        for name in {device, kind_of(device)}:
            heap = heaps.get(name)
            if heap is not None:
                heappush(heap, (-now[key], node, device))
                if len(heap) > 4 * len(now) + 64:
                    heap[:] = {entry for entry in heap if now.get(entry[1:]) == -entry[0]}
                    heapify(heap)
