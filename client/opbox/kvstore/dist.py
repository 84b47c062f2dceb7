"""The store of several workers: gradients are added up over all of them, by their servers among each other.

A push adds up the worker's devices, then `all_reduce` of its session adds up the workers; the optimizer runs in each
worker's session on the same sums, so that all have the same weights, bit for bit. It stays one request a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dist
from ..absent import module_getattr
from ..ndarray import NDArray, zeros
from ..session import Session
from .kvstore import KVStore, _pairs

__all__ = ["DIST_TYPES", "DistKVStore"]

DIST_TYPES = ("dist_sync", "dist_device_sync", "dist_sync_device", "dist")
"""Names of the store; all compute the same."""


class DistKVStore(KVStore):
    """See the module; made by `create("dist_sync")` in a worker that `mx.dist` has started.

    All workers make the same calls in the same order.

    Example:
        >>> kv = mx.kv.create("dist_sync")
        >>> kv.rank, kv.num_workers
        (0, 2)
    """

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._group = dist.group()

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self._group.rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._group.size

    def barrier(self) -> None:
        """Wait until all workers have come here.

        Raises:
            PeerLostError: one has ended.
        """
        self._group.barrier()

    _barrier = barrier

    def init(self, key: Any, value: Any) -> None:
        """Store copies of the first worker's values of keys; those of the others have no effect, as in MXNet."""
        super().init(key, value)
        names = [one for one, _ in _pairs("init", key, value)]
        values = [self._values[name] for name in names]
        if self.rank:
            values = [zeros(one.shape, one.context, one.dtype) for one in values]
        self._values.update(zip(names, self._over_workers(values), strict=True))

    def _over_workers(self, sums: list[NDArray]) -> list[NDArray]:
        by_session: dict[Session, list[int]] = {}
        for position, array in enumerate(sums):
            by_session.setdefault(array._session, []).append(position)
        totals = list(sums)
        for session, positions in by_session.items():
            group = self._group.in_session(session)
            arrays = [sums[position] for position in positions]
            outputs = [NDArray(session, session.new_id(), array.shape, np.dtype(array.dtype)) for array in arrays]
            session.record(
                {
                    "do": "all_reduce",
                    "group": group,
                    "arrays": [array._id for array in arrays],
                    "outputs": [output._id for output in outputs],
                }
            )
            for position, output in zip(positions, outputs, strict=True):
                totals[position] = output
        return totals


__getattr__ = module_getattr(__name__, __all__)
