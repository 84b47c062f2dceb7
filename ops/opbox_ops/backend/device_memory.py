"""The memory of this process's GPUs: one pool, and errors that tell what holds the memory that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opbox_protocol.errors import LimitError

__all__ = ["DeviceMemory"]


class DeviceMemory:
    """CuPy's memory pool, as the allocator of all arrays.

    Blocks that are free stay with the process, for the next array of their size that the same stream uses, until
    `give_back`. So an array needs to wait for nobody who had its memory before.

    Args:
        cupy: the module.
        give_way: has others of this process return memory of the current device that they can do without; False where
            they have none.
    """

    def __init__(self, cupy: Any, give_way: Callable[[], bool] = lambda: False) -> None:
        self._cuda = cupy.cuda
        self._give_way = give_way
        self._pool = cupy.cuda.MemoryPool()
        cupy.cuda.set_allocator(self.malloc)

    def malloc(self, nbytes: int) -> Any:
        """A block on the current device.

        Raises:
            LimitError: there is not enough memory, also when what this process keeps to spare is given back.
        """
        try:
            return self._pool.malloc(nbytes)
        except self._cuda.memory.OutOfMemoryError:
            if self._give_way():
                return self.malloc(nbytes)
            raise LimitError(self._shortage(nbytes)) from None

    def give_back(self, stream: Any = None) -> None:
        """Return free memory of one stream, or of all, to the device, for other processes."""
        self._pool.free_all_blocks(stream)

    @property
    def used_bytes(self) -> int:
        """Bytes that arrays occupy on the current device."""
        return int(self._pool.used_bytes())

    @property
    def spare_bytes(self) -> int:
        """Bytes of the current device that the memory pool of this process reserves and no array occupies."""
        return int(self._pool.free_bytes())

    def _shortage(self, nbytes: int) -> str:
        free, total = self._cuda.runtime.memGetInfo()
        own = self.used_bytes + self.spare_bytes
        return (
            f"gpu:{self._cuda.runtime.getDevice()} has not enough memory: {nbytes:,} bytes asked for, {free:,} of "
            f"{total:,} free, {self.used_bytes:,} in arrays of this worker, {self.spare_bytes:,} kept by it, "
            f"{max(total - free - own, 0):,} used by other processes: free arrays, or use smaller ones"
        )
