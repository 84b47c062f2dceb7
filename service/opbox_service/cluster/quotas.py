"""QuotaShares: owners' quotas over all nodes.

A node enforces its share of an owner's quota by itself, without asking. Shares are raised only by what is free, and
what a node gives up is free only once its report says that the lower share is in force there, so that they never add
up to more than the quota. What can exceed it is one node's share: that of a node that was declared lost and still runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .documents import QUOTAS, NodeReport, OwnerQuotas, Shares
from .quota_pools import Grant, QuotaPool, Shortage

__all__ = ["UNLIMITED", "QuotaShares"]

GRAINS = 8
"""A share that nobody presses for exceeds the use by the quota divided by this, at most."""
ANEW_REPORTS = 8
"""A share whose use has not changed is set anew with each so many reports, and with each while somebody is short."""
DAY_S = 86400
NOTHING: Mapping[str, float] = {}
UNLIMITED = OwnerQuotas()


class QuotaShares:
    """Shares of all owners on all nodes.

    Args:
        usual: quotas of owners who have none of their own.
        owners: those of the others.

    Example:
        >>> shares = QuotaShares(OwnerQuotas(limits={"sessions": 8}))
        >>> shares.admit("ann", "a", {"sessions": 1}, 1)
        >>> shares.changed("a", 0)
        {'ann': {'sessions': 1}}
    """

    def __init__(self, usual: OwnerQuotas = UNLIMITED, owners: Mapping[str, OwnerQuotas] | None = None) -> None:
        self._usual = usual
        self._owners = dict(owners or {})
        self._pools: dict[tuple[str, str], QuotaPool] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._unconfirmed: dict[str, dict[str, int]] = {}
        self._revision = 0
        self._revisions: dict[str, dict[str, int]] = {}
        self._short: dict[str, None] = {}
        self._day = 0

    def of(self, owner: str) -> OwnerQuotas:
        """An owner's quotas."""
        return self._owners.get(owner, self._usual)

    def replace(self, usual: OwnerQuotas, owners: Mapping[str, OwnerQuotas]) -> None:
        """Replace all quotas; shares follow with the nodes' next reports."""
        self._usual, self._owners = usual, dict(owners)

    def allowed(self, owner: str, quota: str) -> float:
        """The sum of what nodes let an owner use, as far as is known here."""
        pool = self._pools.get((owner, quota))
        return 0 if pool is None else pool.outstanding + pool.spent

    # -- placing ------------------------------------------------------------------------------------------------

    def shortage(self, owner: str, needs: Mapping[str, float]) -> Shortage | None:
        """The quota of an owner's that leaves too little for `needs`, wherever it would be used."""
        limits = self.of(owner).limits
        for quota, need in needs.items():
            if quota in limits:
                pool = self._pools.get((owner, quota))
                used = pool.used + pool.spent if pool is not None else 0
                if used + need > limits[quota] or (not need and used >= limits[quota]):
                    return Shortage(quota, limits[quota], used, True)
        return None

    def admit(self, owner: str, node: str, needs: Mapping[str, float], number: int) -> Shortage | None:
        """Raise an owner's shares on a node so that they allow `needs` more, and count those as used.

        Args:
            owner, node: whose, and where.
            needs: by quota; of 0 it may be any.
            number: of the node's next orders.

        Returns:
            None, or what is short; nothing has changed then.
        """
        shortage = self.shortage(owner, needs)
        if shortage is not None:
            return shortage
        limits = self.of(owner).limits
        for quota in needs:
            if quota in limits:
                pool, grant = self._grant(owner, quota, node)
                if grant.used + needs[quota] > grant.share:
                    free = limits[quota] - pool.outstanding - pool.spent + grant.outstanding
                    if grant.used + needs[quota] > free:
                        pool.scarce = True
                        self._short[owner] = None
                        return Shortage(quota, limits[quota], pool.used + pool.spent, False)
        for quota in needs:
            if quota in limits:
                pool, grant = self._grant(owner, quota, node)
                used = grant.used + needs[quota]
                free = limits[quota] - pool.outstanding - pool.spent + grant.outstanding
                if used > grant.share or not grant.share:
                    slack = self._slack(pool, quota, limits[quota] - needs[quota])
                    self._order(owner, node, pool, grant, min(used + slack, free), number)
                pool.use(grant, used)
        return None

    def give_back(self, owner: str, node: str, needs: Mapping[str, float]) -> None:
        """Count what was admitted as not used: the session was not opened, or is in the report now."""
        for quota, need in needs.items():
            pool = self._pools.get((owner, quota))
            if pool is not None and node in pool.grants:
                grant = pool.grants[node]
                pool.use(grant, max(0, grant.used - need))

    # -- settling -----------------------------------------------------------------------------------------------

    def settle(
        self,
        node: str,
        report: NodeReport,
        pending: Mapping[str, Mapping[str, float]],
        number: int,
        now: float,
        changed: Iterable[str] | None = None,
        use: Shares | None = None,
    ) -> list[str]:
        """Take a node's use, and set its shares anew.

        Args:
            node, report: whose.
            pending: by owner and quota, what is placed there and not reported yet.
            number: of the node's next orders.
            now: seconds since 1970; days are UTC's.
            changed: owners whose use may have changed since the node's last report; None: all.
            use: by owner and quota, all that is used there; None: what the report says.

        Returns:
            Owners who may get a place now that they could not get before.
        """
        self._begin_day(now)
        use = report.used if use is None else use
        unconfirmed = self._unconfirmed.get(node, {})
        anew = number % ANEW_REPORTS == 0
        here = self._by_node.get(node, {})
        if changed is None or anew:
            owners = {**here, **dict.fromkeys(use)}
        else:
            few, many = (here, self._short) if len(here) < len(self._short) else (self._short, here)
            owners = dict.fromkeys([*unconfirmed, *changed, *pending, *(name for name in few if name in many)])
        for owner in [owner for owner, ordered in unconfirmed.items() if ordered <= report.orders]:
            del unconfirmed[owner]
        if report.refused:
            owners.update(dict.fromkeys(report.refused))
        woken = []
        for owner in owners:
            limits = self.of(owner).limits
            used, placed = use.get(owner, NOTHING), pending.get(owner, NOTHING)
            wanted = owner in report.refused
            active = bool(used or placed or wanted)
            for quota in QUOTAS:
                limit = limits.get(quota)
                if limit is None:
                    if (owner, quota) in self._pools:
                        self._forget((owner, quota), node)
                    continue
                pool, grant = self._grant(owner, quota, node)
                amount = used.get(quota, 0) + placed.get(quota, 0)
                unchanged = grant.used == amount and grant.ceiling == grant.share
                if unchanged and active and not (anew or wanted or pool.scarce):
                    continue
                pool.confirm(grant, report.orders)
                if grant.used != amount:
                    pool.use(grant, amount)
                slack = self._slack(pool, quota, limit) if active else 0
                if wanted and quota == "sessions":
                    slack = max(slack, 1)
                share, tolerated = self._wanted(pool, grant, quota, limit, slack, active)
                if share > grant.share or share < grant.share - tolerated:
                    self._order(owner, node, pool, grant, share, number)
            if not active:
                self._drop_idle(owner, node)
            if owner in self._short and all(self.allowed(owner, quota) < limits[quota] for quota in limits):
                del self._short[owner]
                woken.append(owner)
        return woken

    def _wanted(
        self, pool: QuotaPool, grant: Grant, quota: str, limit: float, slack: float, active: bool
    ) -> tuple[float, float]:
        """The share that a grant should have, and by how much it may be greater."""
        free = limit - pool.outstanding - pool.spent
        pool.scarce = pool.scarce and limit - pool.used - pool.spent > 0 and free <= 0
        share = max(0, min(grant.used + (0 if pool.scarce else slack), max(free, 0) + grant.outstanding))
        return share, 0 if free < slack or not active else self._round(quota, limit / GRAINS)

    def _slack(self, pool: QuotaPool, quota: str, limit: float) -> float:
        """What a share exceeds the use by: less, the more nodes the owner is on and the less is left."""
        unused = max(0, limit - pool.used - pool.spent)
        return self._round(quota, min(limit / GRAINS, unused / (len(pool.grants) + 1)))

    @staticmethod
    def _round(quota: str, amount: float) -> float:
        return amount if quota == "worker_seconds" else math.floor(amount)

    def changed(self, node: str, confirmed: int) -> dict[str, dict[str, float]]:
        """The shares that a node does not have yet which reports the orders `confirmed` in force."""
        return {
            owner: self.shares(owner, node)
            for owner, number in self._unconfirmed.get(node, {}).items()
            if number > confirmed
        }

    def shares(self, owner: str, node: str) -> dict[str, float]:
        """An owner's shares on a node, by quota."""
        shares = {}
        for quota in QUOTAS:
            pool = self._pools.get((owner, quota))
            if pool is not None and node in pool.grants:
                shares[quota] = pool.grants[node].share
        return shares

    def revision(self, owner: str, node: str) -> int:
        """Number of an owner's last share on a node: it grows with each, so that a late one is known as such."""
        return self._revisions.get(node, {}).get(owner, 0)

    def resume(self, node: str, number: int) -> None:
        """Give a node all its shares once more, as those that it was given last may not be known here.

        Args:
            node: which.
            number: of the node's next orders, and greater than any that it may have.
        """
        self._revision = max(self._revision, number)
        for owner in self._by_node.get(node, ()):
            for quota in QUOTAS:
                pool = self._pools.get((owner, quota))
                if pool is not None and node in pool.grants:
                    grant = pool.grants[node]
                    self._order(owner, node, pool, grant, grant.share, number)

    def unconfirmed(self, owner: str, node: str) -> int:
        """Number of the orders with an owner's last share on a node; 0 once the node has it."""
        return self._unconfirmed.get(node, {}).get(owner, 0)

    def lost(self, node: str) -> list[str]:
        """Forget a node's shares; what was used up there of a day's stays used. Return the owners that it had."""
        owners = list(self._by_node.get(node, ()))
        for owner in owners:
            for quota in QUOTAS:
                key = owner, quota
                if key in self._pools and node in self._pools[key].grants:
                    if quota == "worker_seconds":
                        self._pools[key].spent += self._pools[key].grants[node].used
                    self._forget(key, node)
        self._by_node.pop(node, None)
        self._unconfirmed.pop(node, None)
        self._revisions.pop(node, None)
        return owners

    # -- sums ---------------------------------------------------------------------------------------------------

    def _grant(self, owner: str, quota: str, node: str) -> tuple[QuotaPool, Grant]:
        pool = self._pools.get((owner, quota))
        if pool is None:
            pool = self._pools[owner, quota] = QuotaPool()
        grant = pool.grants.get(node)
        if grant is None:
            grant = pool.grants[node] = Grant()
            self._by_node.setdefault(node, {})[owner] = None
        return pool, grant

    def _order(self, owner: str, node: str, pool: QuotaPool, grant: Grant, share: float, number: int) -> None:
        pool.order(grant, share, number)
        self._unconfirmed.setdefault(node, {})[owner] = number
        self._revision += 1
        self._revisions.setdefault(node, {})[owner] = self._revision

    def _forget(self, key: tuple[str, str], node: str) -> None:
        pool = self._pools[key]
        pool.remove(node)
        if not (pool.grants or pool.spent):
            del self._pools[key]

    def _drop_idle(self, owner: str, node: str) -> None:
        """Forget shares of nothing that the node knows to be nothing."""
        keys = [(owner, quota) for quota in QUOTAS if (owner, quota) in self._pools]
        grants = [grant for key in keys if (grant := self._pools[key].grants.get(node)) is not None]
        if any(grant.outstanding or grant.share for grant in grants) or self.unconfirmed(owner, node):
            return
        for key in keys:
            self._forget(key, node)
        self._by_node.get(node, {}).pop(owner, None)
        self._revisions.get(node, {}).pop(owner, None)

    def _begin_day(self, now: float) -> None:
        day = int(now // DAY_S)
        if day > self._day:
            self._day = day
            for key in [key for key, pool in self._pools.items() if pool.spent]:
                pool = self._pools[key]
                pool.spent = 0
                if not pool.grants:
                    del self._pools[key]

    def grants(self) -> Iterator[tuple[str, str, str, Grant]]:
        """Owner, quota, node and grant of all shares."""
        for (owner, quota), pool in self._pools.items():
            for node, grant in pool.grants.items():
                yield owner, quota, node, grant

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All shares, as JSON."""
        return {
            "usual": _json(self._usual),
            "owners": {owner: _json(own) for owner, own in sorted(self._owners.items())},
            "day": self._day,
            "short": sorted(self._short),
            "revision": self._revision,
            "revisions": {node: dict(sorted(rows.items())) for node, rows in sorted(self._revisions.items()) if rows},
            "grants": sorted(
                [owner, quota, node, grant.share, grant.ceiling, grant.used, grant.number]
                for owner, quota, node, grant in self.grants()
            ),
            "sums": sorted(
                [owner, quota, pool.outstanding, pool.used, pool.spent, pool.scarce]
                for (owner, quota), pool in self._pools.items()
            ),
            "unconfirmed": {
                node: dict(sorted(rows.items())) for node, rows in sorted(self._unconfirmed.items()) if rows
            },
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> QuotaShares:
        """The shares that had this state."""
        shares = cls(_quotas(state["usual"]), {owner: _quotas(own) for owner, own in state["owners"].items()})
        shares._day, shares._short = state["day"], dict.fromkeys(state["short"])
        shares._revision = state["revision"]
        shares._revisions = {node: dict(rows) for node, rows in state["revisions"].items()}
        for owner, quota, node, share, ceiling, used, number in state["grants"]:
            shares._grant(owner, quota, node)[0].grants[node] = Grant(share, ceiling, used, number)
        for owner, quota, outstanding, used, spent, scarce in state["sums"]:
            pool = shares._pools.setdefault((owner, quota), QuotaPool())
            pool.outstanding, pool.used, pool.spent, pool.scarce = outstanding, used, spent, scarce
        shares._unconfirmed = {node: dict(rows) for node, rows in state["unconfirmed"].items()}
        return shares


def _json(quotas: OwnerQuotas) -> dict[str, Any]:
    return {"weight": quotas.weight, "limits": dict(sorted(quotas.limits.items()))}


def _quotas(state: Mapping[str, Any]) -> OwnerQuotas:
    return OwnerQuotas(state["weight"], state["limits"])
