"""The file of a node's shares of owners' quotas, which its server reads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from ..accounting.share_file import QuotaShare, SharesOfOwners, replace_file
from .documents import OwnerQuotas, Shares
from .quotas import UNLIMITED

__all__ = ["NodeShares"]


class NodeShares:
    """All shares of a node; an owner with a quota has nothing until the controller says how much.

    Args:
        path: of the file.
        quotas: of owners, over all nodes.
        usual: of owners who are not among them.

    Example:
        >>> shares = NodeShares(Path("/tmp/shares.json"), {"ann": OwnerQuotas(limits={"sessions": 4})})
        >>> shares.update({"ann": {"sessions": 1}}, {"ann": 1}); shares.of("ann").sessions
        1
    """

    def __init__(self, path: Path, quotas: Mapping[str, OwnerQuotas], usual: OwnerQuotas = UNLIMITED) -> None:
        self._path, self._usual = path, usual
        self._shares: dict[str, Mapping[str, float]] = {}
        self._revisions: dict[str, int] = {}
        self._lock = threading.Lock()
        self.replace(quotas)

    def replace(self, quotas: Mapping[str, OwnerQuotas]) -> None:
        """Take new quotas."""
        with self._lock:
            self._quotas = quotas
            self._write()

    def clear(self) -> None:
        """Forget all shares, as the controller has: the node joins anew."""
        with self._lock:
            self._shares.clear()
            self._write()

    def update(self, shares: Shares, revisions: Mapping[str, int]) -> None:
        """Take new shares of some owners; once this returns, the server goes by them, or by newer ones.

        Args:
            shares: by owner and quota.
            revisions: by owner, the share's number. One that comes late, after a newer one, changes nothing.
        """
        with self._lock:
            for owner, share in shares.items():
                if revisions[owner] > self._revisions.get(owner, 0):
                    self._shares[owner], self._revisions[owner] = share, revisions[owner]
            self._write()

    def of(self, owner: str) -> QuotaShare:
        """Return an owner's share."""
        return self._share(self._quotas.get(owner, self._usual), self._shares.get(owner, {}))

    @staticmethod
    def _share(quotas: OwnerQuotas, shares: Mapping[str, float]) -> QuotaShare:
        share = {**dict.fromkeys(quotas.limits, 0.0), **shares}
        whole = {quota: int(share[quota]) for quota in ("sessions", "memory_bytes") if quota in share}
        return QuotaShare(**whole, worker_seconds=share.get("worker_seconds"))

    def _write(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        owners = {owner: self.of(owner) for owner in sorted({*self._quotas, *self._shares})}
        replace_file(self._path, SharesOfOwners(owners=owners, others=self._share(self._usual, {})))
