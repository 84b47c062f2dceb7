"""Controller: decides for all nodes. It is synchronous and deterministic: no clock, no socket, no thread, no chance.

Times are seconds since 1970, and come with each call. The same calls give the same decisions, and a controller that
was restored from `dump` decides as the one that was dumped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .controller_state import dumped, loaded
from .directories import REMEMBERED_S, Directories
from .documents import (
    Demand,
    Directory,
    GoneSession,
    ModelTerms,
    NodeInfo,
    NodeOrders,
    NodeReport,
    NodeState,
    OwnerQuotas,
    SessionWish,
)
from .loaded_models import LoadedModels
from .nodes import ClusterNode
from .quotas import UNLIMITED, QuotaShares
from .replicas import Replicas
from .report_pace import REPORT_S, ReportPace
from .session_places import ABANDONED_S, Outcome, SessionPlaces

__all__ = ["ABANDONED_S", "LOST_S", "PENDING_S", "STOPPING_S", "Controller", "Outcome"]

LOST_S = 10.0
"""Seconds without a report after which a node counts as lost that reports once a second."""
PENDING_S = 20.0
"""Seconds for which a place is reserved for a session that is not reported yet."""
STOPPING_S = 60.0
"""Seconds that a node's server may take to stop, in which it does not count as lost."""
SKIPPED = 1 << 20
"""More orders than a node gets in the time of which a controller that died leaves no state."""


class Controller:
    """Places sessions, shares quotas out and assigns models to nodes.

    Args:
        usual: quotas of owners who have none of their own; by default none are limited.
        quotas: those of the others, by owner.
        pushes: whether the caller of `place` sends `PlacedSession.shares` to the node before it passes the answer on.
            If it does not, a session whose node needs a new share first waits until the node has reported it.
        lost_s, pending_s: see LOST_S and PENDING_S.

    Attributes:
        nodes: by name.
        shares: of owners' quotas.
        places: of sessions.
        replicas: of models.
        loaded: all models that are ready on nodes.
        stated: by node, terms of the models whose files it has.
        directories: of sessions and nodes.
        ticked: time of the last tick.
        behind: seconds that the report which was read last had waited.
        pace: how often nodes have to report.

    Example:
        >>> controller = Controller()
        >>> controller.join(NodeInfo("a", "http://a:8000", {"cpu": 1 << 30}), now=0.0)
        >>> controller.place(SessionWish("1" * 32, "ann"), now=0.0).url
        'http://a:8000'
    """

    def __init__(
        self,
        usual: OwnerQuotas = UNLIMITED,
        quotas: Mapping[str, OwnerQuotas] | None = None,
        *,
        pushes: bool = False,
        lost_s: float = LOST_S,
        pending_s: float = PENDING_S,
    ) -> None:
        self.pushes, self.lost_s, self.pending_s = pushes, lost_s, pending_s
        self.nodes: dict[str, ClusterNode] = {}
        self.pace = ReportPace()
        self.begin_with(QuotaShares(usual, quotas))
        self.replicas = Replicas(self._place_replica, self._release_replica)
        self.loaded = LoadedModels()
        self.stated: dict[str, dict[str, ModelTerms]] = {}
        self.directories = Directories()
        self.ticked = self.behind = 0.0

    # -- nodes --------------------------------------------------------------------------------------------------

    def join(self, info: NodeInfo, now: float, report: NodeReport | None = None) -> None:
        """Add a node, or one that was lost or drained again.

        Args:
            info: of the node.
            now: seconds since 1970.
            report: what a node has that was here before and ran on: these sessions are known again. Without it, a node
                that was ready has restarted, and one that was lost gets nothing until its first report.
        """
        before = self.nodes.get(info.name)
        if before is not None and before.state != "lost":
            self._forget(before, f"node {info.name} has restarted", now)
        self.nodes[info.name] = node = ClusterNode(info, now)
        node.number = before.number + 1 if before is not None else 1
        self.directories.node(info.name, info.url, "ready")
        if report is not None:
            self._take(node, report, now)
        elif before is not None and before.state == "lost":
            node.take(NodeReport({}), now)
        self.places.show(node)
        self._changed(now)

    def report(self, name: str, report: NodeReport, now: float, arrived: float | None = None) -> NodeOrders:
        """Take a node's report and return its orders. An unknown or lost node is asked to join again.

        Args:
            name: of the node.
            report: what it has.
            now: seconds since 1970.
            arrived: since when the report waited to be read; None: it did not. As long as reports wait, others do too,
                and no node is lost for that.
        """
        self.behind = 0.0 if arrived is None else max(0.0, now - arrived)
        node = self.nodes.get(name)
        if node is None or node.state == "lost":
            return NodeOrders(rejoin=True)
        if report.since and report.since != node.known:
            node.reported, node.known = now, 0
            return replace(self._orders(node, report), full=True)
        woken = self._take(node, report, now)
        node.known = node.number
        self.places.show(node)
        if node.state == "draining" and not node.sessions and not self.replicas.holds(name):
            self._set_state(node, "drained")
        if woken:
            self.places.unpark(woken)
            self.places.serve_all(now)
        else:
            self.places.serve(now)
        return self._orders(node, report)

    def lost(self, name: str, now: float) -> None:
        """Declare a node dead: its sessions are gone, its replicas go elsewhere."""
        node = self.nodes.get(name)
        if node is not None and node.state != "lost":
            self._lose([name], now)
            self._changed(now)

    def drain(self, name: str, now: float) -> None:
        """Send a node nothing new, and move its replicas; it is `drained` once its sessions have ended.

        Raises:
            KeyError: there is no such node.
        """
        node = self.nodes[name]
        if node.state == "ready":
            self._set_state(node, "draining")
            self.places.remove(node)
            self._changed(now)

    def leaving(self, name: str, now: float) -> None:
        """Take note that a draining node's server stops, which may take STOPPING_S; it does not report meanwhile."""
        node = self.nodes.get(name)
        if node is not None and node.state == "draining":
            node.reported = now + STOPPING_S

    def left(self, name: str, now: float) -> None:
        """Take note that a draining node's server has stopped: its sessions go on elsewhere from their checkpoints."""
        node = self.nodes.get(name)
        if node is not None:
            self._forget(node, f"node {name} was drained", now)
            self._set_state(node, "drained")
            self._changed(now)

    def resume(self, now: float) -> None:
        """Go on from a state that may be older than what nodes were told, after a time in which nobody could report."""
        for name, node in self.nodes.items():
            node.reported = now
            node.number += SKIPPED
            self.shares.resume(name, node.number)

    def tick(self, now: float, busy: float = 0.0) -> list[str]:
        """Do what time brings: nodes that do not report are lost, wishes and places expire, models get replicas.

        Args:
            now: seconds since 1970.
            busy: share of the controller's core that was in use since the last tick. When it is too much, or reports
                are read late, nodes are told to report less often.

        Returns:
            The nodes that were lost by it.
        """
        if self.ticked and now - self.ticked > self.lost_s / 2:  # nobody listened: that is no node's fault
            for node in self.nodes.values():
                if node.state != "lost":
                    node.reported = max(node.reported, now - self.lost_s / 2)
        self.ticked = now
        self.pace.adapt(now, busy, self.behind)
        heard = now - self.behind  # a report that came later may wait
        late = [
            name
            for name, node in self.nodes.items()
            if node.state in ("ready", "draining") and heard - node.reported > self.lost_s + node.report_s - REPORT_S
        ]
        self._lose(late, now)
        self.places.expire(now)
        self._forget_lost(now)
        self._changed(now, served=not late)
        self.directories.expire(now)
        return late

    # -- sessions -----------------------------------------------------------------------------------------------

    def place(self, wish: SessionWish, now: float) -> Outcome:
        """Find a node for a session. Asking again with the same id gives the same place, or the wish's new position."""
        return self.places.place(wish, now)

    def cancel(self, wish_id: str, now: float) -> None:
        """Forget a wish, or give its place back: the client has gone, or the node refused it."""
        self.places.cancel(wish_id, now)

    def where(self, session_id: str) -> str | GoneSession:
        """Return the URL of a session's node, or why there is none."""
        name = self.directories.node_of(session_id)
        node = self.nodes.get(name) if name is not None else None
        if node is not None and node.state != "lost":
            return node.info.url
        return self.directories.gone(session_id)

    def sessions_on(self, name: str) -> int:
        """How many sessions a node has."""
        node = self.nodes.get(name)
        return len(node.sessions) if node is not None else 0

    def move(self, session_id: str, new_id: str, owner: str, now: float) -> None:
        """Record that a lost session goes on as another; should its node come back, it ends it there.

        Nothing happens where the owner has no such session.
        """
        name = self.directories.node_of(session_id)
        session = self.nodes[name].sessions.get(session_id) if name in self.nodes else None
        if owner and owner == (session.owner if session is not None else self.directories.owner_of(session_id)):
            self.directories.move(session_id, new_id, now)
            if session is not None and name is not None:
                self.nodes[name].moved[session_id] = None

    def directory(self, since: int = -1) -> Directory:
        """What gateways have to know. Where nothing has changed since that version, it is the same object."""
        return self.directories.now()

    def demand(self) -> dict[str, Demand]:
        """By device, the sessions that wait: what an autoscaler starts nodes for."""
        return self.places.demand()

    # -- terms --------------------------------------------------------------------------------------------------

    def set_quotas(self, usual: OwnerQuotas, quotas: Mapping[str, OwnerQuotas]) -> None:
        """Replace all owners' quotas and weights."""
        self.shares.replace(usual, quotas)

    # -- what changes -------------------------------------------------------------------------------------------

    def _take(self, node: ClusterNode, report: NodeReport, now: float) -> list[str]:
        """Take a node's report; return the owners who may get a place now that they could not get before."""
        name = node.info.name
        new, ended, opened = node.take(report, now)
        for session in new:
            self.directories.opened(session.id, name)
            if self.directories.is_moved(session.id):
                node.moved[session.id] = None
        for session in ended:
            self.directories.ended(session.id)
        self.places.opened(pending.wish for pending in opened)
        self._take_terms(name, report.terms)
        is_new = self.loaded.report(name, report)
        if self.replicas.report(name, report) or is_new:
            self._show_models()
        changed = report.used if report.since else None
        return self.shares.settle(name, report, node.pending_needs(), node.number, now, changed, node.used)

    def _take_terms(self, node: str, terms: Mapping[str, ModelTerms]) -> None:
        """Take what a node's model.toml files say, where it is new; of several nodes', what is said of the newest."""
        before = self.stated.get(node, {})
        if before == terms:
            return
        self.stated[node] = dict(terms)
        for model in {**before, **terms}:
            rows = [known[model] for known in self.stated.values() if model in known]
            if not rows:
                self.replicas.let_go(model)
                continue
            stated = terms.get(model, before.get(model))
            if stated is not None and stated != before.get(model) and _number(stated) >= max(map(_number, rows)):
                is_new = model not in self.replicas
                self.replicas.set(model, stated)
                if is_new:
                    self._show_replicas(model)

    def _show_replicas(self, model: str) -> None:
        """Enter the replicas of a model that nodes have reported before it had terms."""
        for name, node in self.nodes.items():
            if model in node.models:
                self.replicas.report(name, NodeReport({}, models={model: node.models[model]}, since=1))

    def _orders(self, node: ClusterNode, report: NodeReport) -> NodeOrders:
        name = node.info.name
        shares = self.shares.changed(name, report.orders)
        load, unload = self.replicas.orders(name)
        revisions = {owner: self.shares.revision(owner, name) for owner in shares}
        draining = node.state in ("draining", "drained") and not self.replicas.holds(name)
        node.report_s = self.pace.report_s
        orders = NodeOrders(
            node.number, shares, revisions, load, unload, tuple(node.moved), draining, report_s=node.report_s
        )
        node.number += 1
        return orders

    def begin_with(self, shares: QuotaShares) -> None:
        """Begin with these shares, and no places."""
        self.shares = shares
        self.places = SessionPlaces(self.nodes, shares, self.pace, pushes=self.pushes, pending_s=self.pending_s)

    def _set_state(self, node: ClusterNode, state: NodeState) -> None:
        node.state = state
        self.directories.node(node.info.name, node.info.url, state)

    def _lose(self, names: list[str], now: float) -> None:
        """Forget what is on nodes; `_changed` does the rest, once for all of them."""
        for name in names:
            self._forget(self.nodes[name], f"node {name} was lost", now)
            self._set_state(self.nodes[name], "lost")

    def _forget(self, node: ClusterNode, reason: str, now: float) -> None:
        """Forget all that was on a node."""
        name = node.info.name
        for id, session in node.sessions.items():
            self.directories.lost(id, session.owner, reason, now)
        self.places.opened(pending.wish for pending in node.pending())
        node.forget()
        self.places.remove(node)
        self.replicas.lost(name)
        self.loaded.lost(name)
        self.stated.pop(name, None)
        self.places.unpark(self.shares.lost(name))

    def _forget_lost(self, now: float) -> None:
        """Forget nodes that were lost long ago."""
        for name in [name for name, node in self.nodes.items() if node.state == "lost"]:
            if now - self.nodes[name].reported > REMEMBERED_S:
                del self.nodes[name]
                self.directories.forget_node(name)

    def _changed(self, now: float, served: bool = False) -> None:
        """Place models again, and sessions, unless they were served."""
        self.replicas.tick({name for name, node in self.nodes.items() if node.state == "ready"}, now)
        self._show_models()
        if served:
            self.places.serve(now)
        else:
            self.places.serve_all(now)

    def _show_models(self) -> None:
        self.directories.models({**self.loaded.nodes, **self.replicas.serving()})

    def _place_replica(self, name: str, terms: ModelTerms, avoid: tuple[str, ...]) -> str | None:
        having = {node for node, stated in self.stated.items() if name in stated}
        if having:  # others have no files of it
            avoid = (*avoid, *(node for node in self.nodes if node not in having))
        places = self.places.memory.best(terms.device, max(terms.bytes, 1), 1, avoid)
        if not places:
            return None
        node = self.nodes[places[0].node]
        node.replicas[name] = places[0].device, terms.bytes
        self.places.show(node)
        return places[0].node

    def _release_replica(self, name: str, node_name: str) -> None:
        node = self.nodes.get(node_name)
        if node is not None and node.replicas.pop(name, None) is not None:
            self.places.show(node)

    # -- state --------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """All state as JSON, in one order: the same state is the same bytes."""
        return dumped(self)

    @classmethod
    def load(cls, state: bytes) -> Controller:
        """The controller that was dumped.

        Raises:
            BadRequestError: the bytes are no such state, or a newer opbox wrote them.
        """
        return loaded(cls, state)


def _number(terms: ModelTerms) -> int:
    """The number of the version that the terms say; 0 where they say none."""
    return int(terms.version) if terms.version.isdecimal() else 0
