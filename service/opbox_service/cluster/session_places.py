"""SessionPlaces: which node gets a session, and which wishes wait, have a place or are refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from .documents import Demand, PlacedSession, Refused, SessionWish, Waiting, kind_of
from .free_memory import DevicePlace, FreeMemory
from .nodes import USUAL_BYTES, ClusterNode, PendingSession
from .placement import MAX_OVERTAKEN, NEVER, WishLine, WishQueue
from .quota_pools import Shortage
from .quotas import QuotaShares
from .report_pace import ReportPace
from .reserved_devices import ReservedDevices
from .session_wishes import WISH_FIELDS, needs_of, no_device, quota_refusal, row_of, wish_of

__all__ = ["ABANDONED_S", "Outcome", "SessionPlaces"]

ABANDONED_S = 30.0
"""Seconds after which a wish is forgotten that nobody asks for again."""
CANDIDATES = 8
"""Number of devices among which the node with the shortest queue is chosen."""

Outcome: TypeAlias = PlacedSession | Waiting | Refused


class SessionPlaces:
    """Gives sessions their places.

    Args:
        nodes: the cluster's, by name.
        shares: of owners' quotas.
        pace: of nodes' reports; those who wait ask again as often.
        pushes, pending_s: see Controller.

    Attributes:
        memory: free memory of the nodes that take sessions.

    Example:
        >>> places = SessionPlaces({}, QuotaShares(), ReportPace(), pushes=True, pending_s=20.0)
        >>> places.place(SessionWish("1" * 32, "ann"), 0.0).status
        503
    """

    def __init__(
        self,
        nodes: Mapping[str, ClusterNode],
        shares: QuotaShares,
        pace: ReportPace,
        *,
        pushes: bool,
        pending_s: float,
    ) -> None:
        self._nodes, self._shares, self._pace = nodes, shares, pace
        self._pushes, self._pending_s = pushes, pending_s
        self.memory = FreeMemory()
        self._queues: dict[str, WishQueue] = {}
        self._asked: OrderedDict[str, tuple[SessionWish, float]] = OrderedDict()
        self._placed: OrderedDict[str, tuple[SessionWish, PlacedSession, float]] = OrderedDict()
        self._refused: OrderedDict[str, tuple[Refused, float]] = OrderedDict()
        self._reserved = ReservedDevices()
        self._risen: dict[str, None] = {}

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
            is_first = queue.add(wish, self._shares.of(wish.owner).weight)
            if is_first or not queue.least:
                needed = self._needed(wish)
                if self._may_fit(wish, needed):
                    self._serve_queue(wish.device, now)
                else:
                    queue.least = min(queue.least, needed)
        elif self.memory.largest(wish.device) < max(wish.bytes, 1):
            self._drop(wish)
            self._refuse(wish, self._no_device(wish), now)
        elif (shortage := self._shares.shortage(wish.owner, needs_of(wish))) is not None:
            self._drop(wish)
            self._refuse(wish, quota_refusal(shortage), now)
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
        if wish_id in self._placed:
            self._withdraw(wish_id)
        self.serve(now)

    def demand(self) -> dict[str, Demand]:
        """By device, the sessions that wait: what an autoscaler starts nodes for."""
        return {
            device: Demand(len(queue), queue.bytes, max(wish.bytes for wish in queue.wishes.values()))
            for device, queue in sorted(self._queues.items())
            if queue
        }

    # -- nodes --------------------------------------------------------------------------------------------------

    def show(self, node: ClusterNode) -> None:
        """Enter a node's free memory."""
        if node.state == "ready":
            name = node.info.name
            for device, total in node.info.devices.items():
                free = node.free(device)
                wish = self._reserved.at(name, device)
                if wish is not None:
                    if free >= self._needed(wish) and self._queues[wish.device].call_back(wish.owner):
                        self._risen[wish.device] = None
                    free = 0
                elif free > self.memory.free(name, device) or self._is_all(node, free):
                    for queued in (device, kind_of(device)):
                        queue = self._queues.get(queued)
                        if queue and (free >= queue.least or self._is_all(node, free)):
                            self._risen[queued] = None
                self.memory.set(name, device, free, total)

    def opened(self, wish_ids: Iterable[str]) -> None:
        """Note that nodes have reported the sessions of these wishes."""
        for id in wish_ids:
            self._placed.pop(id, None)

    def remove(self, node: ClusterNode) -> None:
        """Place nothing more on a node."""
        name = node.info.name
        for wish in self._reserved.remove_node(name, list(node.info.devices)):
            self._queues[wish.device].call_back(wish.owner)
        for device in node.info.devices:
            self.memory.remove(name, device)

    def unpark(self, owners: Iterable[str]) -> None:
        """Let owners' wishes have turns again, as quota may be free."""
        for queue in self._queues.values():
            for owner in owners:
                queue.unpark(owner)

    def serve(self, now: float) -> None:
        """Give places to wishes that may fit now: nothing is looked at unless memory has become free."""
        if self._risen:
            names = sorted(self._risen)
            self._risen.clear()
            for name in names:
                self._serve_queue(name, now)

    def serve_all(self, now: float) -> None:
        """Give places to wishes, after nodes or quotas have changed."""
        self._risen.clear()
        for device in sorted(self._queues):
            self._serve_queue(device, now)

    def expire(self, now: float) -> None:
        """Forget wishes that nobody asks for, and places that nobody used."""
        more_s = self._pace.more_s
        while self._asked and now - next(iter(self._asked.values()))[1] > ABANDONED_S + more_s:
            wish, _ = self._asked.popitem(last=False)[1]
            self._drop(wish)
        while self._refused and now - next(iter(self._refused.values()))[1] > ABANDONED_S + more_s:
            self._refused.popitem(last=False)
        while self._placed and now - next(iter(self._placed.values()))[2] > self._pending_s + more_s:
            self._withdraw(next(iter(self._placed)))
        self.serve(now)

    # -- deciding -----------------------------------------------------------------------------------------------

    def _needed(self, wish: SessionWish) -> int:
        """Bytes that have to be free for a wish; of what no device has at all, those of the largest."""
        return max(min(wish.bytes or USUAL_BYTES, self.memory.largest(wish.device)), 1)

    def _may_fit(self, wish: SessionWish, needed: int) -> bool:
        """Whether serving the queue may place the wish or refuse it, so that a full cluster costs nothing."""
        return (
            bool(self.memory.best(wish.device, needed) or self._without_sessions(wish))
            or self.memory.largest(wish.device) < max(wish.bytes, 1)
            or self._shares.shortage(wish.owner, needs_of(wish)) is not None
        )

    def _serve_queue(self, device: str, now: float) -> None:
        """Give places to the wishes whose turn it is, until none of them fits."""
        queue = self._queues.get(device)
        progress = bool(queue)
        while queue and progress:
            progress = False
            passed: list[WishLine] = []
            least = NEVER
            for line in queue.turns():
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
                    least = min(least, self._needed(wish))
                    if line.overtaken >= MAX_OVERTAKEN:
                        self._reserve(wish)
                    if wish.id in self._reserved:  # it has a turn again once its device is free
                        queue.set_aside(line)
            queue.least = least

    def _try(self, wish: SessionWish, now: float) -> PlacedSession | Refused | Shortage | None:
        """A place for a wish; None if no device has as much memory free now."""
        if self.memory.largest(wish.device) < max(wish.bytes, 1):
            return self._no_device(wish)
        shortage = self._shares.shortage(wish.owner, needs_of(wish))
        if shortage is not None:
            return quota_refusal(shortage)
        needed, reserved = self._needed(wish), self._reserved.of(wish.id)
        if reserved is not None:
            place = DevicePlace(*reserved, self._nodes[reserved[0]].free(reserved[1]))
            places = [place] if place.free >= needed else []
        else:
            places = self.memory.best(wish.device, needed, CANDIDATES, wish.avoid) or self._without_sessions(wish)
        if not places:
            return None
        places.sort(key=lambda place: (self._nodes[place.node].queue, -place.free, place.node, place.device))
        shortage = None
        for place in places:
            node = self._nodes[place.node]
            shortage = self._shares.admit(wish.owner, place.node, needs_of(wish), node.number)
            if shortage is None:
                return self._promise(wish, node, place.device, now)
        return shortage

    def _without_sessions(self, wish: SessionWish) -> list[DevicePlace]:
        """Places for a wish that says no bytes on nodes that have no session, so that no more will become free."""
        places = [] if wish.bytes else self.memory.best(wish.device, 1, CANDIDATES, wish.avoid)
        return [place for place in places if self._is_all(self._nodes[place.node], place.free)]

    @staticmethod
    def _is_all(node: ClusterNode, free: int) -> bool:
        """Whether a device of a node has less free than a session usually gets, and no session that could end."""
        return 0 < free < USUAL_BYTES and not node.has_sessions

    def _promise(self, wish: SessionWish, node: ClusterNode, device: str, now: float) -> PlacedSession:
        name = node.info.name
        self._reserved.remove(wish.id)
        node.promise(PendingSession(wish.id, wish.owner, device, wish.bytes or USUAL_BYTES, wish.bytes))
        self.show(node)
        new = self._shares.unconfirmed(wish.owner, name)
        shares = {wish.owner: self._shares.shares(wish.owner, name)} if new else {}
        # Not the next orders' number: orders with other owners' shares may be on their way, or lost.
        number = node.report.orders if new and node.report is not None else 0
        revision = self._shares.revision(wish.owner, name) if new else 0
        placement = PlacedSession(name, node.info.url, device, shares, number, revision)
        self._placed[wish.id] = wish, placement, now
        return placement

    def _reserve(self, wish: SessionWish) -> None:
        """Reserve the device with the most free memory that is large enough, if not too many are reserved."""
        if wish.id in self._reserved or self._reserved.is_full(len(self.memory)):
            return
        for place in self.memory.best(wish.device, 0, CANDIDATES, wish.avoid):
            node = self._nodes[place.node]
            if node.info.devices[place.device] >= wish.bytes and self._reserved.at(place.node, place.device) is None:
                self._reserved.add(wish, place.node, place.device)
                self.show(node)
                return

    def _drop(self, wish: SessionWish) -> None:
        """Take a wish out of its queue; the owner's next may be smaller."""
        queue = self._queues[wish.device]
        queue.drop(wish.id)
        if not queue.least:
            self._risen[wish.device] = None
        place = self._reserved.remove(wish.id)
        if place is not None:
            self.show(self._nodes[place[0]])

    def _settled(self, wish: SessionWish, placement: PlacedSession) -> Outcome:
        """The place, once its node has the owner's share or the caller sends it."""
        if self._pushes or not placement.shares:
            return placement
        if self._shares.unconfirmed(wish.owner, placement.node):
            retry_s = self._pace.report_s
            reason = f"node {placement.node} is being told the owner's share: ask again in {retry_s:.3g} s"
            return Waiting(1, sum(map(len, self._queues.values())), retry_s, reason)
        return PlacedSession(placement.node, placement.url, placement.device)

    def _waiting(self, queue: WishQueue, wish: SessionWish) -> Waiting:
        waiting, position = sum(map(len, self._queues.values())), queue.position(wish)
        reason = (
            f"sessions: expected a {wish.device} with {wish.bytes or USUAL_BYTES} bytes free, got none that has as "
            f"much now: {waiting} wait, and this one is about number {position}"
        )
        return Waiting(position, waiting, self._pace.report_s, reason)

    def _no_device(self, wish: SessionWish) -> Refused:
        devices = (device for node in self._nodes.values() for device in node.info.devices)
        return no_device(wish, self.memory.largest(wish.device), devices)

    def _refuse(self, wish: SessionWish, refused: Refused, now: float) -> None:
        self._asked.pop(wish.id, None)
        self._refused[wish.id] = refused, now

    def _withdraw(self, wish_id: str) -> None:
        """Give a place back that was not used."""
        wish, placement, _ = self._placed.pop(wish_id)
        node = self._nodes.get(placement.node)
        if node is not None and node.withdraw(wish_id, wish.owner, placement.device) is not None:
            self._shares.give_back(wish.owner, placement.node, needs_of(wish))
            self.show(node)

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All but nodes and shares, as JSON."""
        return {
            "queues": {device: queue.state() for device, queue in self._queues.items()},
            "asked": [[*row_of(wish), when] for wish, when in self._asked.values()],
            "placed": [
                [*row_of(wish), place.node, place.url, place.device, place.shares, place.number, place.revision, when]
                for wish, place, when in self._placed.values()
            ],
            "reserved": self._reserved.state(),
            "risen": sorted(self._risen),
            "refused": [[id, refused.status, refused.reason, when] for id, (refused, when) in self._refused.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a state; the nodes are there already."""
        self._asked.update((row[0], (wish_of(row), row[-1])) for row in state["asked"])
        wishes = {id: wish for id, (wish, _) in self._asked.items()}
        self._queues = {device: WishQueue.restored(row, wishes) for device, row in state["queues"].items()}
        self._reserved.restore(state["reserved"], wishes)
        for node in self._nodes.values():
            self.show(node)
        self._risen = dict.fromkeys(state["risen"])
        for row in state["placed"]:
            *place, when = row[WISH_FIELDS:]
            self._placed[row[0]] = wish_of(row), PlacedSession(*place), when
        for id, status, reason, when in state["refused"]:
            self._refused[id] = Refused(status, reason), when
