"""The file of a node's shares of owners' quotas, which its server reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..accounting.share_file import QuotaShare, SharesOfOwners, replace_file
from .documents import OwnerQuotas, Shares

__all__ = ["NodeShares"]


class NodeShares:
    """All shares of a node; an owner with a quota has nothing until the controller says how much.

    Args:
        path: of the file.
        quotas: of owners, over all nodes.

    Example:
        >>> shares = NodeShares(Path("/tmp/shares.json"), {"ann": OwnerQuotas(limits={"sessions": 4})})
        >>> shares.update({"ann": {"sessions": 1}}); shares.of("ann").sessions
        1
    """

    def __init__(self, path: Path, quotas: Mapping[str, OwnerQuotas]) -> None:
        self._path = path
        self._shares: dict[str, Mapping[str, float]] = {}
        self.replace(quotas)

    def replace(self, quotas: Mapping[str, OwnerQuotas]) -> None:
        """Take new quotas."""
        self._quotas = quotas
        self._write()

    def update(self, shares: Shares) -> None:
        """Take new shares of some owners; once this returns, the server goes by them."""
        self._shares.update(shares)
        self._write()

    def of(self, owner: str) -> QuotaShare:
        """Return an owner's share."""
        limits = self._quotas[owner].limits if owner in self._quotas else {}
        share = {**dict.fromkeys(limits, 0.0), **self._shares.get(owner, {})}
        whole = {quota: int(share[quota]) for quota in ("sessions", "memory_bytes") if quota in share}
        return QuotaShare(**whole, worker_seconds=share.get("worker_seconds"))

    def _write(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        owners = {owner: self.of(owner) for owner in sorted({*self._quotas, *self._shares})}
        replace_file(self._path, SharesOfOwners(owners=owners))
