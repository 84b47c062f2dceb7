"""MXNet's `mx.engine`: how many operators its engine runs as one. Here a batch of commands is one request anyway."""

from __future__ import annotations

import threading

from .absent import module_getattr

__all__ = ["bulk", "set_bulk_size"]

_bulk = threading.local()
DEFAULT_SIZE = 15
"""MXNet's `MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN`."""


def set_bulk_size(size: int) -> int:
    """Note a size, which has no effect: commands are sent when a value is needed. Returns the size before."""
    before: int = getattr(_bulk, "size", DEFAULT_SIZE)
    _bulk.size = size
    return before


class bulk:
    """A size for a `with` statement, which has no effect.

    Example:
        >>> with mx.engine.bulk(10):
        ...     x += 1
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._before: list[int] = []

    def __enter__(self) -> bulk:
        self._before.append(set_bulk_size(self._size))
        return self

    def __exit__(self, *_: object) -> None:
        set_bulk_size(self._before.pop())


__getattr__ = module_getattr(__name__, __all__)
