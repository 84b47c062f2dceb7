"""Controller: decides for all nodes. It is synchronous and deterministic: no clock, no socket, no thread, no chance.

Times are seconds since 1970, and come with each call. The same calls give the same decisions, and a controller that
was restored from `dump` decides as the one that was dumped.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from opbox_protocol.errors import BadRequestError

from ..owner_terms import LARGER_QUOTA
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
    PlacedSession,
    Refused,
    SessionWish,
    Waiting,
    kind_of,
)
from .free_memory import DevicePlace, FreeMemory
from .nodes import USUAL_BYTES, ClusterNode, PendingSession
from .placement import MAX_OVERTAKEN, WishLine, WishQueue
from .quotas import UNLIMITED, QuotaShares, Shortage
from .replicas import Replicas

__all__ = ["ABANDONED_S", "LOST_S", "PENDING_S", "STOPPING_S", "Controller", "Outcome"]

LOST_S = 10.0
"""Seconds without a report after which a node counts as lost."""
PENDING_S = 20.0
"""Seconds for which a place is reserved for a session that is not reported yet."""
ABANDONED_S = 30.0
"""Seconds after which a wish is forgotten that nobody asks for again."""
RETRY_S = 1.0
STOPPING_S = 60.0
"""Seconds that a node's server may take to stop, in which it does not count as lost."""
FORMAT = 1
"""Format of `dump`; grows when an older opbox could not read it."""
CANDIDATES = 8
"""Number of devices among which the node with the shortest queue is chosen."""
DEVICES_PER_RESERVED = 64
"""One device of so many, at least one and at most MAX_RESERVED, may be reserved for wishes that many overtook."""
MAX_RESERVED = 16
SKIPPED = 1 << 20
"""More orders than a node gets in the time of which a controller that died leaves no state."""

Outcome: TypeAlias = PlacedSession | Waiting | Refused


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
        replicas: of models.

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
        self.shares = QuotaShares(usual, quotas)
        self.replicas = Replicas(self._place_replica, self._release_replica)
        self._stated: dict[str, dict[str, ModelTerms]] = {}
        self._memory = FreeMemory()
        self._queues: dict[str, WishQueue] = {}
        self._asked: OrderedDict[str, tuple[SessionWish, float]] = OrderedDict()
        self._placed: OrderedDict[str, tuple[SessionWish, PlacedSession, float]] = OrderedDict()
        self._refused: OrderedDict[str, tuple[Refused, float]] = OrderedDict()
        self._directories = Directories()
        self._reserved: dict[str, tuple[str, str]] = {}
        self._ticked = 0.0

    # -- nodes --------------------------------------------------------------------------------------------------

    def join(self, info: NodeInfo, now: float) -> None:
        """Add a node, or one that was lost or drained again; a node that is ready and joins again has restarted."""
        before = self.nodes.get(info.name)
        if before is not None and before.state != "lost":
            self._forget(before, f"node {info.name} has restarted", now)
        self.nodes[info.name] = node = ClusterNode(info, now)
        node.number = before.number + 1 if before is not None else 1
        for device in info.devices:
            self._memory.set(info.name, device, node.free(device), info.devices[device])
        self._directories.node(info.name, info.url, "ready")
        self._changed(now)

    def report(self, name: str, report: NodeReport, now: float) -> NodeOrders:
        """Take a node's report and return its orders. An unknown or lost node is asked to join again."""
        node = self.nodes.get(name)
        if node is None or node.state == "lost":
            return NodeOrders(rejoin=True)
        new, ended, opened = node.take(report, now)
        for session in new:
            self._directories.opened(session.id, name)
        for session in ended:
            self._directories.ended(session.id)
        for pending in opened:
            self._placed.pop(pending.wish, None)
        self._take_terms(name, report.terms)
        woken = self.shares.settle(name, report, self._pending_needs(node), node.number, now)
        self._show(node)
        if self.replicas.report(name, report):
            self._show_models(now)
        if node.state == "draining" and not report.sessions and not self.replicas.is_on(name):
            self._set_state(node, "drained")
        self._serve(node, woken, now)
        return self._orders(node, report)

    def lost(self, name: str, now: float) -> None:
        """Declare a node dead: its sessions are gone, its replicas go elsewhere."""
        node = self.nodes.get(name)
        if node is not None and node.state != "lost":
            self._forget(node, f"node {name} was lost", now)
            self._set_state(node, "lost")
            self._changed(now)

    def drain(self, name: str, now: float) -> None:
        """Send a node nothing new, and move its replicas; it is `drained` once its sessions have ended.

        Raises:
            KeyError: there is no such node.
        """
        node = self.nodes[name]
        if node.state == "ready":
            self._set_state(node, "draining")
            self._unreserve_node(name)
            for device in node.info.devices:
                self._memory.remove(name, device)
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

    def tick(self, now: float) -> list[str]:
        """Do what time brings: nodes that do not report are lost, wishes and places expire, models get replicas.

        Returns:
            The nodes that were lost by it.
        """
        if self._ticked and now - self._ticked > self.lost_s / 2:  # nobody listened: that is no node's fault
            for node in self.nodes.values():
                if node.state != "lost":
                    node.reported = max(node.reported, now - self.lost_s / 2)
        self._ticked = now
        late = [
            name
            for name, node in self.nodes.items()
            if node.state in ("ready", "draining") and now - node.reported > self.lost_s
        ]
        for name in late:
            self.lost(name, now)
        self._expire(now)
        self.replicas.tick({name for name, node in self.nodes.items() if node.state == "ready"}, now)
        self._show_models(now)
        self._directories.expire(now)
        return late

    # -- sessions -----------------------------------------------------------------------------------------------

    def place(self, wish: SessionWish, now: float) -> Outcome:
        """Find a node for a session. Asking again with the same id gives the same place, or the wish's new position."""
        if wish.id in self._placed:
            placement = self._placed[wish.id][1]
            if placement.node not in wish.avoid:
                return self._settled(wish, placement)
            self._withdraw(wish.id)
        refused = self._refused.pop(wish.id, None)
        if refused is not None:
            return refused[0]
        self._asked[wish.id] = wish, now
        self._asked.move_to_end(wish.id)
        queue = self._queues.setdefault(wish.device, WishQueue())
        if wish.id not in queue.wishes:
            queue.add(wish, self.shares.of(wish.owner).weight)
            if self._may_fit(queue, wish):
                self._serve_queue(wish.device, now)
        elif self._memory.largest(wish.device) < max(wish.bytes, 1):
            self._drop(wish)
            self._refuse(wish, self._no_device(wish), now)
        elif (shortage := self.shares.shortage(wish.owner, _needs(wish))) is not None:
            self._drop(wish)
            self._refuse(wish, _quota_refusal(shortage), now)
        if wish.id in self._placed:
            return self._settled(wish, self._placed[wish.id][1])
        if wish.id in self._refused:
            return self._refused.pop(wish.id)[0]
        return self._waiting(queue, wish)

    def cancel(self, wish_id: str, now: float) -> None:
        """Forget a wish, or give its place back: the client has gone, or the node refused it."""
        row = self._asked.pop(wish_id, None)
        if row is not None:
            self._drop(row[0])
        placed = self._placed.get(wish_id)
        if placed is not None:
            self._withdraw(wish_id)
            self._serve_kinds(kind_of(placed[1].device), placed[1].device, now)

    def where(self, session_id: str) -> str | GoneSession:
        """Return the URL of a session's node, or why there is none."""
        name = self._directories.node_of(session_id)
        node = self.nodes.get(name) if name is not None else None
        if node is not None and node.state != "lost":
            return node.info.url
        return self._directories.gone(session_id)

    def move(self, session_id: str, new_id: str, owner: str, now: float) -> None:
        """Record that a lost session goes on as another; should its node come back, it ends it there.

        Nothing happens where the owner has no such session.
        """
        name = self._directories.node_of(session_id)
        session = self.nodes[name].sessions.get(session_id) if name in self.nodes else None
        if owner and owner == (session.owner if session is not None else self._directories.owner_of(session_id)):
            self._directories.move(session_id, new_id, now)

    def directory(self, since: int = -1) -> Directory:
        """What gateways have to know. Where nothing has changed since that version, it is the same object."""
        return self._directories.now()

    def demand(self) -> dict[str, Demand]:
        """By device, the sessions that wait: what an autoscaler starts nodes for."""
        return {
            device: Demand(len(queue), queue.bytes, max(wish.bytes for wish in queue.wishes.values()))
            for device, queue in sorted(self._queues.items())
            if queue
        }

    # -- terms --------------------------------------------------------------------------------------------------

    def set_quotas(self, usual: OwnerQuotas, quotas: Mapping[str, OwnerQuotas]) -> None:
        """Replace all owners' quotas and weights."""
        self.shares.replace(usual, quotas)

    def set_model(self, name: str, terms: ModelTerms) -> None:
        """Serve a model by these terms, from the next `tick` on."""
        self.replicas.set(name, terms)

    def forget_model(self, name: str) -> None:
        """Unload a model from all nodes."""
        self.replicas.forget(name)

    def _take_terms(self, node: str, terms: Mapping[str, ModelTerms]) -> None:
        """Take what a node's model.toml files say, where it is new; of several nodes', what is said of the newest."""
        before = self._stated.get(node, {})
        if before == terms:
            return
        self._stated[node] = dict(terms)
        for model in {**before, **terms}:
            rows = [known[model] for known in self._stated.values() if model in known]
            if not rows:
                self.replicas.let_go(model)
                continue
            stated = terms.get(model, before.get(model))
            if stated is not None and stated != before.get(model) and _number(stated) >= max(map(_number, rows)):
                self.replicas.set(model, stated)

    # -- deciding -----------------------------------------------------------------------------------------------

    def _may_fit(self, queue: WishQueue, wish: SessionWish) -> bool:
        """Whether serving the queue may place the wish or refuse it, so that a full cluster costs nothing."""
        needed = max(wish.bytes or USUAL_BYTES, 1)
        return (
            bool(self._memory.best(wish.device, needed))
            or self._memory.largest(wish.device) < needed
            or self.shares.shortage(wish.owner, _needs(wish)) is not None
        )

    def _serve(self, node: ClusterNode, woken: list[str], now: float) -> None:
        """Give places to wishes, after a node has reported."""
        if not any(self._queues.values()):
            return
        for queue in self._queues.values():
            for owner in woken:
                queue.unpark(owner)
        for device in sorted(node.info.devices):
            self._serve_kinds(kind_of(device), device, now)
        if woken:
            for device in sorted(self._queues):
                self._serve_queue(device, now)

    def _serve_kinds(self, kind: str, device: str, now: float) -> None:
        for name in sorted({kind, device}):
            self._serve_queue(name, now)

    def _serve_queue(self, device: str, now: float) -> None:
        """Give places to the wishes whose turn it is, until none of them fits."""
        queue = self._queues.get(device)
        progress = bool(queue)
        while queue and progress:
            progress = False
            passed: list[WishLine] = []
            for line in queue.turns(self._reserved):
                wish = queue.first(line)
                outcome = self._try(wish, now)
                if isinstance(outcome, PlacedSession):
                    queue.served(line)
                    self._asked.pop(wish.id, None)
                    for other in passed:
                        queue.overtake(other)
                    progress = True
                    break
                if isinstance(outcome, Refused):
                    self._drop(wish)
                    self._refuse(wish, outcome, now)
                    progress = True
                elif outcome is not None:
                    queue.park(line)
                    progress = True
                else:
                    passed.append(line)
                    if line.overtaken >= MAX_OVERTAKEN:
                        self._reserve(wish)

    def _try(self, wish: SessionWish, now: float) -> PlacedSession | Refused | Shortage | None:
        """A place for a wish; None if no device has as much memory free now."""
        needed = wish.bytes or USUAL_BYTES
        largest = self._memory.largest(wish.device)
        if largest < max(wish.bytes, 1):
            return self._no_device(wish)
        shortage = self.shares.shortage(wish.owner, _needs(wish))
        if shortage is not None:
            return _quota_refusal(shortage)
        if wish.id in self._reserved:
            name, device = self._reserved[wish.id]
            free = self.nodes[name].free(device)
            places = [DevicePlace(name, device, free)] if free >= min(needed, largest) else []
        else:
            places = self._memory.best(wish.device, max(min(needed, largest), 1), CANDIDATES, wish.avoid)
        if not places:
            return None
        places.sort(key=lambda place: (self.nodes[place.node].queue, -place.free, place.node, place.device))
        shortage = None
        for place in places:
            node = self.nodes[place.node]
            shortage = self.shares.admit(wish.owner, place.node, _needs(wish), node.number)
            if shortage is None:
                return self._promise(wish, node, place.device, now)
        return shortage

    def _promise(self, wish: SessionWish, node: ClusterNode, device: str, now: float) -> PlacedSession:
        name = node.info.name
        self._reserved.pop(wish.id, None)
        node.promise(PendingSession(wish.id, wish.owner, device, wish.bytes or USUAL_BYTES, wish.bytes))
        self._show(node)
        new = self.shares.unconfirmed(wish.owner, name)
        shares = {wish.owner: self.shares.shares(wish.owner, name)} if new else {}
        # Not the next orders' number: orders with other owners' shares may be on their way, or lost.
        number = node.report.orders if new and node.report is not None else 0
        revision = self.shares.revision(wish.owner, name) if new else 0
        placement = PlacedSession(name, node.info.url, device, shares, number, revision)
        self._placed[wish.id] = wish, placement, now
        return placement

    def _reserve(self, wish: SessionWish) -> None:
        """Reserve the device with the most free memory that is large enough, if not too many are reserved."""
        devices = sum(len(node.info.devices) for node in self.nodes.values()) if len(self._reserved) else 0
        if wish.id in self._reserved or len(self._reserved) > min(devices // DEVICES_PER_RESERVED, MAX_RESERVED - 1):
            return
        taken = set(self._reserved.values())
        for place in self._memory.best(wish.device, 0, CANDIDATES, wish.avoid):
            total = self.nodes[place.node].info.devices[place.device]
            if total >= wish.bytes and (place.node, place.device) not in taken:
                self._reserved[wish.id] = place.node, place.device
                self._show(self.nodes[place.node])
                return

    def _drop(self, wish: SessionWish) -> None:
        """Take a wish out of its queue."""
        self._queues[wish.device].drop(wish.id)
        place = self._reserved.pop(wish.id, None)
        if place is not None:
            self._show(self.nodes[place[0]])

    def _unreserve_node(self, name: str) -> None:
        for id in [id for id, place in self._reserved.items() if place[0] == name]:
            del self._reserved[id]

    def _settled(self, wish: SessionWish, placement: PlacedSession) -> Outcome:
        """The place, once its node has the owner's share or the caller sends it."""
        if self.pushes or not placement.shares:
            return placement
        if self.shares.unconfirmed(wish.owner, placement.node):
            reason = f"node {placement.node} is being told the owner's share: ask again in {RETRY_S:g} s"
            return Waiting(1, sum(map(len, self._queues.values())), RETRY_S, reason)
        return PlacedSession(placement.node, placement.url, placement.device)

    def _waiting(self, queue: WishQueue, wish: SessionWish) -> Waiting:
        waiting = sum(map(len, self._queues.values()))
        reason = (
            f"sessions: expected a {wish.device} with {wish.bytes or USUAL_BYTES} bytes free, got none that has as "
            f"much now: {waiting} wait, and this one is about number {queue.position(wish)}"
        )
        return Waiting(queue.position(wish), waiting, RETRY_S, reason)

    def _no_device(self, wish: SessionWish) -> Refused:
        largest = self._memory.largest(wish.device)
        if not largest:
            has = sorted({kind_of(device) for node in self.nodes.values() for device in node.info.devices})
            reason = (
                f"device: expected one that a node of the cluster has ({', '.join(has) or 'none'}), got "
                f"{wish.device!r}, which no node that takes sessions has: ask for another, or join a node that has it"
            )
        else:
            reason = (
                f"bytes: expected at most {largest}, as the largest {wish.device} of the nodes that take sessions has, "
                f"got {wish.bytes}: ask for less, or join a node with more"
            )
        return Refused(503, reason)

    def _refuse(self, wish: SessionWish, refused: Refused, now: float) -> None:
        self._asked.pop(wish.id, None)
        self._refused[wish.id] = refused, now

    def _withdraw(self, wish_id: str) -> None:
        """Give a place back that was not used."""
        wish, placement, _ = self._placed.pop(wish_id)
        node = self.nodes.get(placement.node)
        if node is not None and node.withdraw(wish_id, wish.owner, placement.device) is not None:
            self.shares.give_back(wish.owner, placement.node, _needs(wish))
            self._show(node)

    def _pending_needs(self, node: ClusterNode) -> dict[str, dict[str, float]]:
        needs: dict[str, dict[str, float]] = {}
        for pending in node.pending():
            row = needs.setdefault(pending.owner, {"sessions": 0, "memory_bytes": 0})
            row["sessions"] += 1
            row["memory_bytes"] += pending.declared
        return needs

    def _orders(self, node: ClusterNode, report: NodeReport) -> NodeOrders:
        name = node.info.name
        shares = self.shares.changed(name, report.orders)
        load, unload = self.replicas.orders(name)
        unload += self.replicas.forgotten(report)
        end = tuple(id for id in node.sessions if self._directories.is_moved(id))
        revisions = {owner: self.shares.revision(owner, name) for owner in shares}
        draining = node.state in ("draining", "drained") and not self.replicas.is_on(name)
        orders = NodeOrders(node.number, shares, revisions, load, unload, end, draining)
        node.number += 1
        return orders

    # -- what changes -------------------------------------------------------------------------------------------

    def _show(self, node: ClusterNode) -> None:
        """Enter a node's free memory."""
        if node.state == "ready":
            name, reserved = node.info.name, set(self._reserved.values()) if self._reserved else ()
            for device, total in node.info.devices.items():
                free = 0 if reserved and (name, device) in reserved else node.free(device)
                self._memory.set(name, device, free, total)

    def _set_state(self, node: ClusterNode, state: NodeState) -> None:
        node.state = state
        self._directories.node(node.info.name, node.info.url, state)

    def _forget(self, node: ClusterNode, reason: str, now: float) -> None:
        """Forget all that was on a node."""
        name = node.info.name
        for id, session in node.sessions.items():
            self._directories.lost(id, session.owner, reason, now)
        for pending in list(node.pending()):
            self._placed.pop(pending.wish, None)
        node.sessions, node.claims, node.replicas = {}, {}, {}
        self._unreserve_node(name)
        for device in node.info.devices:
            self._memory.remove(name, device)
        self.replicas.lost(name)
        self._stated.pop(name, None)
        for owner in self.shares.lost(name):
            for queue in self._queues.values():
                queue.unpark(owner)

    def _changed(self, now: float) -> None:
        """Place again what can be, after nodes have come or gone."""
        self.replicas.tick({name for name, node in self.nodes.items() if node.state == "ready"}, now)
        self._show_models(now)
        for device in sorted(self._queues):
            self._serve_queue(device, now)

    def _show_models(self, now: float) -> None:
        self._directories.models(self.replicas.serving())

    def _expire(self, now: float) -> None:
        """Forget wishes that nobody asks for, places that nobody used, and nodes that were lost long ago."""
        while self._asked and now - next(iter(self._asked.values()))[1] > ABANDONED_S:
            wish, _ = self._asked.popitem(last=False)[1]
            self._drop(wish)
        while self._refused and now - next(iter(self._refused.values()))[1] > ABANDONED_S:
            self._refused.popitem(last=False)
        devices = set()
        while self._placed and now - next(iter(self._placed.values()))[2] > self.pending_s:
            id, (_, placement, _) = next(iter(self._placed.items()))
            devices |= {placement.device, kind_of(placement.device)}
            self._withdraw(id)
        for device in sorted(devices):
            self._serve_queue(device, now)
        for name in [name for name, node in self.nodes.items() if node.state == "lost"]:
            if now - self.nodes[name].reported > REMEMBERED_S:
                del self.nodes[name]
                self._directories.forget_node(name)

    def _place_replica(self, name: str, terms: ModelTerms, avoid: tuple[str, ...]) -> str | None:
        having = {node for node, stated in self._stated.items() if name in stated}
        if having:  # others have no files of it
            avoid = (*avoid, *(node for node in self.nodes if node not in having))
        places = self._memory.best(terms.device, max(terms.bytes, 1), 1, avoid)
        if not places:
            return None
        node = self.nodes[places[0].node]
        node.replicas[name] = places[0].device, terms.bytes
        self._show(node)
        return places[0].node

    def _release_replica(self, name: str, node_name: str) -> None:
        node = self.nodes.get(node_name)
        if node is not None and node.replicas.pop(name, None) is not None:
            self._show(node)

    # -- state --------------------------------------------------------------------------------------------------

    def dump(self) -> bytes:
        """All state as JSON, in one order: the same state is the same bytes."""
        state = {
            "format": FORMAT,
            "pushes": self.pushes,
            "lost_s": self.lost_s,
            "pending_s": self.pending_s,
            "ticked": self._ticked,
            "nodes": {name: node.as_json() for name, node in self.nodes.items()},
            "shares": self.shares.state(),
            "replicas": self.replicas.state(),
            "stated": {
                node: {name: asdict(terms) for name, terms in rows.items()} for node, rows in self._stated.items()
            },
            "directories": self._directories.state(),
            "queues": {device: queue.state() for device, queue in self._queues.items()},
            "asked": [[*_row(wish), when] for wish, when in self._asked.values()],
            "placed": [
                [*_row(wish), place.node, place.url, place.device, place.shares, place.number, place.revision, when]
                for wish, place, when in self._placed.values()
            ],
            "reserved": [[id, *place] for id, place in self._reserved.items()],
            "refused": [[id, refused.status, refused.reason, when] for id, (refused, when) in self._refused.items()],
        }
        return json.dumps(state, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def load(cls, state: bytes) -> Controller:
        """The controller that was dumped.

        Raises:
            BadRequestError: the bytes are no such state, or a newer opbox wrote them.
        """
        try:
            rows = json.loads(state)
            if rows["format"] > FORMAT:
                raise BadRequestError(
                    f"state of the controller: expected format {FORMAT} or older, got {rows['format']}, which a newer "
                    "opbox wrote: start that one, or begin with an empty state"
                )
            return cls._restored(rows)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadRequestError(
                f"state of the controller: expected what Controller.dump wrote, got another text ({error!r}): begin "
                "with an empty state"
            ) from None

    @classmethod
    def _restored(cls, rows: dict[str, Any]) -> Controller:
        controller = cls(pushes=rows["pushes"], lost_s=rows["lost_s"], pending_s=rows["pending_s"])
        controller._ticked = rows["ticked"]
        controller.shares = QuotaShares.restored(rows["shares"])
        controller._directories = Directories.restored(rows["directories"])
        controller._reserved = {id: (node_name, device) for id, node_name, device in rows["reserved"]}
        for name, row in rows["nodes"].items():
            controller.nodes[name] = node = ClusterNode.restored(row)
            controller._directories.node(name, node.info.url, node.state)
            for session in node.sessions:
                controller._directories.opened(session, name)
            controller._show(node)
        controller._directories.set_version(rows["directories"]["version"])
        controller.replicas.restore(rows["replicas"])
        controller._stated = {
            node: {name: ModelTerms(**terms) for name, terms in stated.items()}
            for node, stated in rows["stated"].items()
        }
        controller._asked.update((row[0], (_wish(row), row[-1])) for row in rows["asked"])
        wishes = {id: wish for id, (wish, _) in controller._asked.items()}
        controller._queues = {device: WishQueue.restored(row, wishes) for device, row in rows["queues"].items()}
        for row in rows["placed"]:
            *place, when = row[WISH_FIELDS:]
            placement = PlacedSession(*place)
            controller._placed[row[0]] = _wish(row), placement, when
        for id, status, reason, when in rows["refused"]:
            controller._refused[id] = Refused(status, reason), when
        return controller


WISH_FIELDS = 6


def _row(wish: SessionWish) -> list[Any]:
    return [wish.id, wish.owner, wish.device, wish.bytes, wish.after, list(wish.avoid)]


def _wish(row: list[Any]) -> SessionWish:
    id, owner, device, nbytes, after, avoid = row[:WISH_FIELDS]
    return SessionWish(id, owner, device, nbytes, after, tuple(avoid))


def _number(terms: ModelTerms) -> int:
    """The number of the version that the terms say; 0 where they say none."""
    return int(terms.version) if terms.version.isdecimal() else 0


def _needs(wish: SessionWish) -> dict[str, float]:
    """What a session needs of its owner's quotas; of time and undeclared memory, any."""
    return {"sessions": 1, "memory_bytes": wish.bytes, "worker_seconds": 0}


def _quota_refusal(shortage: Shortage) -> Refused:
    reason = (
        f"{shortage.quota}: expected at most {shortage.limit:g} of an owner on all nodes together, got "
        f"{shortage.used:g} in use and more: end a session of yours, or {LARGER_QUOTA}"
    )
    return Refused(429, reason)
