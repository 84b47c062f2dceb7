"""QuotaPool: one owner's shares of one quota on all nodes, and their sums."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Grant", "QuotaPool", "Shortage"]


@dataclass(slots=True)
class Grant:
    """One owner's share of one quota on one node.

    Attributes:
        share: as it was ordered last.
        ceiling: the greatest that may be in force on the node, until it reports that `share` is.
        used: as reported, and what is placed there and not reported yet.
        number: of the orders with `share`.
    """

    share: float = 0
    ceiling: float = 0
    used: float = 0
    number: int = 0

    @property
    def outstanding(self) -> float:
        """What the owner may use there before the node hears anything new."""
        return max(self.ceiling, self.used)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A share that cannot be raised now.

    Attributes:
        quota, limit: which, and the owner's whole.
        used: of it, on all nodes.
        final: whether it is used up, and not only shared out.
    """

    quota: str
    limit: float
    used: float
    final: bool


@dataclass(slots=True)
class QuotaPool:
    """One owner's shares of one quota on all nodes.

    Attributes:
        grants: by node.
        outstanding, used: sums of the grants'.
        spent: what was used on nodes that were lost since.
        scarce: whether somebody was refused for what others have and do not use.

    Example:
        >>> pool = QuotaPool({"a": Grant()})
        >>> pool.order(pool.grants["a"], 2, 1); pool.outstanding
        2
    """

    grants: dict[str, Grant] = field(default_factory=dict)
    outstanding: float = 0
    used: float = 0
    spent: float = 0
    scarce: bool = False

    def order(self, grant: Grant, share: float, number: int) -> None:
        """Set a share; a lower one is in force once the node says so."""
        before = grant.outstanding
        grant.share, grant.number = share, number
        grant.ceiling = max(grant.ceiling, share)
        self.outstanding += grant.outstanding - before

    def use(self, grant: Grant, used: float) -> None:
        """Set what is used on a node."""
        before = grant.outstanding
        self.used += used - grant.used
        grant.used = used
        self.outstanding += grant.outstanding - before

    def confirm(self, grant: Grant, orders: int) -> None:
        """Take note of the orders that a node has in force."""
        if orders >= grant.number and grant.ceiling != grant.share:
            before = grant.outstanding
            grant.ceiling = grant.share
            self.outstanding += grant.outstanding - before

    def remove(self, node: str) -> None:
        """Forget a node's share."""
        grant = self.grants.pop(node, None)
        if grant is not None:
            self.used -= grant.used
            self.outstanding -= grant.outstanding
        if not self.grants:
            self.used = self.outstanding = 0
